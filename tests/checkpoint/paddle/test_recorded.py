"""Files that PaddlePaddle 3.3.1 wrote (see record.py), against what safetensors' own code says they hold."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from oarlock.checkpoint import CheckpointError, Shard, open_tensors
from oarlock.cli.main import main

RECORDED = Path(__file__).parent / "recorded"
FILES = {
    **{f"model{protocol}.pdparams": "model" for protocol in (2, 3, 4)},
    **{f"optimizer{protocol}.pdopt": "optimizer" for protocol in (2, 3, 4)},
    **{f"everything{protocol}.pdparams": "everything" for protocol in (2, 4)},
    **{f"empty{protocol}.pdparams": "empty" for protocol in (2, 4)},
    "half.pdparams": "half",
    "half.pdopt": "half-optimizer",
    "one.pdtensor": "one",
    "static.pdtensor": "static",
    "flex-distcp": "flex",
    "flex-safetensors": "flex",
    "flex-dtypes-distcp": "flex-dtypes",
    "flex-dtypes-safetensors": "flex-dtypes",
    "flex-numbers/0.metadata": "flex-number-0",
    "flex-numbers/10.metadata": "flex-number-10",
    "flex-numbers": "flex-number-10",
    "ranks": "ranks",
    "ranks-copies": "copies",
    "ranks-safetensors": "ranks",
}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """The same names, dtypes, shapes and bits."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def expected(directory: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(directory / "expected" / f"{FILES[name]}.safetensors")


@pytest.mark.parametrize("name", FILES)
def test_tensors_are_those_that_paddle_saved(name: str) -> None:
    assert_same(open_tensors(RECORDED / name).read(), expected(RECORDED, name))


@pytest.mark.parametrize("name", FILES)
def test_converted_to_a_hugging_face_folder(name: str, tmp_path: Path) -> None:
    assert main(["inspect", str(RECORDED / name), "--json"]) == 0
    assert main(["convert", str(RECORDED / name), str(tmp_path / "hf"), "--max-shard-size", "300B"]) == 0
    assert_same(
        open_tensors(tmp_path / "hf").read(), expected(RECORDED, name) if name[:5] != "every" else without_tie()
    )


def without_tie() -> dict[str, torch.Tensor]:
    """paddle.save stores a tensor once that is in two places of a nested value, and so does convert."""
    tensors = expected(RECORDED, "everything2.pdparams")
    return {name: tensor for name, tensor in tensors.items() if name != "twice.1" and not name.startswith("twice.0")}


def test_other_values_are_metadata() -> None:
    found = open_tensors(RECORDED / "everything2.pdparams").metadata
    values = {"nested.list.1": 3, "nested.list.2": "text", "nested.list.3": None, "nested.list.4": 1.5, "number": 0.5}
    assert {name: json.loads(text) for name, text in found.items()} == {**values, "nested.list.5": True}
    schedule = open_tensors(RECORDED / "optimizer4.pdopt").metadata
    assert json.loads(schedule["LR_Scheduler.last_epoch"]) == 3
    names = open_tensors(RECORDED / "model4.pdparams").metadata
    assert json.loads(names["StructuredToParameterName@@.up.weight"]).startswith("linear_")


@pytest.mark.parametrize("name", ["ranks", "ranks-safetensors"])
def test_other_ranks_read_their_parts(name: str) -> None:
    whole = expected(RECORDED, name)
    for rank in range(3):
        wanted = {
            "rows": Shard.box(torch.empty(5, 2), (5, 4), (0, min(rank, 2))),
            "flat": Shard.flat(torch.empty(8), (6, 4), 8 * rank),
            "both": Shard.box(torch.empty(3, 3), (3, 8), (0, 2 * rank)),
        }
        open_tensors(RECORDED / name).load(wanted, strict="destination")
        assert torch.equal(wanted["rows"].tensor, whole["rows"][:, min(rank, 2) : min(rank, 2) + 2])
        assert torch.equal(wanted["flat"].tensor, whole["flat"].flatten()[8 * rank : 8 * rank + 8])
        assert torch.equal(wanted["both"].tensor, whole["both"][:, 2 * rank : 2 * rank + 3])


def test_a_copy_serves_where_a_file_is_missing(tmp_path: Path) -> None:
    for name in ("ranks", "ranks-copies"):
        for rank in range(2):
            shutil.copytree(RECORDED / name, tmp_path / f"{name}{rank}")
            (tmp_path / f"{name}{rank}" / f"{rank}_0.distcp").unlink()
    for rank in range(2):
        assert_same(open_tensors(tmp_path / f"ranks-copies{rank}").read(), expected(RECORDED, "ranks-copies"))
        with pytest.raises(CheckpointError, match=rf"{rank}_0.distcp: cannot be read: No such file"):
            open_tensors(tmp_path / f"ranks{rank}")


def test_files_of_another_save_than_the_metadata(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "ranks", tmp_path / "x")
    shutil.copy(RECORDED / "flex-numbers" / "0_0.distcp", tmp_path / "x" / "0_0.distcp")
    with pytest.raises(CheckpointError, match=r"tensor 'rows': 0_0.distcp does not hold it; the files are of another"):
        open_tensors(tmp_path / "x")
    shutil.copy(RECORDED / "ranks" / "1_0.distcp", tmp_path / "x" / "0_0.distcp")
    with pytest.raises(CheckpointError, match=r"0_0.distcp holds torch.float32 \[2, 4\] instead of .* \[3, 4\]"):
        open_tensors(tmp_path / "x")


def test_folders_of_state_files(tmp_path: Path) -> None:
    """One file; the model's beside others; several with an index, which may be wrong; several without."""
    one, beside, several = tmp_path / "one", tmp_path / "beside", tmp_path / "several"
    for folder in (one, beside, several):
        folder.mkdir()
    shutil.copy(RECORDED / "model4.pdparams", one / "any.pdparams")
    shutil.copy(RECORDED / "model3.pdparams", beside / "model_state.pdparams")
    shutil.copy(RECORDED / "everything4.pdparams", beside / "scheduler.pdparams")
    for folder in (one, beside):
        assert_same(open_tensors(folder).read(), expected(RECORDED, "model4.pdparams"))
    names = ["a.pdparams", "b.pdparams"]
    shutil.copy(RECORDED / "model4.pdparams", several / names[0])
    shutil.copy(RECORDED / "everything4.pdparams", several / names[1])
    with pytest.raises(CheckpointError, match=r"several files without an index \(a.pdparams, b.pdparams\); open one"):
        open_tensors(several)
    weight_map = {"up.weight": names[0], "up.bias": names[0], "int64": names[1]}
    index = several / "model_state.pdparams.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    both = expected(RECORDED, "model4.pdparams") | expected(RECORDED, "everything4.pdparams")
    assert_same(open_tensors(several).read(), {name: both[name] for name in weight_map})
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"up.weight": names[1]}}))
    with pytest.raises(CheckpointError, match=r"b.pdparams lacks tensor 'up.weight' of the index"):
        open_tensors(several)


def test_metadata_of_hugging_face_folders_are_not_weights(tmp_path: Path) -> None:
    shutil.copy(RECORDED / "ranks" / "0.metadata", tmp_path / "flex-ckpt.auto_generated.metadata")
    with pytest.raises(CheckpointError, match="holds metadata of FlexCheckpoint and no tensors; open its folder"):
        open_tensors(tmp_path / "flex-ckpt.auto_generated.metadata")
    with pytest.raises(CheckpointError, match=r"has no .safetensors file"):
        open_tensors(tmp_path)


def test_safetensors_whose_header_length_begins_like_a_pickle(tmp_path: Path) -> None:
    for length in (0x0280, 0x10480):
        header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode().ljust(length)
        (tmp_path / "x").write_bytes(length.to_bytes(8, "little") + header + b"\7")
        assert open_tensors(tmp_path / "x").read()["a"].tolist() == [7]
