"""Names that join every view: `layers.3.attn.q_proj/linear12`, its tensor, gradient and node.

| what | name |
|---|---|
| call | module path, `/`, API and how many calls of it came before: `layers.3.attn.q_proj/linear12` |
| tensor | call, `_out`, dtype and shape: `layers.3.attn.q_proj/linear12_out_bfloat16_2x10` |
| parameter | its path in the model: `layers.3.attn.q_proj.weight` |
| gradient | tensor and `@grad` |
| node of the backward graph | call and `Backward` |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

_TENSOR_GETTERS = {"T", "mT", "H", "mH", "real", "imag", "data", "grad"}
_WRITERS = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__iand__", "__ior__"}
_ENGINE = {torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad}
_LAYOUT = {"requires_grad_", "retain_grad", "register_hook", "register_post_accumulate_grad_hook", "is_set_to"}

UNINITIALISED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
"""APIs whose results hold whatever was in the memory before."""
OVERWRITING = {
    "copy_",
    "fill_",
    "zero_",
    "normal_",
    "uniform_",
    "random_",
    "bernoulli_",
    "exponential_",
    "trunc_normal_",
}
"""APIs that do not read the tensor that they write."""

VIEWS = {
    "getitem",
    "view",
    "view_as",
    "reshape",
    "narrow",
    "select",
    "transpose",
    "permute",
    "t",
    "T",
    "mT",
    "unsqueeze",
}
VIEWS |= {"squeeze", "expand", "flatten", "unflatten", "split", "chunk", "unbind", "detach", "as_strided", "diagonal"}
"""APIs that read no value."""


class Api(NamedTuple):
    """What a callable of torch is to a recorder."""

    name: str
    """As calls are named; empty: it computes no tensor (a getter of shape, say)."""
    is_plain: bool
    """Whether it computes tensors and writes none."""
    writes: bool = False
    """Whether it writes into its first argument."""
    is_engine: bool = False
    """Whether it runs the backward graph."""
    written: tuple[str | int, ...] = ()
    """Arguments that the schema of a custom operator says are written."""


def api_of(function: Any) -> Api:
    """Name and kind of a function that torch hands to a mode."""
    name = getattr(function, "__name__", type(function).__name__)
    if function in _ENGINE:
        return Api(name, False, is_engine=True)
    if name in ("__get__", "__set__", "__delete__"):
        getter = getattr(getattr(function, "__self__", None), "__name__", "")
        getter = getter if name == "__get__" and getter in _TENSOR_GETTERS else ""
        return Api(getter, bool(getter) and getter != "grad")
    if name in _LAYOUT:
        return Api("", False)
    module = getattr(function, "__module__", None) or ""
    if module.startswith("torch._ops."):
        return _operator(function, module.removeprefix("torch._ops."))
    special = name.startswith("__") and name.endswith("__")
    writes = name in _WRITERS or (name.endswith("_") and not special)
    return Api(name.strip("_") if special else name, not writes, writes)


def _operator(function: Any, space: str) -> Api:
    name = getattr(getattr(function, "overloadpacket", function), "__name__", function.__name__)
    overloads = [function] if hasattr(function, "_schema") else [getattr(function, o) for o in function.overloads()[:1]]
    written: list[str | int] = []
    for overload in overloads:
        for i, argument in enumerate(overload._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written += [i, argument.name]
    return Api(name if space == "aten" else f"{space}.{name}", not written, written=tuple(written))


class Value(NamedTuple):
    """One tensor as records name it: what made it, dtype and shape. It holds no data."""

    module: str
    api: str
    """What made it; empty: `module` is its own name, as of a parameter."""
    number: int
    place: int
    """Among the results of its call; -1: the only one."""
    shape: torch.Size
    dtype: torch.dtype
    needs_grad: bool

    @property
    def name(self) -> str:
        """Unique in the run."""
        if not self.api:
            return self.module
        at = "" if self.place < 0 else self.place
        return f"{call_name(self.module, self.api, self.number)}_out{at}_{described(self.dtype, self.shape)}"


def new_value(fields: tuple[Any, ...]) -> Value:
    """A `Value` of its fields in order, faster than by its own constructor."""
    return tuple.__new__(Value, fields)


def shape_of(tensor: Tensor) -> torch.Size:
    """Shape of a tensor; () of a strided nested one, whose rows have different ones, and of a parameter without any."""
    try:
        return torch.Size() if tensor.is_nested and tensor.layout == torch.strided else tensor.shape
    except RuntimeError:
        if is_lazy(tensor):
            return torch.Size()
        raise


def call_name(module: str, api: str, number: int) -> str:
    """Of the `number`-th call of `api`."""
    return f"{module}/{api}{number}" if module else f"{api}{number}"


def described(dtype: torch.dtype, shape: Iterable[int]) -> str:
    """`bfloat16_2x10`; a tensor without dimensions is `scalar`."""
    return f"{str(dtype).removeprefix('torch.')}_{'x'.join(map(str, shape)) or 'scalar'}"


def tensors_in(value: Any, found: list[Tensor]) -> None:
    """Append the tensors in a tensor, or in nested lists, tuples and dicts of them."""
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for part in value:
            tensors_in(part, found)
    elif isinstance(value, dict):
        for part in value.values():
            tensors_in(part, found)
