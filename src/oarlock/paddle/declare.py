"""One declaration per API. `@api(...)` above a typed function makes the public function from it:

- aliases: `input` for `x`, `other` for `y`, `dim` for `axis`, ...; both spellings given is a TypeError;
- `name=` is accepted and ignored; `out=` works for every function that returns tensors;
- variadic sizes: `zeros(2, 3)` for `zeros([2, 3])`;
- a true `__signature__`: the parameters of Paddle first, then the aliases as keywords.

The public function is compiled from source text in which every spelling is a real parameter, so that Python itself
binds them: a call costs a few identity tests more than an empty wrapper. The registry of declarations is what the
namespaces, the tensor methods, the strict mode, the stubs and the coverage page are made from.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

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


class _NotGiven:
    """The default of a parameter that can be given by more than one name."""

    def __repr__(self) -> str:
        return "<not given>"


NOT_GIVEN = _NotGiven()


@dataclass(frozen=True)
class Declaration:
    """What is known of one public function."""

    names: tuple[str, ...]  # full names, "paddle.concat"; the first is the canonical one
    function: Callable[..., Any]
    signature: inspect.Signature
    aliases: Mapping[str, str]  # alias -> parameter
    forbidden: tuple[str, ...]  # torch's spellings of a conflicting name
    variadic: str  # the parameter that may be given as several integers
    implementation: Callable[..., Any]
    slot: dict[str, Any]  # its "_call" is what the public function calls: the implementation, or a mode's version


REGISTRY: dict[str, Declaration] = {}


def api(
    names: str = "",
    *,
    at: str = "paddle",
    variadic: str = "",
    compat: str = "",
    instead: str = "",
    out: bool = True,
    bare: bool = False,
    **aliases: str,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function of the namespace `at`.

    Args:
        names: further names, separated by spaces; `bare` leaves the function's own name out.
        variadic: the parameter that may also be given as several integers.
        compat: spellings, separated by spaces, of the other convention, which means something else by the name: they
            raise and name the function that takes them.
        instead: the full name of that function, `paddle.compat.<function>` if it is not given.
        out: whether `out=` is taken.
        aliases: parameter -> its further spellings, separated by spaces ("" for none of the usual ones).
    """

    def declare(implementation: Callable[..., Any]) -> Callable[..., Any]:
        own = implementation.__name__
        full = tuple(
            word if word.startswith("paddle.") else f"{at}.{word}"
            for word in [*([] if bare else [own]), *names.split()]
        )
        forbidden = tuple(compat.split())
        spelling = _spellings(implementation, aliases, forbidden)
        slot: dict[str, Any] = {}
        other = instead or f"paddle.compat.{full[0].removeprefix('paddle.')}"
        function = _public(implementation, full[0], spelling, variadic, out, forbidden, other, slot)
        declaration = Declaration(
            full, function, inspect.signature(function), spelling, forbidden, variadic, implementation, slot
        )
        for name in full:
            REGISTRY[name] = declaration
        return function

    return declare


def exports(namespace: str) -> dict[str, Callable[..., Any]]:
    """The declared functions of a namespace by their short names."""
    split = (name.rpartition(".") for name in REGISTRY)
    return {short: REGISTRY[f"{where}.{short}"].function for where, _, short in split if where == namespace}


def _spellings(
    implementation: Callable[..., Any], aliases: Mapping[str, str], forbidden: tuple[str, ...]
) -> dict[str, str]:
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
    forbidden: tuple[str, ...],
    instead: str,
    slot: dict[str, Any],
) -> Callable[..., Any]:
    signature = inspect.signature(implementation)
    own_out = "out" in signature.parameters or not takes_out
    slot.update(_call=implementation, _=NOT_GIVEN, _write=write, _both=_both, _lacks=_lacks, _name=_check_name)
    slot.update(_refuse=_refuse)
    source = _source(signature, full, spelling, own_out, forbidden, instead, slot)
    exec(compile(source, f"<{full}>", "exec"), slot)
    call = slot[full.rpartition(".")[2]]
    if variadic:
        positional = [n for n, p in signature.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        call = _several(call, positional.index(variadic))
    functools.update_wrapper(call, implementation)
    call.__signature__ = _signature(signature, spelling, own_out)
    call.__doc__ = _document(implementation.__doc__ or "", spelling)
    call.__qualname__ = call.__name__ = full.rpartition(".")[2]
    call.__module__ = "oarlock." + full.rpartition(".")[0]
    return call


def _source(
    signature: inspect.Signature,
    full: str,
    spelling: Mapping[str, str],
    own_out: bool,
    forbidden: tuple[str, ...],
    instead: str,
    slot: dict[str, Any],
) -> str:
    """The text of the public function: each spelling a parameter, one call of the implementation."""
    before: list[str] = []  # the parameters that may be given by position
    after: list[str] = []
    rest = ""  # `**kwargs`
    passed: list[str] = []
    body: list[str] = []
    variable = False
    for name, p in signature.parameters.items():
        words = [alias for alias, to in spelling.items() if to == name]
        if p.kind is p.VAR_POSITIONAL:
            before.append(f"*{name}")
            passed.append(f"*{name}")
            variable = True
        elif p.kind is p.VAR_KEYWORD:
            rest = f"**{name}"
            passed.append(rest)
        else:
            keyword = p.kind is p.KEYWORD_ONLY
            passed.append(f"{name}={name}" if keyword else name)
            slot[f"_d_{name}"] = p.default
            optional = p.default is not MISSING
            if words or (not optional and (forbidden or any("=" in part for part in before))):
                (after if keyword else before).append(f"{name}=_")
                body += [line for word in words for line in _alias(full, name, word)]
                body += [f"if {name} is _:", f" {name} = _d_{name}" if optional else f" _lacks({full!r}, {name!r})"]
            else:
                (after if keyword else before).append(f"{name}=_d_{name}" if optional else name)
    if "name" not in signature.parameters:
        (after if variable else before).append("name=None")
        body += ["if name is not None:", f" _name({full!r}, name)"]
    if not own_out:
        after.append("out=None")
    after += [f"{word}=_" for word in (*spelling, *forbidden)]
    refusals: list[str] = []
    if forbidden:
        given = ", ".join(f"{word}={word}" for word in forbidden)
        refusals = [
            f"if {' or '.join(f'{word} is not _' for word in forbidden)}:",
            f" _refuse({full!r}, {instead!r}, {given})",
        ]
    call = f"_call({', '.join(passed)})"
    if not own_out:
        body += ["if out is not None:", f" return _write({call}, out)"]
    star = ["*"] if after and not variable else []
    head = ", ".join([*before, *star, *after, *([rest] if rest else [])])
    return "\n ".join([f"def {full.rpartition('.')[2]}({head}):", *refusals, *body, f"return {call}"])


def _alias(full: str, name: str, word: str) -> list[str]:
    both = f"  if {name} is not _: _both({full!r}, {name!r}, {word!r})"
    return [f"if {word} is not _:", both, f"  {name} = {word}"]


def _both(full: str, name: str, alias: str) -> NoReturn:
    raise TypeError(f"{full}() got both '{name}' and '{alias}'; give one of them")


def _lacks(full: str, name: str) -> NoReturn:
    words = [alias for alias, to in REGISTRY[full].aliases.items() if to == name]
    also = f" (or {', '.join(map(repr, words))})" if words else ""
    raise TypeError(f"{full}() lacks the argument '{name}'{also}")


def _check_name(full: str, name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{full}() got one argument too many, {name!r}; Paddle's `name` would be a string")


def _refuse(full: str, instead: str, **given: Any) -> NoReturn:
    raise wrong_spelling(full, [word for word, value in given.items() if value is not NOT_GIVEN], instead)


def wrong_spelling(full: str, words: Iterable[str], instead: str) -> TypeError:
    """The error of a keyword that belongs to the other convention: it names the function that takes it."""
    found = sorted(words)
    return TypeError(
        f"{full}() received unexpected keyword argument{'s' * (len(found) > 1)} {', '.join(map(repr, found))}. \n"
        f"Did you mean to use {instead}() instead?"
    )


def _several(call: Callable[..., Any], start: int) -> Callable[..., Any]:
    """`call` that also takes `(x, 2, 3, rest)` for `(x, [2, 3], rest)`."""

    def variadic(*args: Any, **kwargs: Any) -> Any:
        if len(args) > start and _is_int(args[start]):
            stop = start + 1
            while stop < len(args) and _is_int(args[stop]):
                stop += 1
            args = (*args[:start], list(args[start:stop]), *args[stop:])
        return call(*args, **kwargs)

    return variadic


def _is_int(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim == 0 and not value.is_floating_point()
    return hasattr(value, "__index__") and not isinstance(value, bool) and not getattr(value, "ndim", 0)


def _signature(signature: inspect.Signature, spelling: Mapping[str, str], own_out: bool) -> inspect.Signature:
    parameter = inspect.Parameter
    own = list(signature.parameters.values())
    after = [p for p in own if p.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)]
    before = [p for p in own if p not in after]
    last = parameter.KEYWORD_ONLY
    variable = any(p.kind is parameter.VAR_POSITIONAL for p in own)
    if "name" not in signature.parameters:
        kind = last if variable else parameter.POSITIONAL_OR_KEYWORD
        (after if variable else before).append(parameter("name", kind, default=None, annotation=str | None))
    if not own_out:
        after.append(parameter("out", last, default=None, annotation=Any))
    after += [
        parameter(alias, last, default=None, annotation=signature.parameters[to].annotation)
        for alias, to in spelling.items()
    ]
    aliased = set(spelling.values())
    before = [p.replace(default=None) if p.default is MISSING and p.name in aliased else p for p in before]
    for i in range(1, len(before)):  # a parameter after one with a default needs one too
        if (
            before[i].default is MISSING
            and before[i - 1].default is not MISSING
            and before[i].kind is not parameter.VAR_POSITIONAL
        ):
            before[i] = before[i].replace(default=None)
    after.sort(key=lambda p: p.kind is parameter.VAR_KEYWORD)  # `**kwargs` stays last
    return signature.replace(parameters=[*before, *after])


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
