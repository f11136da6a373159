"""What attributes do. They apply from left to right to the list of tensors on a statement's left side.

`axis`, `stack` and `sizes` join several tensors into one or split one into several; every other attribute acts on each
tensor of the list as it stands when its turn comes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from oarlock.checkpoint.aoa.algebra import Relation, concat, stack
from oarlock.checkpoint.aoa.errors import AOAError
from oarlock.checkpoint.aoa.rearrange import rearrange
from oarlock.checkpoint.aoa.syntax import Attribute, Value
from oarlock.checkpoint.aoa.values import Add, Multiply, Scope
from oarlock.checkpoint.dtypes import dtype_name, dtype_of
from oarlock.checkpoint.near_miss import near_miss


@dataclass(frozen=True, slots=True)
class Outputs:
    """How many tensors a statement writes, and whether they are listed (by *, [a:b] or commas) even if it is one."""

    count: int
    listed: bool


Step = Callable[[list[Relation], Outputs], list[Relation]]


def steps(attributes: Sequence[Attribute]) -> list[tuple[Attribute, Step]]:
    """Check the values of attributes and turn them into steps, in their order."""
    given = {attribute.key: attribute for attribute in attributes}
    for attribute in attributes:
        if given[attribute.key] is not attribute and attribute.key not in ("dtype", "add", "mul", "permute", "reshape"):
            raise AOAError(f"{attribute.key} is given twice", given[attribute.key].place)
    for key, partner in (("sizes", "axis"), ("src_dtype", "dst_dtype"), ("dst_dtype", "src_dtype")):
        if key in given and partner not in given:
            raise AOAError(f"{key} needs {partner} beside it", given[key].place)
    if "axis" in given and "stack" in given:
        raise AOAError(
            "axis joins along an existing axis, stack along a new one: give one of them", given["stack"].place
        )
    only = _scope(given.get("only"))
    result = []
    for attribute in attributes:
        if attribute.key not in ("sizes", "only", "src_dtype"):
            result.append((attribute, _step(attribute, given, only)))
    return result


def _step(attribute: Attribute, given: dict[str, Attribute], only: Scope) -> Step:
    match attribute.key:
        case "axis" if "pad" in given:
            axis = _int(attribute)
            return lambda tensors, outputs: (
                _join_or_split(tensors, outputs, axis, None) if len(tensors) > 1 else tensors
            )
        case "axis":
            axis = _int(attribute)
            sizes = _ints(given["sizes"]) if "sizes" in given else None
            return lambda tensors, outputs: _join_or_split(tensors, outputs, axis, sizes)
        case "stack":
            axis = _int(attribute)
            return lambda tensors, outputs: _stack_or_unstack(tensors, outputs, axis)
        case "permute":
            order = _ints(attribute)
            return _each(lambda tensor: tensor.permute(order))
        case "rearrange":
            pattern = _word(attribute)
            return _each(lambda tensor: rearrange(tensor, pattern))
        case "reshape":
            shape = _ints(attribute)
            return _each(lambda tensor: tensor.reshape(shape))
        case "pad":
            size = _int(attribute)
            axis = _int(given["axis"]) if "axis" in given else 0
            return _each(lambda tensor: tensor.pad(tensor.dim(axis), size))
        case "dtype":
            dtype = _dtype(attribute)
            return _each(lambda tensor: tensor.cast(dtype, only))
        case "dst_dtype":
            source, dtype = _dtype(given["src_dtype"]), _dtype(attribute)
            return _each(lambda tensor: _cast_from(tensor, source, dtype, only))
        case "add":
            addend = _number(attribute)
            return _each(lambda tensor: tensor.arithmetic(Add(addend, only)))
        case "mul":
            factor = _number(attribute)
            return _each(lambda tensor: tensor.arithmetic(Multiply(factor, only)))
    raise AssertionError(attribute.key)


def _each(function: Callable[[Relation], Relation]) -> Step:
    return lambda tensors, outputs: [function(tensor) for tensor in tensors]


def _join_or_split(
    tensors: list[Relation], outputs: Outputs, axis: int, sizes: tuple[int, ...] | None
) -> list[Relation]:
    if len(tensors) > 1:
        if sizes is not None:
            raise ValueError("sizes are for splitting one tensor; this statement joins several")
        return [concat(tensors, tensors[0].dim(axis))]
    [tensor] = tensors
    dim, count = tensor.dim(axis), outputs.count
    if count == 1 and sizes is None:
        return tensors
    size = tensor.shape[dim]
    if sizes is None:
        if size % count:
            raise ValueError(
                f"axis {dim} of shape {tensor.shape} cannot be split into {count} equal parts; give sizes=[...]"
            )
        sizes = (size // count,) * count
    elif sizes.count(-1) == 1:
        sizes = tuple([size - sum(sizes) - 1 if n == -1 else n for n in sizes])
    if len(sizes) != count or min(sizes) < 0:
        raise ValueError(f"sizes {list(sizes)} do not split an axis of size {size} for {count} targets")
    return tensor.split(dim, sizes)


def _stack_or_unstack(tensors: list[Relation], outputs: Outputs, axis: int) -> list[Relation]:
    [first, *others] = tensors
    if others or not outputs.listed:
        if not -len(first.shape) - 1 <= axis <= len(first.shape):
            raise ValueError(f"stack={axis} is no place for a new axis in shape {first.shape}")
        return [stack(tensors, axis % (len(first.shape) + 1))]
    dim = first.dim(axis)
    if first.shape[dim] != outputs.count:
        raise ValueError(f"axis {dim} of shape {first.shape} has not one entry for each of {outputs.count} targets")
    return [part.squeeze(dim) for part in first.split(dim, (1,) * outputs.count)]


def _cast_from(tensor: Relation, source: torch.dtype, dtype: torch.dtype, only: Scope) -> Relation:
    if tensor.dtype != source:
        raise ValueError(f"src_dtype is {dtype_name(source)}, the tensor is {dtype_name(tensor.dtype)}")
    return tensor.cast(dtype, only)


def _int(attribute: Attribute) -> int:
    if not isinstance(attribute.value, int):
        raise AOAError(f"{attribute.key} is an integer", attribute.place)
    return attribute.value


def _number(attribute: Attribute) -> int | float:
    if not isinstance(attribute.value, int | float) or not math.isfinite(attribute.value):
        raise AOAError(f"{attribute.key} is a finite number", attribute.place)
    return attribute.value


def _ints(attribute: Attribute) -> tuple[int, ...]:
    if not isinstance(attribute.value, tuple) or not all(isinstance(item, int) for item in attribute.value):
        raise AOAError(f"{attribute.key} is a list of integers such as [1, 0]", attribute.place)
    return tuple(item for item in attribute.value if isinstance(item, int))


def _word(attribute: Attribute) -> str:
    if not isinstance(attribute.value, str):
        raise AOAError(f"{attribute.key} is a word or a string", attribute.place)
    return attribute.value


def _scope(attribute: Attribute | None) -> Scope:
    match attribute:
        case None:
            return "param"
        case Attribute(value=("param" | "optim" | "all") as scope):
            return scope
    raise AOAError("only is one of param, optim, all", attribute.place)


def _dtype(attribute: Attribute) -> torch.dtype:
    name = _word(attribute)
    try:
        return dtype_of(name)
    except ValueError as error:
        names = [dtype_name(value) for value in vars(torch).values() if isinstance(value, torch.dtype)]
        raise AOAError(str(error), attribute.place, hint=near_miss(name, names)) from None


def as_dtype(value: Value) -> torch.dtype:
    """The dtype that a macro's argument names; ValueError if it names none."""
    return dtype_of(value if isinstance(value, str) else repr(value))
