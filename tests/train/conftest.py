"""The `tiny` fixture: configurations of runs that share one small corpus."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tiny_run import write_config


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    """Writes the configuration of a run folder of the given name."""
    return partial(write_config, tmp_path)
