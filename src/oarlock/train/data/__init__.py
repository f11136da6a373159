"""Text to batches: corpus, tokenizer, tokens on disk, packing, loader. Usable without the trainer."""

from oarlock.train.data.batch import Batch, Packable
from oarlock.train.data.corpus import Corpus, CorpusConfig, open_corpus
from oarlock.train.data.dataset import PreparedData, prepare
from oarlock.train.data.loader import EvaluationLoader, PackedLoader
from oarlock.train.data.packing import Packing, PackingReport, pack
from oarlock.train.data.sources import Document
from oarlock.train.data.token_file import TokenFile
from oarlock.train.data.tokenizer import TextTokenizer, load_tokenizer, train_tokenizer

__all__ = [
    "Batch",
    "Corpus",
    "CorpusConfig",
    "Document",
    "EvaluationLoader",
    "Packable",
    "PackedLoader",
    "Packing",
    "PackingReport",
    "PreparedData",
    "TextTokenizer",
    "TokenFile",
    "load_tokenizer",
    "open_corpus",
    "pack",
    "prepare",
    "train_tokenizer",
]
