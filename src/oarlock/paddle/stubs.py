"""Type stubs (`.pyi`) made from the declarations, for editors and type checkers.

A module whose functions are declared gets a stub beside it. The functions take torch tensors and return
`paddle.Tensor`, which in the stubs is torch.Tensor with the names that `patch_tensor()` adds.
"""

import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from oarlock.paddle.conventions import TENSOR_METHODS
from oarlock.paddle.declare import MISSING, REGISTRY, Declaration
from oarlock.paddle.patch import method_functions
from oarlock.paddle.properties import PROPERTIES

ROOT = Path(__file__).parents[2]
# The namespaces that consist of declarations. Modules with classes of their own are typed in their source.
NAMESPACES = "paddle paddle.linalg paddle.fft paddle.signal paddle.special paddle.nn.functional paddle.nn.init"
BUILTINS = "bool|int|float|complex|str|bytes|list|tuple|dict|set|slice|range|type|object"
HEAD = '''# fmt: off
"""Made by `oarlock paddle stubs` from the declarations; do not edit."""

# ruff: noqa
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportOverlappingOverload=false
'''


def write_stubs(to: Path | None = None) -> list[Path]:
    """Write the stubs into the source tree, or below another folder. Returns their paths."""
    written = []
    for path, text in stubs().items():
        target = (to or ROOT) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        written.append(target)
    return written


def stubs() -> dict[str, str]:
    """The text of every stub by its path below the source folder."""
    found: dict[str, str] = {}
    for namespace in NAMESPACES.split():
        module = importlib.import_module(f"oarlock.{namespace}")
        assert module.__file__ is not None
        found[str(Path(module.__file__).relative_to(ROOT).with_suffix(".pyi"))] = _module(namespace, module)
    return found


def _module(namespace: str, module: types.ModuleType) -> str:
    lines = sorted(_lines(namespace, module))
    body = "\n".join(line for _, _, line in lines)
    if namespace == "paddle":
        body += "\n\n" + "\n".join(_tensor_class())
    imports = {
        name
        for name in ("builtins", "collections.abc", "numpy", "torch", "oarlock.paddle.strict_types")
        if f"{name}." in body
    }
    names = [name for name in ("Any", "Literal", "overload") if re.search(rf"\b{name}\b", body)]
    head = [f"import {name}" for name in sorted(imports | {"torch"})]
    head += [f"from typing import {', '.join(names)}"] if names else []
    if namespace != "paddle":
        head.append("from oarlock.paddle import Tensor")
    return "\n".join([HEAD, *head, "", body]) + "\n"


def _lines(namespace: str, module: types.ModuleType) -> Iterator[tuple[int, str, str]]:
    """What a module has, as (order, name, text)."""
    inner = [info.name for info in pkgutil.iter_modules(getattr(module, "__path__", []))]
    for name in {*dir(module), *inner}:
        if name in inner and not hasattr(module, name):
            importlib.import_module(f"{module.__name__}.{name}")
        value = getattr(module, name)
        if name.startswith("_") or name == "Tensor" or getattr(value, "__module__", "") == "typing":
            continue
        if declaration := REGISTRY.get(f"{namespace}.{name}"):
            yield 2, name, "\n".join(_function(name, declaration))
        elif inspect.ismodule(value):
            if value.__name__ == f"oarlock.{namespace}.{name}" and getattr(value, "__file__", None):
                yield 0, name, f"from oarlock.{namespace} import {name} as {name}"
        elif isinstance(value, torch.dtype):
            yield 1, name, f"{name}: torch.dtype"
        elif isinstance(value, float) or value is None:
            yield 1, name, f"{name}: {'None' if value is None else 'builtins.float'}"
        elif getattr(torch, name, None) is value:
            yield 0, name, f"from torch import {name} as {name}"
        elif str(getattr(value, "__module__", "")).startswith("oarlock."):
            if value.__module__ != module.__name__:
                yield 0, name, f"from {value.__module__} import {getattr(value, '__name__', name)} as {name}"
            elif declaration := REGISTRY.get(f"{namespace}.{getattr(value, '__name__', name)}"):
                yield 2, name, "\n".join(_function(name, declaration))


def _function(name: str, declaration: Declaration, method: bool = False) -> Iterator[str]:
    """The definition, twice where sizes may be several integers."""
    returns = _annotation(declaration.signature.return_annotation).replace("torch.Tensor", "Tensor")
    forms = [_parameters(declaration, False)]
    if declaration.variadic:
        forms.append(_parameters(declaration, True))
    for parameters in forms:
        if len(forms) > 1:
            yield "@overload"
        if method:
            first = next(iter(declaration.signature.parameters))
            itself = tuple(f"{alias}: " for alias, to in declaration.aliases.items() if to == first)
            parameters = ["self: torch.Tensor", *(text for text in parameters[1:] if not text.startswith(itself))]
            if parameters[-1] == "*":
                parameters.pop()
        yield f"def {name}({', '.join(parameters)}) -> {returns}: ..."


def _parameters(declaration: Declaration, several: bool) -> list[str]:
    made: list[str] = []
    star = False  # a bare `*`, or `*args`, was written
    for name, p in declaration.signature.parameters.items():
        text = f"{name}: {_annotation(p.annotation)}" + ("" if p.default is MISSING else " = ...")
        if several and name == declaration.variadic:
            made.append(f"*{name}: builtins.int")
            star = True
            continue
        if p.kind is p.VAR_POSITIONAL:
            text, star = f"*{text}", True
        elif p.kind is p.VAR_KEYWORD:
            text = f"**{text}"
        elif p.kind is p.KEYWORD_ONLY and not star:
            made.append("*")
            star = True
        made.append(text)
    return made


def _annotation(annotation: Any) -> str:
    if annotation is MISSING or isinstance(annotation, str):
        return "Any"
    text = re.sub(r"\btyping\.", "", inspect.formatannotation(annotation)).replace("NoneType", "None")
    return re.sub(rf"(?<![\w.])({BUILTINS})\b", r"builtins.\1", text)  # Paddle has its own `bool`, `int`, `sum`, ...


def _tensor_class() -> Iterator[str]:
    """`paddle.Tensor`: torch's class with Paddle's constructor, methods and properties."""
    yield "class Tensor(torch.Tensor):"
    yield "    def __new__(cls, *args: Any, **kwargs: Any) -> Tensor: ..."
    declarations = {id(d.function): d for d in REGISTRY.values()}
    for name, function in sorted(method_functions().items()):
        if name not in TENSOR_METHODS:
            for line in _function(name, declarations[id(function)], method=True):
                yield "    " + line
    for name in PROPERTIES:
        yield f"    {name}: Any"
