"""Every damage is noticed, named, and never papered over."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oarlock.checkpoint import CheckpointError, latest_checkpoint, load_checkpoint, save_checkpoint
from oarlock.digest import Digest64

FILES = ["model.safetensors", "rng-rank-0.safetensors", "rank-0.json", "config.json", "oarlock.json"]


def save(root: Path, step: int) -> Path:
    return save_checkpoint(
        root,
        step,
        tensors={"model": {"w": torch.randn(30, 5), "b": torch.randn(7).bfloat16()}},
        state={"loss": 0.1, "text": "x" * 50},
        rank_tensors={"rng": {"torch": torch.arange(64, dtype=torch.uint8)}},
        rank_state={"position": 7},
        files={"config.json": b"{}"},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(tmp_path, 1)


def reseal(path: Path) -> None:
    """Give an edited manifest a right digest again, as a careful person with an editor could."""
    file = path / "oarlock.json"
    blank = re.sub(rb'"digest": "[0-9a-f]{16}"\n}\n\Z', b'"digest": "0000000000000000"\n}\n', file.read_bytes())
    file.write_bytes(blank[:-20] + Digest64().update(blank).hexdigest().encode() + blank[-4:])


def test_resealing_is_the_format(path: Path) -> None:
    before = (path / "oarlock.json").read_bytes()
    reseal(path)
    assert (path / "oarlock.json").read_bytes() == before


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FILES), where=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_any_changed_byte_is_detected(path: Path, name: str, where: float, mask: int) -> None:
    file = path / name
    intact = file.read_bytes()
    position = int(where * len(intact))
    file.write_bytes(intact[:position] + bytes([intact[position] ^ mask]) + intact[position + 1 :])
    try:
        with pytest.raises(CheckpointError, match=re.escape(name)):
            load_checkpoint(path)
    finally:
        file.write_bytes(intact)
    load_checkpoint(path)


def test_every_byte_of_the_manifest_counts(path: Path) -> None:
    file = path / "oarlock.json"
    intact = file.read_bytes()
    for position in range(len(intact)):
        changed = bytes([intact[position] ^ 32])  # changes the case of a letter, also of a hexadecimal digit
        file.write_bytes(intact[:position] + changed + intact[position + 1 :])
        with pytest.raises(CheckpointError, match=r"oarlock\.json"):
            load_checkpoint(path)


@pytest.mark.parametrize("name", FILES[:-1])
@pytest.mark.parametrize("verify", [True, False])
def test_truncated_longer_and_missing_files(path: Path, name: str, verify: bool) -> None:
    file = path / name
    intact = file.read_bytes()
    for content in (intact[:-1], intact[: len(intact) // 2], b"", intact + b"\n"):
        file.write_bytes(content)
        expected = re.escape(f"{file}: expected {len(intact)} bytes, found {len(content)}; restore")
        with pytest.raises(CheckpointError, match=expected):
            load_checkpoint(path, verify=verify)
    file.unlink()
    with pytest.raises(CheckpointError, match=re.escape(f"{file}: No such file or directory, expected {len(intact)}")):
        load_checkpoint(path, verify=verify)


def test_truncated_longer_and_missing_manifest(path: Path) -> None:
    file = path / "oarlock.json"
    intact = file.read_bytes()
    for content in (intact[:-2], intact[: len(intact) // 2], b"", b"\x80\xff", b"[]", intact + b"}"):
        file.write_bytes(content)
        for verify in (True, False):
            with pytest.raises(CheckpointError, match=re.escape(f"{file}: ")):
                load_checkpoint(path, verify=verify)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"oarlock\.json is missing, so this is no complete"):
        load_checkpoint(path, verify=False)


def test_digest_message_names_expected_and_found(path: Path) -> None:
    file = path / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    expected = json.loads((path / "oarlock.json").read_text())["files"]["model.safetensors"]["digest"]
    found = Digest64().update(raw).hexdigest()
    with pytest.raises(CheckpointError, match=f"expected digest {expected}, found {found}; restore"):
        load_checkpoint(path)
    load_checkpoint(path, verify=False)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 2', '"version": 3', r"expected format version 2, found 3; read it with the version"),
        ('"oarlock-checkpoint"', '"other"', "expected the format 'oarlock-checkpoint', found 'other'"),
        ('"step": 1', '"step": "one"', "malformed.*'one'"),
        ('"world_size": 1', '"world_size": 2', "1 ranks' tensors, expected 2"),
        ('"file": "model.safetensors"', '"file": "../../etc/passwd"', "malformed.*letters"),
        ('"file": "model.safetensors"', '"file": "other.safetensors"', "no file for tensor 'w' of group 'model'"),
        ('"config.json": {"bytes"', '"config.json": {"size"', "malformed"),
        ('"tensors": {', '"nothing": {', "malformed.*tensors"),
        ('"shape": [30, 5]', '"shape": [-30, -5]', r"malformed.*a tensor of shape \[-30, -5\]"),
        ('"shape": [30, 5]', '"shape": [1e400]', "malformed.*infinity"),
        ('"shape": [30, 5]', '"shape": [4294967296, 4294967296]', "malformed.*a tensor of shape"),
        ('"state": {', '"state": ' + "[" * 100_000 + "{", "not readable as JSON .maximum recursion"),
    ],
)
def test_edited_manifests(path: Path, old: str, new: str, message: str) -> None:
    file = path / "oarlock.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path, verify=False)
    reseal(path)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path)


def test_an_edited_state_needs_verify_off(path: Path) -> None:
    file = path / "oarlock.json"
    file.write_text(file.read_text().replace('"loss": 0.1', '"loss": 0.3'))
    with pytest.raises(CheckpointError, match=r"was edited .then verify=False reads it as it is"):
        load_checkpoint(path)
    assert load_checkpoint(path, verify=False).state["loss"] == 0.3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"dtype": "float32", "shape": [30, 5]', '"dtype": "float32", "shape": [5, 30]', r"expected F32 \[5, 30\]"),
        ('"dtype": "float32", "shape": [30, 5]', '"dtype": "int32", "shape": [30, 5]', r"expected I32 \[30, 5\]"),
        ('"w": {', '"v": {', "tensor 'v'.*header says None"),
        ('"dtype": "float32", "shape": [30, 5]', '"dtype": "float33", "shape": [30, 5]', "'w': .*no dtype 'float33'"),
        ('"dtype": "float32", "shape": [30, 5]', '"dtype": "qint32", "shape": [30, 5]', "'w': .*no dtype 'qint32'"),
        ('"dtype": "float32", "shape": [30, 5]', '"dtype": "float32", "shape": [300000000000, 5]', "expected F32"),
    ],
)
def test_manifest_and_tensor_file_must_agree(path: Path, old: str, new: str, message: str) -> None:
    file = path / "oarlock.json"
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path, verify=False).tensors("model")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (
            ("programs", "model", "tensors", "w", "shape"),
            [2, 4],
            r"makes 'v' float32 \[4, 2\]; stored is float32 \[3, 2\]",
        ),
        (("programs", "model", "tensors", "w", "dtype"), "int8", "makes 'v' int8"),
        (("programs", "model", "aoa"), "w -> u", r"makes 'u' float32 \[2, 3\]; stored is None"),
        (("programs", "model", "aoa"), "w -> ", "expected the name of a tensor"),
        (("programs", "model", "tensors", "w"), {"same_as": "x"}, "malformed.*'w' of a program"),
        (("tensors", "model", "v", "shape"), [6], r"makes 'v' float32 \[3, 2\]; stored is float32 \[6\]"),
        (("tensors", "model"), {}, "stored is None"),
    ],
)
def test_a_program_must_make_what_is_stored(tmp_path: Path, place: tuple[str, ...], value: Any, message: str) -> None:
    path = save_checkpoint(tmp_path, 1, tensors={"model": {"w": torch.ones(2, 3)}}, hf={"model": "w^T -> v"})
    content = inner = json.loads((path / "oarlock.json").read_text())
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (path / "oarlock.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path, verify=False).tensors("model")


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"\xff" * 8 + raw[8:],
        lambda raw: raw[:8] + b"[" + raw[9:],
        lambda raw: raw[:8] + b"\xff" * (len(raw) - 8),
        lambda raw: raw.replace(b'"data_offsets":[0,600]', b'"data_offsets":[0,599]'),
        lambda raw: raw.replace(b'"data_offsets":[0,600]', b'"data_offsets":[-9,59]'),
        lambda raw: raw.replace(b'"data_offsets":[0,600]', b'"data_offsets":[""]   '),
        lambda raw: raw[:8] + b"[" * (len(raw) - 8),
    ],
)
def test_hostile_headers_without_verification(path: Path, damage) -> None:
    file = path / "model.safetensors"
    raw = file.read_bytes()
    damaged = damage(raw)
    assert damaged != raw
    assert len(damaged) == len(raw)
    file.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_checkpoint(path, verify=False).tensors("model")


def test_a_file_that_shrinks_after_opening(path: Path) -> None:
    checkpoint = load_checkpoint(path)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=r"truncated: it ends 3 bytes early"):
        checkpoint.tensors("model")


def test_wrong_places(tmp_path: Path, path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds several checkpoints; give one of them, such as .*step-00000001"):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"no such directory; .* has step-00000001"):
        load_checkpoint(tmp_path / "step-00000002")
    (tmp_path / "step-00000003").mkdir()
    with pytest.raises(CheckpointError, match=r"oarlock\.json is missing, so this is no complete"):
        load_checkpoint(tmp_path / "step-00000003")


def test_falling_back_only_when_asked(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in (1, 2, 3)]
    assert latest_checkpoint(tmp_path, verify=True) == paths[2]
    (paths[2] / "model.safetensors").write_bytes(b"")
    (paths[1] / "oarlock.json").unlink()
    assert latest_checkpoint(tmp_path) == paths[2]
    with pytest.raises(CheckpointError, match=r"step-00000003/model\.safetensors: expected \d+ bytes, found 0"):
        latest_checkpoint(tmp_path, verify=True)
    with pytest.warns(UserWarning, match=r"falling back to .*step-00000001, because .*step-00000003.*step-00000002"):
        assert latest_checkpoint(tmp_path, fall_back=True) == paths[0]
    (paths[0] / "rank-0.json").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is intact"):
        latest_checkpoint(tmp_path, fall_back=True)
    intact = save(tmp_path, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert latest_checkpoint(tmp_path, fall_back=True) == intact
