"""Directories of FlexCheckpoint that do not hold what their metadata say."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from oarlock.checkpoint import CheckpointError, open_tensors
from oarlock.checkpoint.paddle import save_state_file
from oarlock.checkpoint.paddle.records import LocalTensorIndex, LocalTensorMetadata, Metadata, Record

VALUES = torch.arange(24.0).view(6, 4)


def write_metadata(path: Path, metadata: Record) -> None:
    save_state_file(path, metadata)


def part(
    offset: tuple[int, ...],
    size: tuple[int, ...],
    dtype: str = "float32",
    shape: tuple[int, ...] | None = (6, 4),
    flat: tuple[int, int] | None = None,
) -> LocalTensorMetadata:
    return LocalTensorMetadata(offset, size, dtype, shape, flat is not None, flat)


def home(part: LocalTensorMetadata, name: str = "w", replica: int | None = None) -> LocalTensorIndex:
    flat = part.flattened_range
    return LocalTensorIndex(name, part.global_offset, flat is not None, flat, replica, part.local_shape)


TOP, BOTTOM = part((0, 0), (3, 4)), part((3, 0), (3, 4))
HOMES = {home(TOP): "0_0.distcp", home(BOTTOM): "1_0.distcp"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(2):
        save_state_file(tmp_path / f"{rank}_0.distcp", {"w": VALUES[3 * rank : 3 * rank + 3]})
    write_metadata(tmp_path / "0.metadata", Metadata({"w": [TOP, BOTTOM]}, HOMES, None))
    return tmp_path


def test_as_paddle_writes_it(folder: Path) -> None:
    assert torch.equal(open_tensors(folder).read()["w"], VALUES)
    parts = [part((0, 0), (3, 4), shape=None), part((3, 0), (3, 4), shape=None)]  # of older versions
    write_metadata(folder / "0.metadata", Metadata({"w": parts}, HOMES, None))
    assert torch.equal(open_tensors(folder).read()["w"], VALUES)


@pytest.mark.parametrize(
    ("parts", "homes", "problem"),
    [
        ([TOP], HOMES, r"not there exactly once: 12 of 24 elements of \[6, 4\] are there"),
        ([TOP, BOTTOM, part((2, 0), (3, 4))], {**HOMES, home(part((2, 0), (3, 4))): "0_0.distcp"}, "overlap"),
        ([part((0, 0), (6, 4), flat=(0, 12)), part((0, 0), (6, 4), flat=(11, 23))], None, "overlap"),
        ([part((0, 0), (6, 4), flat=(0, 12)), part((0, 0), (6, 4), flat=(13, 25))], None, "not inside of a tensor"),
        ([part((0, 0), (6, 4), flat=(0, 12))], None, "12 of 24 elements"),
        ([TOP, part((4, 0), (3, 4))], {**HOMES, home(part((4, 0), (3, 4))): "1_0.distcp"}, "lies outside of the shape"),
        ([TOP, BOTTOM], {home(TOP): "0_0.distcp"}, r"no file has the part at \[3, 0\]"),
        ([part((0, 0), (3, 4), "float12")], HOMES, "has no dtype 'float12'"),
        ([part((0, 0), (3, 4), "load")], HOMES, "has no dtype 'load'"),
        ([part((0, 0), (3, 4), "int32"), BOTTOM], HOMES, "different dtypes"),
        ([part((0, 0), (3, 4), "int32"), part((3, 0), (3, 4), "int32")], HOMES, "instead of torch.int32"),
        ([part((0, 0), (3, 4), shape=(7, 4)), BOTTOM], HOMES, "belong to different shapes"),
        ([part((0,), (12,)), BOTTOM], HOMES, "a part of shape"),
        ([], HOMES, "it has no parts"),
        ([TOP, BOTTOM], {home(TOP): "../0_0.distcp", home(BOTTOM): "1_0.distcp"}, "'../0_0.distcp', which is not in"),
        ([TOP, BOTTOM], {home(TOP): "/etc/passwd", home(BOTTOM): "1_0.distcp"}, "'/etc/passwd', which is not in"),
        ([TOP, BOTTOM], {home(TOP): "none.distcp", home(BOTTOM): "1_0.distcp"}, "none.distcp: cannot be read"),
    ],
)  # fmt: skip
def test_metadata_that_do_not_fit(
    folder: Path, parts: list[LocalTensorMetadata], homes: dict[LocalTensorIndex, str] | None, problem: str
) -> None:
    where = {home(part): f"{rank}_0.distcp" for rank, part in enumerate(parts)} if homes is None else homes
    write_metadata(folder / "0.metadata", Metadata({"w": parts}, where, None))
    with pytest.raises(CheckpointError, match=problem):
        open_tensors(folder)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"global_offset": (0, -1)}, "a LocalTensorMetadata whose global_offset is a tuple"),
        ({"global_offset": (0,) * 10}, "a LocalTensorMetadata whose global_offset is a tuple"),
        ({"local_shape": [3, 4]}, "a LocalTensorMetadata whose local_shape is a list"),
        ({"dtype": None}, "a LocalTensorMetadata whose dtype is None"),
        ({"is_flattened": 1}, "a LocalTensorMetadata whose is_flattened is 1"),
        ({"flattened_range": (3, 2)}, "a LocalTensorMetadata whose flattened_range is a tuple"),
    ],
)
def test_records_with_other_fields(folder: Path, changes: dict[str, object], problem: str) -> None:
    fields = {"global_offset": (0, 0), "local_shape": (3, 4), "dtype": "float32", "global_shape": (6, 4)}
    fields |= {"is_flattened": False, "flattened_range": None}
    wrong = LocalTensorMetadata(**{**fields, **changes})  # type: ignore[arg-type]
    write_metadata(folder / "0.metadata", Metadata({"w": [wrong, BOTTOM]}, HOMES, None))
    with pytest.raises(CheckpointError, match=problem):
        open_tensors(folder)


def test_metadata_that_are_something_else(folder: Path) -> None:
    shutil.copy(folder / "0_0.distcp", folder / "0.metadata")
    with pytest.raises(CheckpointError, match=r"0.metadata: holds no metadata of FlexCheckpoint"):
        open_tensors(folder)
    write_metadata(folder / "0.metadata", Metadata({"w": 3}, {}, None))  # type: ignore[dict-item]
    with pytest.raises(CheckpointError, match=r"a Metadata whose state_dict_metadata is a dict"):
        open_tensors(folder)


@pytest.mark.parametrize("offsets", [[0, 1 << 40], [-48, 0], [48, 96], [0, 44]])
def test_safetensors_with_other_offsets(folder: Path, offsets: list[int]) -> None:
    write_metadata(folder / "0.metadata", Metadata({"w": [TOP]}, {home(TOP): "0_0.safetensors"}, None))
    header = json.dumps({"w": {"dtype": "F32", "shape": [3, 4], "data_offsets": offsets}}).encode()
    (folder / "0_0.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(48))
    with pytest.raises(CheckpointError, match=r"entry of tensor 'w' is malformed|an array of shape \[3, 4\] with"):
        open_tensors(folder)


def test_bits_of_bfloat16_as_other_writers_keep_them(folder: Path) -> None:
    """numpy's safetensors has no bfloat16; such files have uint16, and the metadata know better."""
    values = torch.randn(3, 4).bfloat16()
    save_file({"w": values.view(torch.uint16)}, folder / "0_0.safetensors")
    whole = part((0, 0), (3, 4), "bfloat16", (3, 4))
    write_metadata(folder / "0.metadata", Metadata({"w": [whole]}, {home(whole): "0_0.safetensors"}, None))
    assert torch.equal(open_tensors(folder).read()["w"], values)
