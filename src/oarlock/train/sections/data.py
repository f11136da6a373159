"""What it is trained on."""

from dataclasses import dataclass

from oarlock.train.data.corpus import CorpusConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig(CorpusConfig):
    """What it is trained on."""

    sequence_length: int = 2048
    """Tokens S per sequence; documents are packed into sequences and never see each other."""
    chat_template: str = ""
    """sft and dpo: Jinja file in place of the model's own chat template."""
    cache: str = ".cache/oarlock"
    """Folder of tokenised corpora, keyed by content."""
