"""The `tiny` fixture: configurations of runs that share one small corpus."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_run import TINY, write_corpus


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    """Write a configuration for a run folder of the given name; all of one test share corpus and cache."""
    corpus = write_corpus(tmp_path / "corpus")

    def write(name: str = "run") -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(TINY.format(corpus=corpus, cache=tmp_path / "cache", out=tmp_path / name), encoding="utf-8")
        return path

    return write
