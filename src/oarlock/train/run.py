"""The folder of a run: what lies where, and the rule that nothing of an earlier run is overwritten.

out/config.toml  metrics.jsonl  status.json  report.html  tokenizer/  checkpoints/  hf/  tb/
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from oarlock.checkpoint import CheckpointError, list_checkpoints
from oarlock.checkpoint.directory import locked
from oarlock.train.config import TrainConfig, load_config
from oarlock.train.metrics import read_metrics

# A resumed run must be the same model on the same data in the same order; the rest may change. Where the data lies may
# change too: the text itself is compared through a hash in the checkpoint.
FIXED_SECTIONS = ("model", "data", "dpo")
FREE_KEYS = tuple(("data", key) for key in ("cache", "corpus", "validation", "tokenizer", "chat_template"))
FIXED_KEYS = (
    ("train", "task"),
    ("train", "seed"),
    ("train", "batch_size"),
    ("train", "accumulation"),
    ("optimizer", "name"),
)


class RunDirectory:
    """Paths of one run.

    Args:
        path: the folder, `train.out`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.metrics = self.path / "metrics.jsonl"
        self.status = self.path / "status.json"
        self.tokenizer = self.path / "tokenizer"
        self.checkpoints = self.path / "checkpoints"
        self.export = self.path / "hf"
        self.report = self.path / "report.html"

    def start_or_resume(self, config: TrainConfig, resume: str) -> Path | None:
        """The checkpoint to continue from, or None to start; reads only.

        Args:
            config: the configuration asked for.
            resume: `never`, `auto` (the newest checkpoint, or start if there is none), or a checkpoint's folder.

        Raises:
            ValueError: the folder holds an earlier run and resume is `never`; or that run's configuration differs
                where it must not; or something would be overwritten that the run could not go on from.
            FileNotFoundError: the named checkpoint does not exist.
            NotADirectoryError: the folder is a file.
        """
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"train.out = {str(self.path)!r} is a file; name a folder")
        own = list_checkpoints(self.checkpoints)
        if resume == "never" and self.is_taken():
            raise ValueError(
                f"{self.path} holds an earlier run; continue it with --resume auto, "
                "or choose another folder with --train.out"
            )
        checkpoint = None
        if resume == "auto" and own:
            checkpoint = own[-1]
        elif resume not in ("auto", "never"):
            checkpoint = self._named_checkpoint(Path(resume).expanduser(), own)
        if own:
            self._refuse_changes(config)
        else:
            self._refuse_to_replace()
        return checkpoint

    def is_taken(self) -> bool:
        """Whether a run took a step here; one that was refused before its first is nobody's loss."""
        if list_checkpoints(self.checkpoints):
            return True
        if not self.config.exists():
            return False
        if not self.metrics.exists():
            return True  # it was there once
        return any(record["kind"] == "train" for record in read_metrics(self.metrics))

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Create the folder and keep other processes from training in it meanwhile.

        Raises:
            ValueError: another process is at it.
        """
        with ExitStack() as lock:
            try:
                lock.enter_context(locked(self.path))
            except CheckpointError:
                raise ValueError(
                    f"another process is training in {self.path}; wait for it, or choose another --train.out"
                ) from None
            yield

    def prepare(self, config: TrainConfig, tokenizer: Path) -> None:
        """Write the resolved configuration and a copy of the folder `tokenizer`."""
        write_atomically(self.config, config.to_toml())
        partial = self.path / f".{self.tokenizer.name}.tmp"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(tokenizer, partial)
        shutil.rmtree(self.tokenizer, ignore_errors=True)
        partial.rename(self.tokenizer)

    def write_status(self, **values: Any) -> None:
        """Replace status.json: step, steps, budget, finished, and what stopped the run if something did."""
        write_atomically(self.status, json.dumps(values, indent=1) + "\n")

    def finished(self, config: TrainConfig) -> bool:
        """Whether the run has reached the last step that `config` asks for and exported its weights.

        Raises:
            ValueError: the folder holds a run whose configuration differs where it must not.
        """
        try:
            status = json.loads(self.status.read_text(encoding="utf-8"))
            asked, done = (
                (config.train.steps, status["steps"]) if config.train.steps else (config.train.flops, status["budget"])
            )
            finished = bool(status["finished"]) and asked == done
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if finished:
            self._refuse_changes(config)
        return finished

    def _named_checkpoint(self, path: Path, own: list[Path]) -> Path:
        """`path`, unless checkpoints would be left that `auto` takes for the newest of the run."""
        if not path.is_dir():
            raise FileNotFoundError(f"--resume {path}: no such checkpoint folder (auto takes the newest)")
        places = [folder.resolve() for folder in own]
        if path.resolve() in places:
            later = own[places.index(path.resolve()) + 1 :]
            if later:
                raise ValueError(
                    f"{self.checkpoints} holds later steps than {path.name}, up to {later[-1].name}; move them away "
                    "to go back to it, or continue from it in another folder with --train.out"
                )
        elif own:
            raise ValueError(
                f"{self.path} has checkpoints of its own, up to {own[-1].name}; continue them with --resume auto, "
                "or choose another folder with --train.out"
            )
        return path

    def _refuse_to_replace(self) -> None:
        """What a run that was killed before its first checkpoint left is nobody's loss; all else may be."""
        unsaved = (self.metrics, self.tokenizer) if not self.config.exists() else ()
        if found := [path.name for path in (self.export, *unsaved) if path.exists()]:
            raise ValueError(
                f"{self.path} holds {' and '.join(found)} but no checkpoint to continue from, and starting would "
                "replace it; move it away, or choose another folder with --train.out"
            )

    def _refuse_changes(self, now: TrainConfig) -> None:
        if not self.config.exists():
            return
        old, new = load_config(self.config).to_dict(), now.to_dict()
        keys = [(section, key) for section in FIXED_SECTIONS for key in old[section]]
        for section, key in [*(pair for pair in keys if pair not in FREE_KEYS), *FIXED_KEYS]:
            if old[section][key] != new[section][key]:
                raise ValueError(
                    f"cannot resume: {section}.{key} = {new[section][key]!r}, but the run was started with "
                    f"{old[section][key]!r} ({self.config}); use that value, or start anew with another --train.out"
                )


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that a reader sees the old or the new content, never a part."""
    partial = path.with_name(f".{path.name}.tmp")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        error.filename = str(path)
        raise
