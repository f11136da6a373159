"""One declaration per API. `@api(...)` above a typed function makes the public function from it:

- aliases: `input` for `x`, `other` for `y`, `dim` for `axis`, ...; both spellings given is a TypeError;
- `name=` is accepted and ignored; `out=` works for every function that returns tensors;
- variadic sizes: `zeros(2, 3)` for `zeros([2, 3])`;
- a true `__signature__`: the parameters of Paddle first, then the aliases as keywords.

The registry of declarations is what the namespaces, the tensor methods, the stubs and the coverage page are made from.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Spellings of the industry for a parameter of Paddle, where the function has no parameter of that name itself.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "x": ("input",),
    "y": ("other",),
    "axis": ("dim",),
    "axes": ("dims", "dim"),
    "axis1": ("dim1",),
    "axis2": ("dim2",),
    "keepdim": ("keepdims",),
    "shape": ("size",),
    "input": ("x",),
    "dim": ("axis",),
    "epsilon": ("eps",),
    "label": ("target",),
    "start_axis": ("start_dim",),
    "stop_axis": ("end_dim",),
    "place": ("device",),
    "kernel_sizes": ("kernel_size",),
    "strides": ("stride",),
    "paddings": ("padding",),
    "dilations": ("dilation",),
    "x1": ("input1",),
    "x2": ("input2",),
}
MISSING = inspect.Parameter.empty


@dataclass(frozen=True)
class Declaration:
    """What is known of one public function."""

    names: tuple[str, ...]  # full names, "paddle.concat"; the first is the canonical one
    function: Callable[..., Any]
    signature: inspect.Signature
    aliases: Mapping[str, str]  # alias -> parameter


REGISTRY: dict[str, Declaration] = {}


def api(
    names: str = "",
    *,
    at: str = "paddle",
    variadic: str = "",
    compat: str = "",
    out: bool = True,
    bare: bool = False,
    **aliases: str,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function of the namespace `at`.

    Args:
        names: further names, separated by spaces; `bare` leaves the function's own name out.
        variadic: the parameter that may also be given as several integers.
        compat: torch spellings, separated by spaces, that Paddle gives another meaning: they raise and name
            `paddle.compat.<function>`.
        out: whether `out=` is taken.
        aliases: parameter -> its further spellings, separated by spaces ("" for none of the usual ones).
    """

    def declare(implementation: Callable[..., Any]) -> Callable[..., Any]:
        own = implementation.__name__
        full = tuple(
            word if word.startswith("paddle.") else f"{at}.{word}"
            for word in [*([] if bare else [own]), *names.split()]
        )
        spelling = _spellings(implementation, aliases, compat.split())
        function = _public(implementation, full[0], spelling, variadic, out, compat.split())
        declaration = Declaration(full, function, inspect.signature(function), spelling)
        for name in full:
            REGISTRY[name] = declaration
        return function

    return declare


def exports(namespace: str) -> dict[str, Callable[..., Any]]:
    """The declared functions of a namespace by their short names."""
    split = (name.rpartition(".") for name in REGISTRY)
    return {short: REGISTRY[f"{where}.{short}"].function for where, _, short in split if where == namespace}


def _spellings(implementation: Callable[..., Any], aliases: Mapping[str, str], forbidden: list[str]) -> dict[str, str]:
    parameters = inspect.signature(implementation).parameters
    found: dict[str, str] = {}
    for name in parameters:
        words = aliases[name].split() if name in aliases else ALIASES.get(name, ())
        found.update({word: name for word in words if word not in parameters and word not in forbidden})
    return found


def _public(
    implementation: Callable[..., Any],
    full: str,
    spelling: Mapping[str, str],
    variadic: str,
    takes_out: bool,
    forbidden: list[str],
) -> Callable[..., Any]:
    signature = inspect.signature(implementation)
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    positional = [name for name, p in signature.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    limit = 1 << 30 if inspect.Parameter.VAR_POSITIONAL in kinds else len(positional)
    own_out = "out" in signature.parameters or not takes_out
    own_name = "name" in signature.parameters
    pack_at = positional.index(variadic) if variadic else -1
    short = full.removeprefix("paddle.")

    def rename(kwargs: dict[str, Any]) -> dict[str, Any]:
        renamed: dict[str, Any] = {}
        for key, value in kwargs.items():
            name = spelling.get(key, key)
            if name in renamed:
                raise TypeError(f"{full}() got both {_pair(name, kwargs, spelling)}; give one of them")
            if name == "name" and not own_name:
                continue
            if name in forbidden:
                raise TypeError(
                    f"{full}() received unexpected keyword argument '{key}'. \n"
                    f"Did you mean to use paddle.compat.{short}() instead?"
                )
            renamed[name] = value
        return renamed

    @functools.wraps(implementation)
    def call(*args: Any, **kwargs: Any) -> Any:
        if pack_at >= 0:
            args = _packed(args, pack_at)
        if len(args) == limit + 1 and (args[limit] is None or type(args[limit]) is str) and not own_name:
            args = args[:limit]  # Paddle's `name`, given by position
        if not kwargs:
            return implementation(*args)
        kwargs = rename(kwargs)
        if own_out or (out := kwargs.pop("out", None)) is None:
            return implementation(*args, **kwargs)
        return write(implementation(*args, **kwargs), out)

    call.__signature__ = _signature(signature, spelling, own_out, own_name)  # type: ignore[attr-defined]
    call.__doc__ = _document(implementation.__doc__ or "", spelling)
    call.__qualname__ = call.__name__ = full.rpartition(".")[2]
    call.__module__ = "oarlock." + full.rpartition(".")[0]
    return call


def _pair(name: str, kwargs: Mapping[str, Any], spelling: Mapping[str, str]) -> str:
    return " and ".join(f"'{key}'" for key in kwargs if spelling.get(key, key) == name)


def _packed(args: tuple[Any, ...], start: int) -> tuple[Any, ...]:
    """`(x, 2, 3, rest)` as `(x, [2, 3], rest)`."""
    stop = start
    while stop < len(args) and _is_int(args[stop]):
        stop += 1
    return args if stop == start else (*args[:start], list(args[start:stop]), *args[stop:])


def _is_int(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim == 0 and not value.is_floating_point()
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _signature(
    signature: inspect.Signature, spelling: Mapping[str, str], own_out: bool, own_name: bool
) -> inspect.Signature:
    parameter = inspect.Parameter
    own = list(signature.parameters.values())
    after = [p for p in own if p.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)]
    before = [p for p in own if p not in after]
    last = parameter.KEYWORD_ONLY
    variable = any(p.kind is parameter.VAR_POSITIONAL for p in own)
    if not own_name:
        kind = last if variable else parameter.POSITIONAL_OR_KEYWORD
        (after if variable else before).append(parameter("name", kind, default=None, annotation=str | None))
    if not own_out:
        after.append(parameter("out", last, default=None, annotation=Any))
    after += [
        parameter(alias, last, default=None, annotation=own_type(signature, to)) for alias, to in spelling.items()
    ]
    before = [p.replace(default=None) if p.default is MISSING and _has_alias(p.name, spelling) else p for p in before]
    for i in range(1, len(before)):  # a parameter after one with a default needs one too
        if (
            before[i].default is MISSING
            and before[i - 1].default is not MISSING
            and before[i].kind is not parameter.VAR_POSITIONAL
        ):
            before[i] = before[i].replace(default=None)
    after.sort(key=lambda p: p.kind is parameter.VAR_KEYWORD)  # `**kwargs` stays last
    return signature.replace(parameters=[*before, *after])


def own_type(signature: inspect.Signature, name: str) -> Any:
    """The annotation of a parameter."""
    return signature.parameters[name].annotation


def _has_alias(name: str, spelling: Mapping[str, str]) -> bool:
    return name in spelling.values()


def _document(text: str, spelling: Mapping[str, str]) -> str:
    also = ", ".join(f"`{alias}` for `{name}`" for alias, name in spelling.items())
    text = inspect.cleandoc(text)
    return f"{text}\n\nAlso accepted: {also}." if also else text


def write(result: Any, out: Any) -> Any:
    """Write `result` (a tensor or several) into `out`, which takes its shape and dtype; gradients flow through."""
    if not isinstance(out, Tensor):
        if len(out) != len(result):
            raise ValueError(f"out= has {len(out)} tensors where the function returns {len(result)}")
        return type(out)(write(part, to) for part, to in zip(result, out, strict=True))
    if out.shape != result.shape or out.dtype != result.dtype:
        out.data = torch.empty_like(result)
    return out.copy_(result)
