"""Checkpoints return every bit of what was saved, in the layout that docs/checkpoints.md describes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from oarlock.checkpoint import (
    CheckpointError,
    Shard,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e8m0fnu),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    torch.bool,
]
SHAPES = [(), (0,), (1,), (3, 0, 2), (5, 7), (2, 1, 3)]


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == torch.bool:
        return torch.from_numpy(rng.integers(0, 2, shape).astype(bool))
    raw = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def bits(tensor: Tensor) -> list[int]:
    return tensor.cpu().contiguous().reshape(-1).clone().view(torch.uint8).tolist()


def assert_same(loaded: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    assert list(loaded) == list(saved)
    for name, tensor in saved.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert loaded[name].shape == tensor.shape, name
        assert loaded[name].is_contiguous(), name
        assert bits(loaded[name]) == bits(tensor), name


def test_smallest(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    path = save_checkpoint(root, 120, tensors={"model": {"w": torch.ones(2, 3)}}, state={"loss": 0.5})
    assert path == root / "step-00000120"
    assert sorted(p.name for p in path.iterdir()) == ["model.safetensors", "oarlock.json"]
    assert sorted(p.name for p in path.parent.iterdir()) == ["step-00000120"]
    checkpoint = load_checkpoint(path)
    assert (checkpoint.path, checkpoint.step, checkpoint.world_size) == (path, 120, 1)
    assert checkpoint.state == {"loss": 0.5}
    assert checkpoint.groups() == ["model"]
    assert checkpoint.names("model") == ["w"]
    assert torch.equal(checkpoint.tensors("model")["w"], torch.ones(2, 3))
    assert latest_checkpoint(path.parent) == path


def test_every_dtype_and_shape(tmp_path: Path, device: torch.device) -> None:
    tensors = {
        f"{dtype}.{shape}": random_bits(shape, dtype, seed).to(device)
        for seed, (dtype, shape) in enumerate((dtype, shape) for dtype in DTYPES for shape in SHAPES)
    }
    path = save_checkpoint(tmp_path, 0, tensors={"all": tensors})
    assert_same(load_checkpoint(path).tensors("all"), tensors)
    loaded = load_checkpoint(path).tensors("all", device=device)
    assert {tensor.device.type for tensor in loaded.values()} == {device.type}


@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    sizes=st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES)), max_size=12),
    limit=st.integers(1, 400),
)
def test_any_group_in_any_number_of_files(tmp_path_factory: pytest.TempPathFactory, data, sizes, limit) -> None:
    text = st.text(max_size=8).filter(lambda s: s != "__metadata__")
    names = data.draw(st.lists(text, min_size=len(sizes), max_size=len(sizes), unique=True))
    values = [random_bits(shape, dtype, seed) for seed, (dtype, shape) in enumerate(sizes)]
    tensors = dict(zip(names, values, strict=True))
    path = save_checkpoint(tmp_path_factory.mktemp("c"), 1, tensors={"g": tensors}, max_shard_bytes=limit)
    checkpoint = load_checkpoint(path)
    assert_same(checkpoint.tensors("g"), tensors)
    for name in names:
        assert_same(checkpoint.tensors("g", names=[name]), {name: tensors[name]})


def test_strides_do_not_matter(tmp_path: Path) -> None:
    tensor = torch.randn(6, 8)
    value = torch.randn(3, dtype=torch.complex64)
    tensors = {
        "transposed": tensor.t(),
        "strided": tensor[::2, 1::3],
        "expanded": tensor[:1].expand(4, 8),
        "conjugate": value.conj(),
        "negative": value.conj().imag,
        "parameter": nn.Parameter(tensor[3:, 2]),
    }
    path = save_checkpoint(tmp_path, 1, tensors={"g": tensors})
    expected = {name: tensor.detach().resolve_conj().resolve_neg() for name, tensor in tensors.items()}
    assert_same(load_checkpoint(path).tensors("g"), expected)


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50, bias=False))
    model[1].weight = model[0].weight
    tensors = {**model.state_dict(), "same values": model[0].weight.detach().clone(), "part": model[0].weight[:50]}
    path = save_checkpoint(tmp_path, 1, tensors={"model": tensors})
    assert (path / "model.safetensors").stat().st_size < 2 * 50 * 16 * 4 + 1000
    loaded = load_checkpoint(path).tensors("model")
    assert_same(loaded, tensors)
    assert loaded["0.weight"] is loaded["1.weight"]
    assert loaded["part"] is loaded["0.weight"], "a slice of all rows is the same memory"
    assert loaded["same values"] is not loaded["0.weight"]
    [only] = load_checkpoint(path).tensors("model", names=["1.weight"]).values()
    assert torch.equal(only, model[0].weight)


def test_views_that_only_overlap_are_not_tied(tmp_path: Path) -> None:
    qkv = torch.randn(12, 4)
    tensors = {"qkv": qkv, "q": qkv[:4], "t": qkv.t(), "bits": qkv.view(torch.int32), "e1": qkv[:0], "e2": qkv[:0]}
    path = save_checkpoint(tmp_path, 1, tensors={"g": tensors})
    loaded = load_checkpoint(path).tensors("g")
    assert_same(loaded, tensors)
    assert len({id(t) for t in loaded.values()}) == len(tensors)


def test_a_tensor_called_like_a_part_of_another(tmp_path: Path) -> None:
    """Files call the rows 2 and 3 of `w` `w@2,0`: a tensor of that name would take their place."""
    halves = Shard.blocks(torch.arange(8.0).view(4, 2), (4, 2), 0, [(2, 4), (0, 2)])
    with pytest.raises(ValueError, match="'w@2,0' is what a file calls a part of 'w'"):
        save_checkpoint(tmp_path, 1, tensors={"m": {"w": halves, "w@2,0": torch.ones(2, 2)}})
    path = save_checkpoint(tmp_path, 1, tensors={"m": {"w": halves, "w@4,0": torch.ones(2, 2)}})
    assert load_checkpoint(path).tensors("m")["w@4,0"].sum() == 4
    whole = {"w": torch.zeros(4, 2), "w@2,0": torch.ones(2, 2)}
    path = save_checkpoint(tmp_path, 2, tensors={"m": whole})
    assert torch.equal(load_checkpoint(path).tensors("m")["w"], whole["w"])


def test_other_safetensors_readers_read_it(tmp_path: Path) -> None:
    tensors = {f"layers.{i}.weight": torch.randn(4, 4).to(torch.bfloat16 if i % 2 else torch.float32) for i in range(5)}
    path = save_checkpoint(tmp_path, 1, tensors={"model": tensors, "other": tensors}, max_shard_bytes=100)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    assert set(index["weight_map"]) == set(tensors)
    assert all(f.startswith("model-0000") and f.endswith("-of-00003.safetensors") for f in index["weight_map"].values())
    for name, file in index["weight_map"].items():
        with safe_open(path / file, "pt") as reader:
            assert reader.metadata() == {"format": "pt"}
            assert torch.equal(reader.get_tensor(name), tensors[name])
    whole = save_checkpoint(tmp_path, 2, tensors={"model": {**tensors, "c": torch.ones(2, dtype=torch.complex128)}})
    library = load_file(whole / "model.safetensors")
    assert torch.equal(library.pop("c").view(torch.complex128), torch.ones(2, dtype=torch.complex128))
    assert {n: bits(t) for n, t in library.items()} == {n: bits(t) for n, t in tensors.items()}


def test_data_is_aligned_and_without_gaps(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3).to(torch.int8), "b": torch.ones(3).double(), "c": torch.ones(1).bfloat16()}
    raw = (save_checkpoint(tmp_path, 1, tensors={"g": tensors}) / "g.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert (8 + length) % 64 == 0
    offsets = sorted(header[name]["data_offsets"] for name in tensors)
    assert [o[0] for o in offsets[1:]] == [o[1] for o in offsets[:-1]]
    assert all(header[name]["data_offsets"][0] % t.element_size() == 0 for name, t in tensors.items())
    assert 8 + length + offsets[-1][1] == len(raw)


def test_state_survives_exactly(tmp_path: Path) -> None:
    state = {
        "floats": [0.1, 1e-320, -0.0, 3.141592653589793, float("inf"), float("-inf")],
        "ints": [2**200, -1, 0],
        "text": '中文 \u2028 "quoted" \\ \x00',
        "nested": {"none": None, "true": True, "empty": [{}, []]},
        '0000000000000000"\n}\n': '"digest": "0000000000000000"\n}\n',
    }
    path = save_checkpoint(tmp_path, 1, tensors={}, state=state, rank_state={"rank": state})
    checkpoint = load_checkpoint(path)
    assert checkpoint.state == state
    assert str(checkpoint.state["floats"]) == str(state["floats"])
    assert checkpoint.rank_state(0) == {"rank": state}
    nan = load_checkpoint(save_checkpoint(tmp_path, 2, tensors={}, state=float("nan"))).state
    assert nan != nan


def test_state_of_a_rank_and_extra_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    path = save_checkpoint(
        tmp_path,
        3,
        tensors={"model": {}},
        rank_tensors={"rng": {"torch": torch.arange(4)}},
        files={"config.json": b'{"a": 1}', "tokenizer.json": tmp_path / "tokenizer.json"},
    )
    checkpoint = load_checkpoint(path)
    assert checkpoint.tensors("model") == {}
    assert checkpoint.rank_state(0) is None
    assert checkpoint.groups(rank=0) == ["rng"]
    assert torch.equal(checkpoint.tensors("rng", rank=0)["torch"], torch.arange(4))
    assert checkpoint.file("config.json").read_bytes() == b'{"a": 1}'
    assert checkpoint.file("tokenizer.json").read_text() == "{}"
    with pytest.raises(ValueError, match=r"saved by 1 ranks and has no state for rank 1"):
        checkpoint.rank_state(1)
    with pytest.raises(ValueError, match=r"no file 'confg.json'; did you mean 'config.json'"):
        checkpoint.file("confg.json")
    with pytest.raises(ValueError, match=r"no group of tensors 'modle'; did you mean 'model'"):
        checkpoint.tensors("modle")
    with pytest.raises(ValueError, match=r"no tensor 'numpy'; it has: torch"):
        checkpoint.tensors("rng", rank=0, names=["numpy"])


def test_keep_last(tmp_path: Path) -> None:
    def save(step: int, keep_last: int | None) -> list[int]:
        save_checkpoint(tmp_path, step, tensors={"g": {"w": torch.full((2,), step)}}, keep_last=keep_last)
        assert all(name.startswith("step-") for name in (p.name for p in tmp_path.iterdir()))
        return [int(p.name.removeprefix("step-")) for p in list_checkpoints(tmp_path)]

    assert [save(step, None) for step in (9, 10, 100)][-1] == [9, 10, 100]
    assert save(101, 3) == [10, 100, 101]
    assert save(200, 1) == [200]
    assert save(150, 1) == [150, 200], "a later step belongs to another timeline; the one just saved is never deleted"
    assert save(160, 2) == [150, 160, 200]
    assert save(123456789012, 9)[-1] == 123456789012


def test_a_step_is_refused_twice_unless_asked(tmp_path: Path) -> None:
    first = save_checkpoint(tmp_path, 5, tensors={"g": {"w": torch.zeros(1)}}, files={"only-in-the-first": b"x"})
    with pytest.raises(CheckpointError, match=r"a checkpoint of step 5 exists; pass overwrite=True"):
        save_checkpoint(tmp_path, 5, tensors={"g": {"w": torch.ones(1)}})
    assert load_checkpoint(first).tensors("g")["w"] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000005"]
    second = save_checkpoint(tmp_path, 5, tensors={"g": {"w": torch.ones(1)}}, overwrite=True)
    assert second == first
    assert load_checkpoint(second).tensors("g")["w"] == 1
    assert not (second / "only-in-the-first").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000005"]


def test_listing(tmp_path: Path) -> None:
    assert list_checkpoints(tmp_path / "nowhere") == []
    assert latest_checkpoint(tmp_path / "nowhere") is None
    for name in ("step-00000002", "step-00000010", "step-00000010.1", ".tmp-step-00000011-0", "step-x", "notes"):
        (tmp_path / name).mkdir()
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000010.1"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"step": -1}, ValueError, "step must be an integer >= 0, got -1"),
        ({"step": 1.0}, ValueError, "got 1.0"),
        ({"keep_last": 0}, ValueError, "keep_last must be None or >= 1, got 0"),
        ({"max_shard_bytes": 0}, ValueError, "max_shard_bytes"),
        ({"state": {"a": [1, {2: 3}]}}, TypeError, r"state\['a'\]\[1\] has the key 2"),
        ({"state": {"w": torch.ones(1)}}, TypeError, r"state\['w'\] is a Tensor, which JSON cannot hold; pass tensors"),
        ({"rank_state": [np.float32(1)]}, TypeError, r"rank_state\[0\] is a float32"),
        ({"tensors": {"a/b": {}}}, ValueError, "group of tensors 'a/b' must be letters"),
        ({"tensors": {"g": {"__metadata__": torch.ones(1)}}}, ValueError, "reserved by safetensors"),
        ({"tensors": {"g": {"m": torch.ones(1, device="meta")}}}, ValueError, "meta tensor has no data"),
        ({"tensors": {"g": {"s": torch.eye(2).to_sparse()}}}, TypeError, "dense"),
        ({"tensors": {"g": {"\ud800": torch.ones(1)}}}, ValueError, "a text in Unicode, got '.ud800'"),
        ({"tensors": {"g": {0: torch.ones(1)}}}, ValueError, "a text in Unicode, got 0"),
        ({"files": {"rank-0.json": b""}, "rank_state": 1}, ValueError, r"'rank-0\.json' is where `rank_state` is kept"),
        ({"files": {"../x": b""}}, ValueError, r"file '\.\./x'"),
        ({"files": {"oarlock.json": b""}}, ValueError, r"oarlock\.json"),
        ({"files": {"g.safetensors": b""}, "tensors": {"g": {}}}, CheckpointError, r"File exists \(g.safetensors\)"),
        ({"files": {"x": "/nowhere/x"}}, CheckpointError, r"No such file or directory \(x\)"),
    ],
)
def test_what_cannot_be_saved_leaves_nothing(tmp_path: Path, arguments: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        save_checkpoint(tmp_path, **{"step": 1, "tensors": {"model": {"w": torch.ones(3)}}, **arguments})
    assert list(tmp_path.iterdir()) == []
