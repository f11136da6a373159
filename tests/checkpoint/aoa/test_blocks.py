"""Executing blocks: any dtype bit for bit, any strides, boxes of sources; and programs too large for memory."""

import math
from collections.abc import Sequence

import pytest
import torch

from oarlock.checkpoint.aoa import AOA, Block, TensorSpec
from oarlock.checkpoint.aoa.merging import merge

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(torch.uint8).flatten().tolist()


def dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moves_keep_every_bit(dtype: torch.dtype) -> None:
    """NaN payloads, -0.0, and dtypes that torch cannot compute with."""
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (6, 4, dtype.itemsize), dtype=torch.uint8)
    a = raw.view(dtype).squeeze(-1)
    program = AOA("a^T, a[:2]^T -> b, axis=1").compile({"a": TensorSpec.of(a)})
    out = torch.empty(4, 3, 8, dtype=dtype)[:, 1]  # not contiguous
    for block in program.query("b", (0, 0), (4, 8)):
        block.copy(a, out)
    columns = raw.transpose(0, 1)
    assert bits(out) == torch.cat([columns, columns[:, :2]], 1).flatten().tolist()


def test_destinations_of_any_strides_and_sources_in_boxes() -> None:
    a = torch.arange(60.0).view(6, 10)
    program = AOA("a[1:, ::3]^T -> b").compile({"a": TensorSpec.of(a)})
    [block] = program.query("b", (1, 2), (2, 3))
    offset, size = block.source_box()
    assert (offset, size) == ((3, 3), (3, 4))
    window = a[3:6, 3:7].clone()
    expected = a[1:, ::3].T[1:3, 2:5]
    for out in (torch.zeros(3, 2).T, torch.zeros(4, 6)[1:3, ::2], torch.zeros(2, 3, requires_grad=True)):
        block.copy(window, out, origin=offset)
        assert torch.equal(out, expected)


def test_the_fields_of_a_block_are_its_definition() -> None:
    """dest[d + Σ i δ] = source[s + Σ i σ], element by element."""
    a = torch.arange(48).view(6, 8)
    program = AOA("a -> b, rearrange='(p q) (r s) -> q (r p) s, q=2, s=4'").compile({"a": TensorSpec.of(a)})
    made = program.apply({"a": a})["b"]
    for block in program.tensors["b"].blocks:
        for index in torch.cartesian_prod(*[torch.arange(n) for n in block.extents]).tolist():
            dest = [d + dot(index, steps) for d, steps in zip(block.dest_base, block.dest_steps, strict=True)]
            source = [s + dot(index, t) for s, t in zip(block.source_base, block.source_steps, strict=True)]
            assert made[tuple(dest)] == a[tuple(source)]
    assert sum(block.volume for block in program.tensors["b"].blocks) == 48


def test_scalars_and_tensors_without_elements() -> None:
    tensors = {"step": torch.tensor(7.0), "none": torch.zeros(0, 3)}
    text = (
        "step^T -> s ; none -> n, dtype=bfloat16 ; none, none -> m, axis=0 ; none^T -> t ; step, step -> two, stack=0"
    )
    program = AOA(text).compile({name: TensorSpec.of(tensor) for name, tensor in tensors.items()})
    made = program.apply(tensors)
    assert made["s"] == 7
    assert made["n"].shape == (0, 3)
    assert made["m"].shape == (0, 3)
    assert made["t"].shape == (3, 0)
    assert made["two"].tolist() == [7, 7]
    assert program.query("n", (0, 0), (0, 3)) == ()
    back = program.reverse()
    assert set(back.tensors) == {"step", "none"}
    assert program.query("s", (), ())[0].volume == 1


def test_a_wrong_dtype_is_not_written() -> None:
    a = torch.arange(4.0)
    [block] = AOA("a -> b").compile({"a": TensorSpec.of(a)}).query("b", (0,), (4,))
    with pytest.raises(ValueError, match=r"holds torch\.float32, the destination torch\.bfloat16"):
        block.copy(a, torch.empty(4, dtype=torch.bfloat16))


def test_shapes_beyond_32_bits() -> None:
    """Nothing is read, so the tensor may have 2 ** 45 elements."""
    n = 1 << 40
    program = AOA("w^T -> x, reshape=[-1]").compile({"w": TensorSpec((32, n), torch.bfloat16)})
    [block] = program.query("x", (32 * (n - 1) + 5,), (20,))
    assert block.source_base == (5, n - 1)
    assert block.extents == (20,)


def test_few_blocks_suffice() -> None:
    """The counts that the algebra is meant to reach."""
    f32 = torch.float32

    def count(text: str, *box: tuple[int, ...], **shapes: tuple[int, ...]) -> int:
        program = AOA(text).compile({name: TensorSpec(shape, f32) for name, shape in shapes.items()})
        return len(program.query("x", *box) if box else program.tensors["x"].blocks)

    assert count("w -> x, rearrange='e (i two) h -> e (two i) h, two=2'", w=(4, 16, 6)) == 1
    assert (
        count("q,k,v -> x, fused_qkv, num_heads=8, num_key_value_groups=2, axis=0", q=(32, 6), k=(8, 6), v=(8, 6)) == 3
    )
    assert count("w[:2], w[2:5], w[5:] -> x, axis=0", w=(8, 3)) == 1
    assert count("w[0:1], w[1:5], w[5:6] -> x, axis=0", w=(8, 3)) == 1
    assert count("w[::2], w[1::2] -> x, stack=1", w=(8, 3)) == 1
    assert count("w -> x, reshape=[4, 8, 3], reshape=[32, 3], reshape=[8, 12]", w=(8, 12)) == 1
    # a flat slice of a column shard: the rest of one row, whole rows, the start of another
    assert count("w[:, 24:48] -> x, reshape=[-1]", (100,), (233,), w=(64, 48)) == 3


def test_merging_keeps_blocks_that_do_not_belong_together() -> None:
    pieces = AOA("a[2:4], a[0:2], b, a[4:6] -> x, axis=0").compile({k: TensorSpec((6,), torch.float32) for k in "ab"})
    blocks = pieces.tensors["x"].blocks
    assert len(blocks) >= 3
    assert merge(blocks) == blocks
    assert math.prod(pieces.tensors["x"].shape) == sum(block.volume for block in blocks)
    assert all(isinstance(block, Block) for block in blocks)
