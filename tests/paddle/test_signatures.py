"""Every function takes the parameters of Paddle's: by the same position and by the same name."""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oarlock.paddle.patch import method_functions

LINES = (Path(__file__).parent / "signatures.txt").read_text(encoding="utf-8").splitlines()
SIGNATURES = {name: words.split() for name, _, words in (line.partition("\t") for line in LINES if line[0] != "#")}
# A position that Paddle gives to the name or to out, of which ours are by keyword.
IGNORED = {"name", "out", "self", "var"}
DIFFERENT = {
    "paddle.grad": "dump_backward_graph_path belongs to the debugger",
    "paddle.Tensor.backward": "dump_backward_graph_path belongs to the debugger",
    "paddle.incubate.graph_reindex": "its buffers are those of a GPU kernel",
}


def function_of(name: str) -> Callable[..., Any] | None:
    """What Oarlock has by a full name, None for nothing."""
    where, _, short = name.rpartition(".")
    if where == "paddle.Tensor":
        return method_functions().get(short)
    try:
        return getattr(importlib.import_module(f"oarlock.{where}"), short, None)
    except ModuleNotFoundError:  # a method of a class
        module, _, owner = where.rpartition(".")
        return getattr(function_of(where), short, None) if owner[:1].isupper() and module else None


def differences(function: Callable[..., Any], words: list[str]) -> list[str]:
    """The parameters of Paddle that a function does not take."""
    parameters = inspect.signature(function).parameters
    kinds = [p.kind for p in parameters.values()]
    positions = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    stars = [i for i, word in enumerate(words) if word.startswith("*")]
    by_position = words[: stars[0]] if stars else words
    found = []
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        found = [word for word in words if not word.startswith("*") and word not in {*parameters, *IGNORED}]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        aliases = getattr(function, "__wrapped__", None) and declared_aliases(function)
        for i, word in enumerate(by_position):
            at = positions[i] if i < len(positions) else "nothing"
            if word not in IGNORED and at != word and (aliases or {}).get(word) != at:
                found.append(f"{word} at {i} is {at}")
    return found


def declared_aliases(function: Callable[..., Any]) -> dict[str, str]:
    """The other names of a declared function's parameters."""
    from oarlock.paddle.declare import REGISTRY

    return next((dict(d.aliases) for d in REGISTRY.values() if d.function is function), {})


WHOLE = ("paddle.distribution.", "paddle.sparse.", "paddle.audio.")  # modules of which nothing is left out


def test_whole_modules_are_there() -> None:
    names = [name for name in SIGNATURES if name.startswith(WHOLE)]
    assert len(names) > 200
    assert [name for name in names if function_of(name) is None] == []


def test_parameters_by_name_and_position() -> None:
    wrong = {}
    for name, words in SIGNATURES.items():
        function = function_of(name)
        if function is None or inspect.isclass(function) or name in DIFFERENT:
            continue
        if found := differences(function, words):
            wrong[name] = found
    assert not wrong, "\n".join(f"{name}: {', '.join(found)}" for name, found in wrong.items())
