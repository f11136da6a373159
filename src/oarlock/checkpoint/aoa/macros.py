"""Registered macros: layouts that models share, each in terms of the algebra.

A macro is a function (use, *, arguments) -> output tensors; its keyword arguments are those of the language. Fused
projections all have one shape: their parts are dealt out in `n` rounds,

    deal([q, k, v], n) = q_0 k_0 v_0  q_1 k_1 v_1  ...  q_{n-1} k_{n-1} v_{n-1}

with n the number of key-value heads (Megatron's layout), or of tensor-parallel shards (Paddle's fused_ffn).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, get_type_hints

from oarlock.checkpoint.aoa import quantized
from oarlock.checkpoint.aoa.algebra import Relation, concat, whole
from oarlock.checkpoint.aoa.attributes import as_dtype
from oarlock.checkpoint.aoa.syntax import Value


class Use(NamedTuple):
    """What a macro is applied to.

    Args:
        inputs: tensors on the left side.
        num_outputs: names on the right side.
        input_names: for messages; one per input where the input is a plain name.
        source_shards, dest_shards: TensorSpec.num_shards of the first name on the left and on the right.
    """

    inputs: list[Relation]
    num_outputs: int
    input_names: tuple[str, ...]
    source_shards: int
    dest_shards: int


Macro = Callable[..., list[Relation]]


def deal(parts: Sequence[Relation], num_rounds: int, dim: int) -> Relation:
    """part 0's first share, part 1's first share, ...; then everybody's second share, and so on."""
    for part in parts:
        _divide(part, num_rounds, dim)
    shares = [part.unflatten(dim, num_rounds, part.shape[dim] // num_rounds) for part in parts]
    return concat(shares, dim + 1).flatten(dim)


def collect(dealt: Relation, num_rounds: int, dim: int, weights: Sequence[int]) -> list[Relation]:
    """The parts that were dealt; `weights` are their relative sizes."""
    _divide(dealt, num_rounds * sum(weights), dim)
    unit = dealt.shape[dim] // (num_rounds * sum(weights))
    rounds = dealt.unflatten(dim, num_rounds, unit * sum(weights))
    return [part.flatten(dim) for part in rounds.split(dim + 1, [unit * weight for weight in weights])]


def fused_qkv(use: Use, *, num_heads: int, num_key_value_groups: int, axis: int = 1) -> list[Relation]:
    """q, k, v <-> one tensor with, per key-value head, its query heads, the key head and the value head."""
    per_group = _heads_per_group(num_heads, num_key_value_groups)
    match len(use.inputs), use.num_outputs:
        case 3, 1:
            return [deal(use.inputs, num_key_value_groups, use.inputs[0].dim(axis))]
        case 1, 3:
            dim = use.inputs[0].dim(axis)
            return collect(use.inputs[0], num_key_value_groups, dim, (per_group, 1, 1))
    raise ValueError("fused_qkv is written q, k, v -> w or w -> q, k, v")


def fused_qkv_old(use: Use, *, num_heads: int, num_key_value_groups: int, axis: int = 1) -> list[Relation]:
    """q, k, v <-> one tensor with, per tensor-parallel shard, its query, key and value heads; or shards to shards."""
    weights = (_heads_per_group(num_heads, num_key_value_groups), 1, 1)
    return _fused_by_shard("fused_qkv_old", "q, k, v", use, axis, weights, num_key_value_groups)


def fused_ffn(use: Use, *, axis: int = 1) -> list[Relation]:
    """gate, up <-> one tensor with, per tensor-parallel shard, its gate and its up part; or shards to shards."""
    return _fused_by_shard("fused_ffn", "gate, up", use, axis, (1, 1), None)


def fp8_block(use: Use, *, block: int | tuple[int, ...] = 128, dtype: str = "bfloat16") -> list[Relation]:
    """weight, scale -> weight * scale, with one scale per block x block values (or per [rows, columns])."""
    data, scale = _data_and_scale("fp8_block", use)
    sizes = (block, block) if isinstance(block, int) else block
    if not isinstance(sizes, tuple) or not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"block of fp8_block is a size or a list of sizes, got {block!r}")
    name = f"fp8_block({', '.join(use.input_names)})"
    result = quantized.fp8_block(name, data, scale, sizes, as_dtype(dtype))
    return [whole(result, result.shape, result.dtype)]


def mxfp4(use: Use, *, dtype: str = "bfloat16") -> list[Relation]:
    """blocks, scales -> the values of two 4-bit floats per byte and one e8m0 scale per 32 values of the last axis."""
    data, scale = _data_and_scale("mxfp4", use)
    result = quantized.mxfp4(f"mxfp4({', '.join(use.input_names)})", data, scale, as_dtype(dtype))
    return [whole(result, result.shape, result.dtype)]


MACROS: Mapping[str, Macro] = {
    "fused_qkv": fused_qkv,
    "fused_qkv_old": fused_qkv_old,
    "fused_ffn": fused_ffn,
    "fp8_block": fp8_block,
    "mxfp4": mxfp4,
}


def arguments_of(macro: Macro) -> tuple[str, ...]:
    """Names of a macro's keyword arguments."""
    kinds = inspect.signature(macro).parameters.values()
    return tuple(parameter.name for parameter in kinds if parameter.kind is inspect.Parameter.KEYWORD_ONLY)


def check_arguments(name: str, macro: Macro, arguments: Mapping[str, Value]) -> None:
    """Raise ValueError for a missing argument, or one that is not the int or str that the macro asks for."""
    kinds = get_type_hints(macro)
    for key, parameter in inspect.signature(macro).parameters.items():
        if key in arguments:
            kind = kinds.get(key)
            if kind in (int, str) and not isinstance(arguments[key], kind):
                raise ValueError(f"{key} of {name} is of type {kind.__name__}, got {arguments[key]!r}")
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is inspect.Parameter.empty:
            raise ValueError(f"{name} needs {key}=")


def _fused_by_shard(
    name: str, parts: str, use: Use, axis: int, weights: tuple[int, ...], num_groups: int | None
) -> list[Relation]:
    dim = use.inputs[0].dim(axis)

    def rounds(side: Literal["source", "destination"], shards: int) -> int:
        if num_groups is not None and num_groups % shards:
            raise ValueError(f"{num_groups} key-value heads cannot be shared by {shards} shards of the {side}")
        return shards

    match len(use.inputs), use.num_outputs:
        case count, 1 if count == len(weights):
            return [deal(use.inputs, rounds("destination", use.dest_shards), dim)]
        case 1, count if count == len(weights):
            return collect(use.inputs[0], rounds("source", use.source_shards), dim, weights)
        case 1, 1:
            dealt = collect(use.inputs[0], rounds("source", use.source_shards), dim, weights)
            return [deal(dealt, rounds("destination", use.dest_shards), dim)]
    raise ValueError(f"{name} is written {parts} -> w, w -> {parts}, or w -> v")


def _heads_per_group(num_heads: int, num_groups: int) -> int:
    if num_groups < 1 or num_heads % num_groups:
        raise ValueError(f"{num_heads} heads cannot be shared by {num_groups} key-value heads")
    return num_heads // num_groups


def _divide(tensor: Relation, count: int, dim: int) -> None:
    if tensor.shape[dim] % count:
        raise ValueError(f"axis {dim} of shape {tensor.shape} cannot be divided into {count} equal parts")


def _data_and_scale(name: str, use: Use) -> list[Relation]:
    if len(use.inputs) != 2 or use.num_outputs != 1:
        raise ValueError(f"{name} is written weight, scale -> result")
    return use.inputs
