"""Folders of other writers: the safetensors library, Hugging Face's layout, torch DCP."""

import json
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard as OnDim
from torch.distributed.tensor import distribute_tensor

from oarlock.checkpoint import CheckpointError, Shard, open_tensors, save_checkpoint
from process_group import run_ranks

TENSORS = {
    "a.weight": torch.randn(6, 4),
    "b": torch.randn(3).bfloat16(),
    "scale": torch.randn(2).to(torch.float8_e4m3fn),
    "exponents": torch.tensor([127, 1], dtype=torch.uint8).view(torch.float8_e8m0fnu),
    "ids": torch.arange(5),
    "mask": torch.tensor([True, False]),
    "odd": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "none": torch.empty(0, 3),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def assert_holds(path: Path, expected: dict[str, torch.Tensor]) -> None:
    source = open_tensors(path)
    found = source.read()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert same(found[name].reshape(-1), tensor.reshape(-1)), name
        assert found[name].shape == tensor.shape, name
    rows = Shard.box(torch.zeros(2, 4), (6, 4), (3, 0))
    source.load({"a.weight": rows}, strict="destination")
    assert torch.equal(rows.tensor, expected["a.weight"][3:5])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files with an index, as Hugging Face writes them."""
    names = list(TENSORS)
    for index, part in enumerate((names[:4], names[4:]), 1):
        save_file({name: TENSORS[name] for name in part}, tmp_path / f"model-{index}.safetensors", {"format": "pt"})
    weight_map = {name: f"model-{1 if name in names[:4] else 2}.safetensors" for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tmp_path


def test_one_file(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "any name.safetensors", {"format": "pt", "note": "x"})
    assert_holds(tmp_path, TENSORS)
    assert_holds(tmp_path / "any name.safetensors", TENSORS)
    assert open_tensors(tmp_path).metadata == {"format": "pt", "note": "x"}


def test_several_files_with_and_without_an_index(folder: Path) -> None:
    assert_holds(folder, TENSORS)
    (folder / "model.safetensors.index.json").unlink()
    assert_holds(folder, TENSORS)


def test_our_checkpoints(tmp_path: Path) -> None:
    assert_holds(save_checkpoint(tmp_path, 1, tensors={"model": TENSORS}), TENSORS)


def test_a_name_in_two_files(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    save_file({"b": torch.ones(1)}, folder / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"'b' is in two files, model-1.safetensors and other.safetensors"):
        open_tensors(folder)


def test_a_name_twice_in_one_header(tmp_path: Path) -> None:
    entry = '"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    header = f"{{{entry},{entry}}}".encode()
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\1")
    with pytest.raises(CheckpointError, match="'w' is there twice"):
        open_tensors(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        {"__metadata__": ["format"], "w": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}},
        {"w": {"dtype": "U8", "shape": [True, 2], "data_offsets": [0, 2]}},
        {"w": {"dtype": "U8", "shape": [1 << 70], "data_offsets": [0, 2]}},
        {"w": {"dtype": "U8", "shape": [1 << 31], "data_offsets": [0, 1 << 31]}},
        {"w": {"dtype": "U8", "shape": [2], "data_offsets": [2, 0]}},
        {"w": {"dtype": "U8", "shape": [2]}},
        {"w": None},
    ],
)
def test_headers_that_claim_what_cannot_be(tmp_path: Path, header: dict[str, Any]) -> None:
    """Nothing is allocated for them."""
    raw = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + b"12")
    with pytest.raises(CheckpointError, match=r"m\.safetensors"):
        open_tensors(tmp_path)


@pytest.mark.parametrize("weight_map", [{"w": ""}, {"w": "a\0b"}, {"w": 1}, [], None])
def test_hostile_indices(tmp_path: Path, weight_map: object) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError):
        open_tensors(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="not a readable index"):
        open_tensors(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"folder\.safetensors: cannot be read"):
        open_tensors(tmp_path)


def test_damaged_folders(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    good = index.read_text()
    index.write_text(good.replace('"ids": "model-2', '"ids": "model-1'))
    with pytest.raises(CheckpointError, match=r"holds tensor 'ids', which the index expects in model-1"):
        open_tensors(folder)
    index.write_text(good.replace('"ids": ', '"idz": '))
    with pytest.raises(CheckpointError, match=r"lacks tensor 'idz' of the index \(it has 'ids'\)"):
        open_tensors(folder)
    index.write_text(good.replace("model-2", "../model-2"))
    with pytest.raises(CheckpointError, match=r"names the file '../model-2.safetensors', which is not in its folder"):
        open_tensors(folder)
    index.write_text(good)
    file = folder / "model-2.safetensors"
    raw = file.read_bytes()
    file.write_bytes(raw[:-1])
    with pytest.raises(CheckpointError, match=r"model-2.safetensors: truncated: it ends 1 bytes early"):
        open_tensors(folder).read()
    file.unlink()
    with pytest.raises(CheckpointError, match=r"model-2.safetensors: cannot be read: No such file"):
        open_tensors(folder)
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_tensors(folder / "nowhere")


def test_one_process_of_dcp(tmp_path: Path) -> None:
    state = {"model": {"a.weight": TENSORS["a.weight"], "b": TENSORS["b"], "step": 3}, "more": [TENSORS["ids"], "text"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=tmp_path / "dcp")
    found = open_tensors(tmp_path / "dcp").read()
    expected = {"model.a.weight": TENSORS["a.weight"], "model.b": TENSORS["b"], "more.0": TENSORS["ids"]}
    assert found.keys() == expected.keys()
    assert all(same(found[name], tensor) for name, tensor in expected.items())
    file = tmp_path / "dcp" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"__0_0.distcp: \d+ bytes, but"):
        open_tensors(tmp_path / "dcp").read()


class Evil:
    def __reduce__(self) -> tuple:
        return print, ("code of a stranger runs",)


def test_metadata_of_another_python_and_of_none(tmp_path: Path) -> None:
    """Paths are in `pathlib._local` where Python 3.13 wrote them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"a": torch.arange(3)}, checkpoint_id=tmp_path)
    metadata = tmp_path / ".metadata"
    raw = metadata.read_bytes()
    assert b"\x8c\x07pathlib" in raw
    metadata.write_bytes(
        re.sub(rb"\x95.{8}", b"", raw, count=1, flags=re.DOTALL).replace(b"\x8c\x07pathlib", b"\x8c\x0epathlib._local")
    )
    assert torch.equal(open_tensors(tmp_path).read()["a"], torch.arange(3))
    for hostile in (b"\x80\x04\x95" + b"\xff" * 8, raw[:40], b"\x80\x04" + b"(" * 10, b""):
        metadata.write_bytes(hostile)
        with pytest.raises(CheckpointError, match="not readable"):
            open_tensors(tmp_path)


def test_metadata_with_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match=r"names builtins.print, which DCP does not write"):
        open_tensors(tmp_path)
    assert not capsys.readouterr().out


def save_with_dcp(path: str) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    rows = distribute_tensor(torch.arange(35.0).view(5, 7), mesh, [OnDim(0)])
    columns = distribute_tensor(torch.arange(35.0).view(5, 7), mesh, [OnDim(1)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"rows": rows, "columns": columns}, checkpoint_id=path)
    dist.destroy_process_group()


def test_shards_of_dcp(tmp_path: Path) -> None:
    run_ranks(2, save_with_dcp, tmp_path / "dcp")
    source = open_tensors(tmp_path / "dcp")
    assert len(source.tensors["rows"].pieces) == 2
    assert all(torch.equal(tensor, torch.arange(35.0).view(5, 7)) for tensor in source.read().values())
    part = Shard.box(torch.zeros(3, 3), (5, 7), (1, 2))
    source.load({"rows": part}, strict="destination")
    assert torch.equal(part.tensor, torch.arange(35.0).view(5, 7)[1:4, 2:5])
