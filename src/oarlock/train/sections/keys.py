"""Values held against the keys of the sections: unknown names refused, with the nearest one, and types converted."""

import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from oarlock.checkpoint.near_miss import near_names
from oarlock.train.sections.run import TrainConfig

COMMAND_LINE = "command line"
"""Where values come from that no file gives: messages then also tell how to list the options."""
HOW_TO_LIST = "(oarlock train CONFIG.toml --options lists them all)"

_PATHS = (
    "model.directory",
    "model.config",
    "data.corpus",
    "data.validation",
    "data.tokenizer",
    "data.chat_template",
    "data.cache",
    "train.out",
    "memory.record",
    "memory.tier",
    "compile.cache",
)


def typed_sections(values: dict[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """The same values, with sections and keys known and values of their types.

    Args:
        values: section -> key -> value.
        where: the file, or what else gave them; messages begin with it.

    Raises:
        ValueError: an unknown section or key (the message names the nearest one), or a value of the wrong type.
    """
    hints = typing.get_type_hints(TrainConfig)
    sections = {}
    for section, content in values.items():
        if section not in hints:
            raise ValueError(f"{where}: unknown section [{section}]{_nearest(section, hints)}{_hint(where)}")
        if not isinstance(content, dict):
            raise ValueError(f"{where}: [{section}] must be a section, got {content!r}")
        sections[section] = _section(hints[section], section, content, where)
    return sections


def _section(cls: type, section: str, content: dict[str, Any], where: str) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    converted = {}
    for name, value in content.items():
        key = f"{section}.{name}"
        if name not in hints:
            raise ValueError(f"{where}: unknown key {key}{_nearest(name, hints, prefix=section + '.')}{_hint(where)}")
        converted[name] = _convert(hints[name], value, key, where)
        if key in _PATHS:
            converted[name] = _without_tilde(converted[name], key, where)
    return converted


def _convert(kind: Any, value: Any, key: str, where: str) -> Any:
    def wrong(expected: str) -> ValueError:
        return ValueError(f"{where}: {key} = {value!r}: expected {expected}")

    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            meant = "".join(f"; did you mean {choice}?" for choice in near_names(str(value), choices, cutoff=0.5))
            raise ValueError(f"{where}: {key} = {value!r}: one of {', '.join(choices)}{meant}")
        return str(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise wrong("a number that fits 64 bits") from None
    if type(value) is not kind:
        names: dict[type, str] = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
        raise wrong(names[kind])
    return value


def _without_tilde(path: str, key: str, where: str) -> str:
    """A leading ~ is the home folder, also where no shell has replaced it."""
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError as error:
        raise ValueError(f"{where}: {key} = {path!r}: {error}") from None


def _nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    known = list(known)
    matches = near_names(name, known, cutoff=0.5)
    return f"; did you mean {prefix}{matches[0]}?" if matches else f"; known: {', '.join(known)}"


def _hint(where: str) -> str:
    return f" {HOW_TO_LIST}" if where == COMMAND_LINE else ""
