"""What is written for Paddle, read by pickle and numpy, which Paddle reads it with; test_live.py asks Paddle itself."""

import dataclasses
import json
import pickle
import tempfile
from pathlib import Path

import hypothesis
import hypothesis.extra.numpy
import numpy as np
import pytest
import torch
from hypothesis import strategies
from safetensors.torch import load_file, save_file

from oarlock.checkpoint import open_tensors
from oarlock.checkpoint.paddle import load_state_file, save_state_file
from oarlock.cli.main import main

from .test_recorded import RECORDED, assert_same

STATE = {
    "weight": torch.randn(3, 4),
    "columns": torch.randn(3, 4).T,
    "nested": {"list": [torch.arange(3), 1, -1, 255, 256, -(1 << 31), 1 << 40, -(1 << 63), 2.5, float("inf")]},
    "tuple": (None, True, False, "text", "ü", "", torch.tensor(1.5, dtype=torch.float64)),
    "empty": torch.empty(0, 3),
    "mask": torch.tensor([True, False]),
    "half": torch.randn(5).half(),
    "complex": torch.randn(2, dtype=torch.complex64),
    "nothing": [{}, [], ()],
}


@dataclasses.dataclass(frozen=True)
class LocalTensorMetadata:
    global_offset: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: str
    global_shape: tuple[int, ...] | None = None
    is_flattened: bool = False
    flattened_range: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class LocalTensorIndex:
    tensor_key: str
    global_offset: tuple[int, ...]
    is_flattened: bool = False
    flattened_range: tuple[int, ...] | None = None
    replica_id: int | None = None
    local_shape: tuple[int, ...] | None = None


@dataclasses.dataclass
class Metadata:
    state_dict_metadata: dict | None = None
    storage_metadata: dict | None = None
    flat_mapping: dict | None = None


class PaddleUnpickler(pickle.Unpickler):
    """pickle's own, where Paddle's metadata find these classes."""

    def find_class(self, module_name: str, global_name: str) -> type:
        assert module_name == "paddle.distributed.flex_checkpoint.dcp.metadata"
        return {kind.__name__: kind for kind in (LocalTensorMetadata, LocalTensorIndex, Metadata)}[global_name]


def read_metadata(path: Path) -> Metadata:
    with open(path, "rb") as file:
        metadata = PaddleUnpickler(file).load()
    assert isinstance(metadata, Metadata)
    return metadata


def as_numpy(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {key: as_numpy(item) for key, item in value.items()}
    return type(value)(map(as_numpy, value)) if isinstance(value, list | tuple) else value


def equal(a: object, b: object) -> bool:
    """The same kinds of values, and NaN where there is NaN."""
    if isinstance(a, np.ndarray | torch.Tensor):
        same = isinstance(b, type(a)) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return same and (a.tobytes() == b.tobytes() if isinstance(a, np.ndarray) else torch.equal(a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def test_numpy_and_pickle_read_it_and_so_do_we(tmp_path: Path) -> None:
    save_state_file(tmp_path / "x.pdparams", STATE)
    assert equal(pickle.loads((tmp_path / "x.pdparams").read_bytes()), as_numpy(STATE))
    assert equal(load_state_file(tmp_path / "x.pdparams"), STATE)
    save_state_file(tmp_path / "x.pdparams", torch.ones(2))  # replaces it
    assert equal(load_state_file(tmp_path / "x.pdparams"), torch.ones(2))
    assert [path.name for path in tmp_path.iterdir()] == ["x.pdparams"]


ARRAYS = hypothesis.extra.numpy.arrays(
    strategies.sampled_from(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "?", "c8"]),
    hypothesis.extra.numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)
PLAIN = strategies.one_of(
    strategies.none(),
    strategies.booleans(),
    strategies.integers(-(1 << 63), (1 << 63) - 1),
    strategies.text(max_size=20),
)
VALUES = strategies.recursive(
    strategies.one_of(ARRAYS, PLAIN, strategies.floats(allow_nan=False)),
    lambda inner: strategies.one_of(
        strategies.lists(inner, max_size=4),
        strategies.dictionaries(strategies.text("abc", min_size=1, max_size=3), inner, max_size=4),
        strategies.lists(inner, max_size=3).map(tuple).filter(lambda t: not (len(t) == 2 and isinstance(t[0], str))),
    ),
    max_leaves=12,
)


@hypothesis.given(VALUES, strategies.sampled_from([2, 3, 4]))
@hypothesis.example(["", np.zeros(2)], 2)  # as in a tuple, which is how Paddle writes a tensor
@hypothesis.settings(max_examples=150, deadline=None)
def test_any_nested_value_there_and_back(value: object, protocol: int) -> None:
    """pickle writes, we read; we write, pickle reads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(pickle.dumps(value, protocol=protocol))
        found = load_state_file(path)
        assert equal(as_numpy(found), value)
        save_state_file(path, found)
        assert equal(pickle.loads(path.read_bytes()), value)


def test_sixteen_and_eight_bits_as_paddle_stores_them(tmp_path: Path) -> None:
    tensors = {"b": torch.randn(4).bfloat16(), "e4": torch.randn(4).to(torch.float8_e4m3fn)}
    tensors["e5"] = torch.randn(4).to(torch.float8_e5m2)
    save_state_file(tmp_path / "x", tensors)
    found = pickle.loads((tmp_path / "x").read_bytes())
    assert {name: array.dtype.str for name, array in found.items()} == {"b": "<u2", "e4": "|i1", "e5": "|i1"}
    assert all(array.tobytes() == tensors[name].view(torch.uint8).numpy().tobytes() for name, array in found.items())
    assert load_state_file(tmp_path / "x")["b"].dtype == torch.bfloat16


def test_what_paddle_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="tensors and plain values, not set"):
        save_state_file(tmp_path / "x", {"a": {1, 2}})
    for dtype in (torch.uint16, torch.uint32, torch.float8_e8m0fnu):
        with pytest.raises(ValueError, match=f"Paddle has no dtype {dtype}"):
            save_state_file(tmp_path / "x", {"a": torch.zeros(2, dtype=torch.uint8).repeat(8).view(dtype)})
    assert not list(tmp_path.iterdir())
    save_file({"a": torch.zeros(2, dtype=torch.uint16)}, tmp_path / "x.safetensors")
    assert main(["convert", str(tmp_path / "x.safetensors"), str(tmp_path / "out"), "--to", "paddle"]) != 0
    assert not (tmp_path / "out").exists()


def test_a_folder_for_paddle(tmp_path: Path) -> None:
    """Linear weights transposed, a tie under both names, several files, and metadata that say where all are."""
    linear = torch.nn.Linear(3, 2)
    tensors = {"fc.weight": linear.weight.detach(), "fc.bias": linear.bias.detach(), "e": torch.randn(4, 3)}
    save_file({**tensors, "ids": torch.arange(5)}, tmp_path / "x.safetensors")
    (tmp_path / "to_paddle.aoa").write_text("fc.weight^T -> linear.weight\ne -> e\ne -> head.weight\n")
    words = [str(tmp_path / "x.safetensors"), str(tmp_path / "out"), "--to", "paddle", "--max-shard-size", "60B"]
    assert main(["convert", *words, "--aoa", str(tmp_path / "to_paddle.aoa")]) == 0
    expected = {"linear.weight": linear.weight.detach().T, "fc.bias": tensors["fc.bias"], "e": tensors["e"]}
    expected |= {"head.weight": tensors["e"], "ids": torch.arange(5)}
    found = {}
    for file in sorted((tmp_path / "out").glob("*.safetensors")):
        found |= load_file(file)
    assert_same(found, {name: tensor.contiguous() for name, tensor in expected.items()})
    assert_same(open_tensors(tmp_path / "out").read(), found)
    homes = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    metadata = read_metadata(tmp_path / "out" / "flex-ckpt.auto_generated.metadata")
    for name, tensor in expected.items():
        shape, corner = tuple(tensor.shape), (0,) * tensor.dim()
        dtype = str(tensor.dtype).removeprefix("torch.")
        assert metadata.state_dict_metadata[name] == [LocalTensorMetadata(corner, shape, dtype, shape, False, None)]
        assert metadata.storage_metadata[LocalTensorIndex(name, corner, local_shape=shape)] == homes[name]
    assert len(metadata.storage_metadata) == len(expected)


def test_ties_are_written_under_all_names(tmp_path: Path) -> None:
    with open(tmp_path / "x", "wb") as file:
        array = np.arange(6.0)
        pickle.dump({"a": array, "b": array}, file, protocol=4)
    assert main(["convert", str(tmp_path / "x"), str(tmp_path / "out"), "--to", "paddle"]) == 0
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == {"a", "b"}


def test_recorded_metadata_are_read_as_pickle_reads_them() -> None:
    for path in RECORDED.glob("*/*.metadata"):
        metadata = read_metadata(path)
        source = open_tensors(path)
        for name, parts in metadata.state_dict_metadata.items():
            assert source.tensors[name].shape == tuple(parts[0].global_shape)
            assert str(source.tensors[name].dtype) == f"torch.{parts[0].dtype}"
