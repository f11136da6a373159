"""Dequantisation of any box equals the same box of the dequantised whole, and reads no more than whole blocks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oarlock.checkpoint.aoa import AOA, Computed, Program, TensorSpec, materialize

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


class Reader:
    """Reads boxes of tensors and remembers which."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.boxes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []

    def __call__(self, key: str, offset: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
        self.boxes.append((key, offset, size))
        return self.tensors[key][tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))]


def compiled(text: str, tensors: dict[str, Tensor]) -> Program:
    return AOA(text).compile({name: TensorSpec.of(tensor) for name, tensor in tensors.items()})


def fp8_pair(rows: int, columns: int, block: int) -> dict[str, Tensor]:
    scales = torch.rand(-(-rows // block), -(-columns // block)) + 0.5
    return {"w": torch.randn(rows, columns).to(torch.float8_e4m3fn), "w_scale_inv": scales}


def dequantised(w: Tensor, scales: Tensor, block: int) -> Tensor:
    """Every element looks its scale up."""
    rows, columns = (torch.arange(n) // block for n in w.shape)
    return w.float() * scales[rows[:, None], columns].float()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 7), st.data())
def test_any_box_of_an_fp8_tensor(rows: int, columns: int, block: int, data: st.DataObject) -> None:
    tensors = fp8_pair(rows, columns, block)
    program = compiled(f"w, w_scale_inv -> x, fp8_block, block={block}, dtype=float32", tensors)
    expected = dequantised(tensors["w"], tensors["w_scale_inv"], block)
    offset = [data.draw(st.integers(0, n)) for n in expected.shape]
    size = [data.draw(st.integers(0, n - o)) for o, n in zip(offset, expected.shape, strict=True)]
    read = Reader(tensors)
    found = materialize(program.tensors["x"], read, offset, size)
    assert torch.equal(found, expected[offset[0] : offset[0] + size[0], offset[1] : offset[1] + size[1]])
    for key, _, read_size in read.boxes:  # the hull: at most a block more on each side, and its scales
        unit = 1 if key == "w" else block
        assert all(n * unit <= s + 2 * block for n, s in zip(read_size, size, strict=True))


def test_shards_that_straddle_blocks() -> None:
    """300 x 200 in blocks of 128 over 3 ranks: shards of 100 rows; edge blocks are 44 and 72 long."""
    tensors = fp8_pair(300, 200, 128)
    program = compiled("w, w_scale_inv -> x, fp8_block", tensors)
    whole = program.apply(tensors)["x"]
    assert whole.dtype == torch.bfloat16
    assert torch.equal(whole, dequantised(tensors["w"], tensors["w_scale_inv"], 128).bfloat16())
    read = Reader(tensors)
    shards = [materialize(program.tensors["x"], read, (100 * rank, 0), (100, 200)) for rank in range(3)]
    assert torch.equal(torch.cat(shards), whole)
    assert [(offset[0], size[0]) for key, offset, size in read.boxes if key == "w"] == [(0, 128), (0, 256), (128, 172)]


def test_layout_follows_dequantisation() -> None:
    """Transposed, joined with another and cut: still the same elements."""
    tensors = fp8_pair(6, 4, 4) | {"v": torch.randn(4, 6).bfloat16()}
    program = compiled("w, w_scale_inv -> d, fp8_block(block=4) ; d^T, v -> x, axis=0", tensors)
    expected = torch.cat([dequantised(tensors["w"], tensors["w_scale_inv"], 4).bfloat16().T, tensors["v"]])
    assert torch.equal(program.apply(tensors)["x"], expected)
    assert torch.equal(materialize(program.tensors["x"], Reader(tensors), (2, 1), (4, 5)), expected[2:6, 1:])
    assert program.sources("x") == ("w", "w_scale_inv", "v")
    assert "fp8_block(w, w_scale_inv)" in program.explain("x")


def test_experts_with_scales_of_their_own_dtype() -> None:
    """Leading axes have no blocks; scales are e8m0, as a dtype or as bytes; blocks need not be square."""
    exponents = torch.randint(100, 140, (2, 3, 2), dtype=torch.uint8)
    data = torch.randn(2, 5, 7).to(torch.float8_e4m3fn)
    factors = (2.0 ** (exponents.float() - 127)).repeat_interleave(2, 1)[:, :5].repeat_interleave(4, 2)[..., :7]
    for scales in (exponents, exponents.view(torch.float8_e8m0fnu)):
        tensors = {"w": data, "s": scales}
        found = compiled("w, s -> x, fp8_block, block=[2, 4], dtype=float32", tensors).apply(tensors)["x"]
        assert torch.equal(found, data.float() * factors)


@pytest.mark.parametrize("grouped", [True, False])
def test_mxfp4(grouped: bool) -> None:
    """gpt-oss's layout, element by element: low half first, 32 values per scale; any box of it."""
    data = torch.randint(0, 256, (2, 3, 2, 16), dtype=torch.uint8)
    scales = torch.randint(118, 134, (2, 3, 2), dtype=torch.uint8)
    expected = torch.empty(2, 3, 64)
    for e in range(2):
        for r in range(3):
            for k in range(64):
                byte = int(data[e, r, k // 32, k % 32 // 2])
                expected[e, r, k] = E2M1[byte >> 4 if k % 2 else byte & 15] * math.ldexp(
                    1, int(scales[e, r, k // 32]) - 127
                )
    tensors = {"w_blocks": data if grouped else data.reshape(2, 3, 32), "w_scales": scales}
    program = compiled("w_blocks, w_scales -> d, mxfp4(dtype=float32) ; d -> x, permute=[0, 2, 1]", tensors)
    assert torch.equal(program.apply(tensors)["x"], expected.transpose(1, 2))
    read = Reader(tensors)
    box = materialize(program.tensors["x"], read, (1, 35, 1), (1, 9, 2))
    assert torch.equal(box, expected.transpose(1, 2)[1:, 35:44, 1:])
    sizes = {key: math.prod(size) for key, _, size in read.boxes}
    assert sizes == {"w_blocks": 2 * 16, "w_scales": 2}


def test_e8m0_bytes_are_torchs_e8m0() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    data = torch.full((256, 1), 2.0).to(torch.float8_e5m2)
    tensors = {"w": data, "s": every[:, None]}
    found = compiled("w, s -> x, fp8_block, block=1, dtype=float32", tensors).apply(tensors)["x"].flatten()
    torch.testing.assert_close(found, every.view(torch.float8_e8m0fnu).float() * 2, rtol=0, atol=0, equal_nan=True)


def test_scales_in_pieces() -> None:
    """Data and scales are relations themselves: here both come from several files."""
    tensors = fp8_pair(8, 4, 4)
    halves = {"w0": tensors["w"][:4], "w1": tensors["w"][4:], "s": tensors["w_scale_inv"].T.contiguous()}
    program = compiled("(w0, w1, axis=0), s^T -> x, fp8_block, block=4, dtype=float32", halves)
    assert torch.equal(program.apply(halves)["x"], dequantised(tensors["w"], tensors["w_scale_inv"], 4))


def test_what_cannot_be() -> None:
    tensors = fp8_pair(8, 4, 4)
    with pytest.raises(ValueError, match=r"needs scales of shape \(1, 1\), got \(2, 1\)"):
        compiled("w, w_scale_inv -> x, fp8_block", tensors)
    with pytest.raises(ValueError, match="written weight, scale -> result"):
        compiled("w -> x, fp8_block", tensors)
    with pytest.raises(ValueError, match="mxfp4 reads bytes"):
        compiled("w, w_scale_inv -> x, mxfp4", tensors)
    program = compiled("w, w_scale_inv -> x, fp8_block, block=4", tensors)
    with pytest.raises(ValueError, match=r"'x' cannot be reversed: it is computed by fp8_block\(w, w_scale_inv\)"):
        program.reverse()
    with pytest.raises(ValueError, match="no optimizer state to follow"):
        program.query("x", (0, 0), (2, 2), state="optim")
    [block] = program.query("x", (0, 0), (2, 2))
    assert isinstance(block.source, Computed)


def test_mxfp4_is_what_transformers_reads() -> None:
    """gpt-oss: [E, rows, G, 16] bytes become [E, G * 32, rows]."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors = {
        "blocks": torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8),
        "scales": torch.randint(110, 140, (2, 6, 3), dtype=torch.uint8),
    }
    expected = convert_moe_packed_tensors(tensors["blocks"], tensors["scales"], dtype=torch.bfloat16)
    found = compiled("blocks, scales -> d, mxfp4 ; d -> x, permute=[0, 2, 1]", tensors).apply(tensors)["x"]
    assert torch.equal(found, expected)
