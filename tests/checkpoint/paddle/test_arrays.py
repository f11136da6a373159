"""Where the elements of arrays are: cut, unaligned, column-major, as text; files as numpy's pickles write them."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from oarlock.checkpoint import CheckpointError, Shard, open_tensors
from oarlock.checkpoint.paddle import ranges

VALUES = np.random.default_rng(0).normal(size=(11, 5, 70))


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("prefix", range(8))
def test_any_place_order_and_protocol(
    protocol: int, order: str, prefix: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of at most 1000 bytes: an unaligned array consists of pieces, of all kinds of boxes."""
    monkeypatch.setattr(ranges, "_COPIED_AT_ONCE", 1000)
    array = np.asarray(VALUES, order=order)
    (tmp_path / "x").write_bytes(pickle.dumps({"x" * (prefix + 1): array, "y": array[3].copy()}, protocol=protocol))
    source = open_tensors(tmp_path / "x")
    stored = source.tensors["x" * (prefix + 1)]
    assert torch.equal(source.read()["x" * (prefix + 1)], torch.from_numpy(VALUES))
    assert torch.equal(source.read(["y"])["y"], torch.from_numpy(VALUES[3]))
    part = Shard.box(torch.empty(4, 2, 9, dtype=torch.float64), VALUES.shape, (6, 3, 33))
    source.load({"x" * (prefix + 1): part}, strict="destination")
    assert np.array_equal(part.tensor.numpy(), VALUES[6:10, 3:5, 33:42])
    aligned = {piece.box.volume for piece in stored.pieces} == {VALUES.size}
    assert aligned or (order == "C" and protocol > 2 and all(piece.box.volume <= 125 for piece in stored.pieces))


def test_text_above_what_is_kept_in_memory(tmp_path: Path) -> None:
    """Protocol 2 writes bytes as UTF-8 of Latin-1; all 256 values of a byte, 300,000 of them."""
    array = np.random.default_rng(1).integers(0, 256, size=300_000, dtype=np.uint8)
    (tmp_path / "x").write_bytes(pickle.dumps({"x": array, "f": array.view(np.float32)}, protocol=2))
    found = open_tensors(tmp_path / "x").read()
    assert np.array_equal(found["x"].numpy(), array)
    assert np.array_equal(found["f"].view(torch.uint8).numpy(), array)
    data = bytearray((tmp_path / "x").read_bytes())
    place = data.index(array.tobytes().decode("latin1").encode()[:20]) + 100_000
    while data[place] >= 0x80:
        place += 1
    for wrong in (0xC3, 0x80, 0xE0):
        (tmp_path / "x").write_bytes(data[:place] + bytes([wrong]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match=r"bytes with characters that are none|bytes instead of"):
            open_tensors(tmp_path / "x").read()


def cut(array: np.ndarray, parts: int, name: str = "w") -> dict[str, object]:
    """As paddle.save with protocols 2 and 3 cuts arrays above 1 GiB."""
    names = [f"{name}@@.{index}" for index in range(parts)]
    pieces = dict(zip(names, np.array_split(array.flatten(), parts), strict=True))
    return {**pieces, "UnpackBigParamInfor@@": {name: {"OriginShape": array.shape, "slices": names}}}


@pytest.mark.parametrize("protocol", [2, 3])
def test_arrays_that_paddle_cuts(protocol: int, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(pickle.dumps({"a": np.ones(2), **cut(VALUES, 4)}, protocol=protocol))
    source = open_tensors(tmp_path / "x")
    assert source.tensors.keys() == {"w", "a"}
    assert torch.equal(source.read()["w"], torch.from_numpy(VALUES))
    part = Shard.box(torch.empty(3, 5, 1, dtype=torch.float64), VALUES.shape, (4, 0, 69))
    source.load({"w": part}, strict="destination")
    assert np.array_equal(part.tensor.numpy(), VALUES[4:7, :, 69:])


@pytest.mark.parametrize("damage", ["missing", "dtype", "short", "long", "shape", "no table"])
def test_cut_arrays_that_do_not_fit(damage: str, tmp_path: Path) -> None:
    state = cut(VALUES, 3)
    first = state["w@@.0"]
    assert isinstance(first, np.ndarray)
    if damage == "missing":
        del state["w@@.1"]
    elif damage == "dtype":
        state["w@@.1"] = first.astype(np.float32)
    elif damage == "short":
        state["w@@.0"] = first[1:].copy()
    elif damage == "long":
        state["w@@.0"] = np.append(first, 1.0)
    elif damage == "shape":
        state["UnpackBigParamInfor@@"] = {"w": {"OriginShape": (-1, 2), "slices": ["w@@.0"]}}
    else:
        state["UnpackBigParamInfor@@"] = 3
    (tmp_path / "x").write_bytes(pickle.dumps(state, protocol=3))
    with pytest.raises(CheckpointError, match=r"the parts of 'w'|'w' of shape .* has \d+ elements|is a int"):
        open_tensors(tmp_path / "x")


def test_python_2_and_old_numpy(tmp_path: Path) -> None:
    """Protocol 2 of Python 2 has byte strings, remembers from 1 on, and old numpy has other modules."""
    data = np.arange(3, dtype="<f4").tobytes()
    program = (
        b"\x80\x02}q\x01U\x01wq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85q\x05"
    )
    program += b"U\x01b\x87q\x06Rq\x07(K\x01K\x03\x85q\x08cnumpy\ndtype\nq\tU\x02f4K\x00K\x01\x87Rq\n"
    program += b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U" + bytes([len(data)]) + data + b"tbs."
    found = pickle.loads(program, encoding="latin1")
    (tmp_path / "x").write_bytes(program)
    assert np.array_equal(open_tensors(tmp_path / "x").read()["w"].numpy(), found["w"])
