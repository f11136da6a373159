"""GGUF files: every type against the package `gguf`, any box of them, and clear errors for malformed files."""

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from oarlock.checkpoint import CheckpointError, Shard, open_tensors
from oarlock.checkpoint.gguf import open_gguf
from oarlock.checkpoint.gguf_blocks import BLOCKS, BlockType
from oarlock.checkpoint.gguf_header import GgufHeader
from oarlock.cli.main import main

RNG = np.random.default_rng(0)


def random_blocks(block: BlockType, *shape: int) -> np.ndarray:
    """Bytes of a quantised tensor with finite scales: bytes below 0x70 at the upper half of any float16."""
    packed = RNG.integers(0, 256, (*shape[:-1], shape[-1] // block.num_values, block.num_bytes), dtype=np.uint8)
    packed = np.where(packed >= 0x70, packed & 0x3F, packed)
    return packed.reshape(*shape[:-1], -1)


def write(path: Path, tensors: dict[str, np.ndarray], kinds: dict[str, GGMLQuantizationType] | None = None) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_array("a.list", ["x", "\u00e9", ""])
    writer.add_array("a.vector", [1, 2, 3])
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor, raw_dtype=(kinds or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def bits(values: np.ndarray | torch.Tensor) -> bytes:
    return np.ascontiguousarray(values).tobytes()


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: BLOCKS[code].name)
def test_blocks_have_the_values_of_the_reference(code: int) -> None:
    """Bitwise: the order of the float32 operations is part of the definition."""
    block = BLOCKS[code]
    assert gguf.GGML_QUANT_SIZES[GGMLQuantizationType(code)] == (block.num_values, block.num_bytes)
    packed = random_blocks(block, 300, block.num_values)
    expected = gguf.dequantize(packed, GGMLQuantizationType(code))
    found = block.decode(torch.from_numpy(packed))
    assert np.isfinite(expected).all()
    assert bits(found) == bits(expected)


def test_a_file_of_every_type(tmp_path: Path) -> None:
    tensors = {
        "f32": RNG.standard_normal((3, 5), dtype=np.float32),
        "f16": RNG.standard_normal((2, 3, 4), dtype=np.float32).astype(np.float16),
        "f64": RNG.standard_normal(3),
        "i8": np.arange(5, dtype=np.int8),
        "i64": np.arange(5),
    }
    kinds = {f"q{code}": GGMLQuantizationType(code) for code in BLOCKS}
    packed = {name: random_blocks(BLOCKS[kind.value], 2, 3, 512) for name, kind in kinds.items()}
    path = write(tmp_path / "m.gguf", tensors | packed, kinds)
    source = open_tensors(path)
    found = source.read()
    assert found.keys() == tensors.keys() | packed.keys()
    for name, tensor in tensors.items():
        assert found[name].shape == tensor.shape
        assert bits(found[name]) == bits(tensor)
    for name, kind in kinds.items():
        assert found[name].shape == (2, 3, 512)
        assert bits(found[name]) == bits(gguf.dequantize(packed[name], kind))
    half = open_gguf(path, torch.bfloat16).read(list(kinds))
    assert all(torch.equal(half[name], found[name].bfloat16()) for name in kinds)
    header = GgufHeader(path)
    assert header.array("a.list") == ["x", "\u00e9", ""]
    assert header.array("a.vector") == [1, 2, 3]
    assert source.metadata["general.architecture"] == "llama"


def test_bfloat16(tmp_path: Path) -> None:
    values = torch.randn(3, 8).bfloat16()
    packed = values.view(torch.uint8).numpy()
    path = write(tmp_path / "m.gguf", {"w": packed}, {"w": GGMLQuantizationType.BF16})
    assert torch.equal(open_tensors(path).read()["w"], values)


def test_inspect_tells_what_a_tensor_is_computed_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = {"w": random_blocks(BLOCKS[12], 4, 512), "v": np.zeros((2, 3), np.float32)}
    path = write(tmp_path / "m.gguf", packed, {"w": GGMLQuantizationType.Q4_K})
    assert main(["inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {t["name"]: (t["dtype"], t["computed_from"], t["shape"]) for t in found["tensors"]} == {
        "w": ("float32", "Q4_K", [4, 512]),
        "v": ("float32", None, [2, 3]),
    }
    assert found["files"] == {"m.gguf": 4 * 2 * 144 + 24}
    assert main(["inspect", str(path)]) == 0
    assert "float32 of Q4_K" in capsys.readouterr().out


@given(st.data())
def test_any_box_of_a_quantised_tensor(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A shard may cut through blocks; it and the transposed tensor get slice(dequant(all))."""
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    packed = random_blocks(BLOCKS[12], 4, 768)
    write(path, {"w": packed}, {"w": GGMLQuantizationType.Q4_K})
    full = torch.from_numpy(gguf.dequantize(packed, GGMLQuantizationType.Q4_K))
    row, column = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 767))
    size = data.draw(st.integers(1, 4 - row)), data.draw(st.integers(1, 768 - column))
    part = Shard.box(torch.zeros(size), (4, 768), (row, column))
    turned = Shard.box(torch.zeros(size[::-1]), (768, 4), (column, row))
    open_tensors(path).load({"w": part})
    open_tensors(path).load({"t": turned}, aoa="w^T -> t")
    expected = full[row : row + size[0], column : column + size[1]]
    assert torch.equal(part.tensor, expected)
    assert torch.equal(turned.tensor, expected.T)


# ---- malformed files -------------------------------------------------------------------------------------------------


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(name: str | bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def built(pairs: list[bytes], infos: list[bytes], data: bytes = bytes(64), version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(pairs)) + b"".join(pairs + infos)
    return head + bytes(-len(head) % 32) + data


MALFORMED: dict[str, tuple[Callable[[], bytes], str]] = {
    "version 1": (lambda: built([], [], version=1), "GGUF version 1; versions 2 and 3"),
    "big-endian": (lambda: built([], [], version=3 << 24), "its numbers are big-endian"),
    "nothing else": (lambda: b"GGUF", "not a GGUF file"),
    "2^60 pairs": (lambda: b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), f"claims to have {1 << 60} pairs"),
    "2^60 tensors": (lambda: b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), f"claims to have {1 << 60} tensors"),
    "a long text": (lambda: built([struct.pack("<Q", 1 << 62) + b"key"], []), f"would take {1 << 62} bytes"),
    "a long array": (
        lambda: built([pair("k", 9, struct.pack("<IQ", 4, 1 << 61))], []),
        f"k at byte 49 would take {1 << 63} bytes; the file ends",
    ),
    "many texts": (lambda: built([pair("k", 9, struct.pack("<IQ", 8, 1 << 61))], []), "would take"),
    "nested arrays": (lambda: built([pair("k", 9, struct.pack("<IQ", 9, 1) + bytes(16))], []), "an array of arrays"),
    "unknown value": (lambda: built([pair("k", 77, bytes(8))], []), "'k' of the metadata is of the unknown type 77"),
    "a key twice": (lambda: built([pair("k", 7, b"\1")] * 2, []), "the key 'k' is there twice"),
    "a key in latin-1": (
        lambda: built([pair(b"k\xff", 7, b"\1")], []),
        "a key of the metadata at byte 32 is not UTF-8",
    ),
    "a name in latin-1": (lambda: built([], [info(b"\xff", (1,))]), "the name of a tensor at byte 32 is not UTF-8"),
    "a name twice": (lambda: built([], [info("w", (1,))] * 2), "the tensor 'w' is there twice"),
    "nine dims": (lambda: built([], [info("w", (1,) * 9)]), "tensor 'w' has 9 dims"),
    "an absurd shape": (lambda: built([], [info("w", (1 << 63, 1 << 63))]), "ends at byte"),
    "beyond the end": (lambda: built([], [info("w", (4,), offset=1 << 40)]), "tensor 'w' (F32 [4], 16 bytes) ends at"),
    "a negative offset": (lambda: built([], [info("w", (4,), offset=(1 << 64) - 32)]), "ends at byte"),
    "not aligned": (lambda: built([], [info("w", (4,), offset=4)]), "begins at 4, which is no multiple of 32"),
    "alignment 0": (
        lambda: built([pair("general.alignment", 4, struct.pack("<I", 0))], []),
        "general.alignment is 0; it must be a multiple of 8",
    ),
    "an overlap": (lambda: built([], [info("v", (12,)), info("w", (4,), offset=32)]), "'v' and 'w' overlap"),
    "half a block": (lambda: built([], [info("w", (33,), 8)]), "does not consist of blocks of 32"),
    "a type without a reader": (lambda: built([], [info("w", (256,), 16)]), "tensor 'w' is of type IQ2_XXS; F32, F16"),
    "an unknown type": (lambda: built([], [info("w", (256,), 4711)]), "tensor 'w' is of type 4711; F32, F16"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files(case: str, tmp_path: Path) -> None:
    content, message = MALFORMED[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(content())
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        open_tensors(path)
    assert str(path) in str(caught.value)


def test_a_sound_file_built_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(built([pair("k", 7, b"\1")], [info("w", (4,)), info("v", (2, 3), offset=32)], bytes(64)))
    assert {name: tuple(t.shape) for name, t in open_tensors(path).read().items()} == {"w": (4,), "v": (3, 2)}
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="it is truncated or malformed"):
        open_tensors(path)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_never_gives_another_kind_of_error(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write(path, {"w": np.zeros((2, 4), np.float32), "v": np.zeros(3, np.float16)})
    raw = bytearray(path.read_bytes())
    raw[place % len(raw)] = value
    path.write_bytes(raw)
    try:
        open_tensors(path).read()
    except CheckpointError as error:
        assert str(path) in str(error)  # noqa: PT017
