"""TOML: the text of a configuration, and the values of a file."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_toml(path: str | Path) -> dict[str, Any]:
    """The values of a TOML file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it does not parse.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is a folder, not a TOML file" if path.is_dir() else f"no configuration file {path}"
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors on Windows write a byte order mark
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from None


def toml_text(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections of booleans, numbers and strings as TOML."""
    lines: list[str] = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # allowed in JSON, not in TOML
