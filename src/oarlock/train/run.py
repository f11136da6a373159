"""The folder of a run: what lies where, and the rule that nothing of an earlier run is overwritten.

out/config.toml  metrics.jsonl  status.json  report.html  checkpoints/  hf/  tb/
"""

import json
import os
from pathlib import Path
from typing import Any

from oarlock.checkpoint import latest_checkpoint
from oarlock.train.config import TrainConfig, load_config

# A resumed run must be the same model on the same data in the same order; the rest may change.
FIXED_SECTIONS = ("model", "data")
FIXED_KEYS = (("train", "seed"), ("train", "batch_size"), ("train", "accumulation"), ("optimizer", "name"))


class RunDirectory:
    """Paths of one run.

    Args:
        path: the folder, `train.out`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.status = self.path / "status.json"
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
                where it must not.
            FileNotFoundError: the named checkpoint does not exist.
        """
        if resume == "never":
            if self.config.exists() or self.checkpoints.exists():
                raise ValueError(
                    f"{self.path} holds an earlier run; continue it with --resume auto, "
                    "or choose another folder with --train.out"
                )
            return None
        if resume != "auto":
            checkpoint = Path(resume)
            if not checkpoint.is_dir():
                raise FileNotFoundError(f"--resume {resume}: no such checkpoint folder (auto takes the newest)")
        else:
            found = latest_checkpoint(self.checkpoints) if self.checkpoints.is_dir() else None
            if found is None:
                return None
            checkpoint = Path(found)
        if self.config.exists():
            _refuse_changes(load_config(self.config), config, self.config)
        return checkpoint

    def prepare(self, config: TrainConfig) -> None:
        """Create the folder and write the resolved configuration."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.config, config.to_toml())

    def write_status(self, **values: Any) -> None:
        """Replace status.json: step, steps, finished, and what stopped the run if something did."""
        write_atomically(self.status, json.dumps(values, indent=1) + "\n")

    def finished(self, config: TrainConfig) -> bool:
        """Whether the run has reached the last step that `config` asks for and exported its weights."""
        try:
            status = json.loads(self.status.read_text(encoding="utf-8"))
            return bool(status["finished"]) and config.train.steps in (0, status["steps"])
        except (OSError, ValueError, KeyError):
            return False


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that a reader sees the old or the new content, never a part."""
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _refuse_changes(before: TrainConfig, now: TrainConfig, where: Path) -> None:
    old, new = before.to_dict(), now.to_dict()
    keys = [(section, key) for section in FIXED_SECTIONS for key in old[section] if (section, key) != ("data", "cache")]
    for section, key in [*keys, *FIXED_KEYS]:
        if old[section][key] != new[section][key]:
            raise ValueError(
                f"cannot resume: {section}.{key} = {new[section][key]!r}, but the run was started with "
                f"{old[section][key]!r} ({where}); use that value, or start anew with another --train.out"
            )
