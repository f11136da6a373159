"""From a TOML file, the words of a command line, or nested dicts to a `TrainConfig`."""

import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oarlock.train.sections.keys import COMMAND_LINE, typed_sections
from oarlock.train.sections.overrides import read_overrides
from oarlock.train.sections.run import TrainConfig
from oarlock.train.sections.toml import read_toml


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a TOML file and apply `--section.key value` (or `--section.key=value`) pairs.

    Args:
        path: TOML file with the sections of `TrainConfig`.
        overrides: words of a command line after the file's name. Only the result must be complete: a file may leave
            out what the command line gives.

    Raises:
        FileNotFoundError: no such file.
        ValueError: TOML that does not parse, an unknown section or key (the message names the nearest one),
            a value of the wrong type or beyond its limits.
    """
    sections = typed_sections(read_toml(path), str(path))
    for name, content in typed_sections(read_overrides(overrides), COMMAND_LINE).items():
        sections[name] = sections.get(name, {}) | content
    return _build(sections)


def config_from_dict(values: dict[str, Any], where: str = "configuration") -> TrainConfig:
    """Build a `TrainConfig` from nested dicts; same errors as `load_config`."""
    return _build(typed_sections(values, where))


def _build(sections: dict[str, dict[str, Any]]) -> TrainConfig:
    hints = typing.get_type_hints(TrainConfig)
    return TrainConfig(**{name: hints[name](**content) for name, content in sections.items()})
