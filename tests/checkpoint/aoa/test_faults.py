"""What Paddle 3.3.1 gets wrong without a word, one test each: here it is right, or an error before anything is read."""

import math

import pytest
import torch
from torch import Tensor

from oarlock.checkpoint.aoa import AOA, AOAError, Cast, Program, TensorSpec


def numbered(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    tensors, first = {}, 1
    for name, shape in shapes.items():
        tensors[name] = torch.arange(first, first + math.prod(shape), dtype=torch.float32).view(shape)
        first += math.prod(shape)
    return tensors


def compiled(program: str, tensors: dict[str, Tensor], destination: dict[str, Tensor] | None = None) -> Program:
    specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
    wanted = None if destination is None else {name: TensorSpec.of(tensor) for name, tensor in destination.items()}
    return AOA(program).compile(specs, wanted)


def filled_by_shards(program: Program, tensors: dict[str, Tensor], key: str, num_shards: int, dim: int) -> Tensor:
    """The tensor, filled shard by shard into memory full of NaN."""
    whole = torch.full(program.tensors[key].shape, math.nan, dtype=program.tensors[key].dtype)
    for shard, start in zip(whole.tensor_split(num_shards, dim), _starts(whole.shape[dim], num_shards), strict=True):
        offset = [start if k == dim else 0 for k in range(whole.dim())]
        for block in program.query(key, offset, shard.shape):
            block.copy(tensors[str(block.source)], shard)
    return whole


def _starts(size: int, num_shards: int) -> list[int]:
    parts = torch.arange(size).tensor_split(num_shards)
    return [int(part[0]) if len(part) else size for part in parts]


def test_one_source_fills_many_targets() -> None:
    """Paddle leaves all but the last target unfilled, or full of uninitialised memory."""
    tensors = numbered({"a": (4, 6)})
    text = "a -> b ; a -> c, d, axis=0 ; a^T -> e ; a -> f, dtype=float64 ; a[1:3, ::2] -> g"
    a = tensors["a"]
    expected = {"b": a, "c": a[:2], "d": a[2:], "e": a.T, "f": a.double(), "g": a[1:3, ::2]}
    program = compiled(text, tensors, expected)
    for name, tensor in expected.items():
        for num_shards in (1, 2, 5):
            for dim in (0, 1):
                assert torch.equal(filled_by_shards(program, tensors, name, num_shards, dim), tensor)


def test_a_cast_concerns_parameters_alone() -> None:
    """Paddle writes bf16 bits into fp32 moments."""
    tensors = numbered({"a": (2, 3)})
    program = compiled(
        "a^T -> b, dtype=bfloat16, add=1 ; a -> c, dtype=float64, only=all ; a -> d, mul=2, only=optim", tensors
    )
    for name, state, num_ops in [
        ("b", "param", 2), ("b", "master", 1), ("b", "optim", 0),
        ("c", "param", 1), ("c", "master", 1), ("c", "optim", 1),
        ("d", "param", 0), ("d", "master", 0), ("d", "optim", 1),
    ]:  # fmt: skip
        [block] = program.query(name, (0, 0), program.tensors[name].shape, state=state)
        assert len(block.ops) == num_ops, (name, state)
    moment = torch.tensor([[1.2345, math.nan, -0.0], [2.3456, math.inf, 1e-40]])
    found = torch.empty(3, 2)
    [block] = program.query("b", (0, 0), (3, 2), state="optim")
    block.copy(moment, found)
    assert torch.equal(found.view(torch.int32), moment.T.contiguous().view(torch.int32))  # bit for bit
    assert not any(isinstance(op, Cast) for op in block.ops)


@pytest.mark.parametrize("shape", [(2, 4), (6, 2), (3, 2), (8,), (4, 2, 1)])
def test_a_rename_to_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    """Paddle fills the overlap."""
    with pytest.raises(AOAError, match="the destination has"):
        compiled("a -> b", numbered({"a": (4, 2)}), {"b": torch.zeros(shape)})
    with pytest.raises(AOAError, match="the destination has"):
        compiled("", numbered({"b": (4, 2)}), {"b": torch.zeros(shape)})


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("a, c -> x, axis=1", "cannot be joined"),  # a hole in the result
        ("t -> x, permute='[1,0]'", "no permutation"),  # an axis disappears
        ("a -> x, permute='[0,0]'", "no permutation"),
        ("none.$LAYER_ID.w -> x.$LAYER_ID.w", "no tensor of the source matches"),  # no statements, no word
        ("a -> _ ; a -> x", "is dropped here, but line 1 reads it"),  # x gets no data
        ("a -> x ; b -> x", "has already been written"),  # the last wins
        ("a -> b ; b -> a", "also a source tensor"),  # both are a
        ("a -> x, y, axis=1 ; x -> y", "has already been written"),
    ],
)
def test_what_is_silent_there_is_an_error_here(program: str, message: str) -> None:
    with pytest.raises(AOAError, match=message):
        compiled(program, numbered({"a": (4, 2), "b": (4, 2), "c": (3, 6), "t": (2, 3, 4)}))


def test_ragged_experts() -> None:
    """Paddle multiplies the sets of ids and then misses tensors that never were."""
    tensors = numbered({"l.0.e.0": (1,), "l.1.e.0": (1,), "l.1.e.1": (1,)})
    assert set(compiled("l.$LAYER_ID.e.$EXPERT_ID -> $LAYER_ID/$EXPERT_ID", tensors).tensors) == {"0/0", "1/0", "1/1"}


def test_star_beside_layer_id() -> None:
    """Paddle matches nothing."""
    tensors = numbered({f"l.{i}.e.{j}": (1, 2) for i in range(2) for j in range(3)})
    made = compiled("l.$LAYER_ID.e.* -> n.$LAYER_ID, axis=0", tensors).apply(tensors)
    assert torch.equal(made["n.1"], torch.cat([tensors[f"l.1.e.{j}"] for j in range(3)]))


def test_a_single_expert_is_renamed_too() -> None:
    """Paddle exports `l.0.w` under its old name."""
    tensors = numbered({"l.0.w": (2, 2)})
    assert set(compiled("l.*.w -> w, axis=0", tensors).tensors) == {"w"}


def test_a_tied_tensor_is_exported_under_both_names_in_any_order() -> None:
    tensors = numbered({"a": (2, 2)})
    for text in ("a -> a ; a -> b", "a -> b ; a -> a"):
        assert set(compiled(text, tensors).tensors) == {"a", "b"}


def test_reverse_where_paddle_mixes_values() -> None:
    """fused_ffn over two shards (values mixed between gate and up); 4 + 2 rows (come back as 3 + 3)."""
    tensors = numbered({"g": (2, 4), "u": (2, 4), "a": (4, 2), "b": (2, 2)})
    specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
    wanted = {"v": TensorSpec((2, 8), torch.float32, num_shards=2), "c": TensorSpec((6, 2), torch.float32)}
    program = AOA("g, u -> v, fused_ffn ; a, b -> c, axis=0").compile(specs, wanted)
    back = program.reverse().apply(program.apply(tensors))
    assert set(back) == set(tensors)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_swaps_and_chains_through_temporary_names() -> None:
    tensors = numbered({"a": (2, 2), "b": (2, 2), "c": (2, 2)})
    text = "a -> t ; b -> a ; t -> b ; c^T -> c1 ; c1, c1 -> c1, axis=0 ; c1[1:3] -> c"
    expected = {"a": tensors["b"], "b": tensors["a"]}
    c = tensors["c"].T
    made = compiled(text, tensors, expected | {"c": torch.cat([c, c])[1:3]}).apply(tensors)
    assert torch.equal(made["a"], tensors["b"])
    assert torch.equal(made["b"], tensors["a"])
    assert torch.equal(made["c"], torch.cat([c, c])[1:3])
