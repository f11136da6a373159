"""The configuration on the command line: `--section.key value` pairs, and the list of them all."""

import contextlib
import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

from oarlock.checkpoint.near_miss import near_names
from oarlock.train.sections.keys import COMMAND_LINE, HOW_TO_LIST
from oarlock.train.sections.run import TrainConfig


def read_overrides(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Section -> key -> value, read as the key's type; unknown keys are left to `typed_sections`.

    Raises:
        ValueError: a word that is no `--section.key`, or a key without a value.
    """
    hints = typing.get_type_hints(TrainConfig)
    values: dict[str, dict[str, Any]] = {}
    left = list(words)
    while left:
        option, equals, text = left.pop(0).partition("=")
        section, dot, name = option.removeprefix("--").replace("-", "_").partition(".")
        if not option.startswith("--"):
            raise ValueError(f"{COMMAND_LINE}: {option!r} is no --section.key; CONFIG.toml comes first, then these")
        if not dot:
            keys = {
                key.name: f"--{name}.{key.name}" for name, hint in hints.items() for key in dataclasses.fields(hint)
            }
            matches = [keys[match] for match in near_names(section, keys)]
            meant = f"did you mean {matches[0]}? " if matches else ""
            raise ValueError(f"{COMMAND_LINE}: unknown option {option}; {meant}{HOW_TO_LIST}")
        if not equals:
            if not left or left[0].startswith("--"):
                raise ValueError(f"{COMMAND_LINE}: {option} needs a value: {option} VALUE or {option}=VALUE")
            text = left.pop(0)
        kind = typing.get_type_hints(hints[section]).get(name) if section in hints else None
        values.setdefault(section, {})[name] = _read_text(text, kind)
    return values


def _read_text(text: str, kind: Any) -> Any:
    """A word of the command line as `kind`; as it is if it cannot be that, which `typed_sections` then reports."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def print_options(config: TrainConfig) -> None:
    """List every `--section.key` with its type, meaning and value in `config`."""
    import tyro  # only the command line needs it

    with contextlib.suppress(SystemExit):
        tyro.cli(
            TrainConfig,
            default=config,
            args=["--help"],
            prog="oarlock train CONFIG.toml",
            config=(tyro.conf.FlagConversionOff,),
            use_underscores=True,
        )
