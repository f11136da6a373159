"""Files of a stranger: inspect and convert name the problem in one line, and take memory and time that are bounded."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from oarlock.checkpoint import CheckpointError, open_tensors
from oarlock.cli.main import main

ENTRY = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


def write(path: Path, header: object, data: bytes = bytes(4), length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(**fields: Any) -> dict[str, Any]:
    return {"w": ENTRY | fields}


HEADERS: dict[str, tuple[object, str]] = {
    "dtypes nobody knows": (entry(dtype="F7"), "dtype F7"),
    "a negative offset": (entry(data_offsets=[-4, 0]), "expected U8 [4]"),
    "offsets the wrong way round": (entry(data_offsets=[4, 0]), "expected U8 [4]"),
    "three offsets": (entry(data_offsets=[0, 4, 8]), "expected U8 [4]"),
    "offsets that are no numbers": (entry(data_offsets=["0", "4"]), "expected U8 [4]"),
    "a fraction as an offset": (entry(data_offsets=[0.0, 4.0]), "expected U8 [4]"),
    "offsets beyond the end": (entry(data_offsets=[1 << 40, (1 << 40) + 4]), "truncated"),
    "an absurd shape": (entry(shape=[1 << 62, 1 << 62]), "expected U8"),
    "an absurd shape with offsets to match": (entry(shape=[1 << 62], data_offsets=[0, 1 << 62]), "truncated"),
    "an absurd empty shape": (entry(shape=[0, 1 << 62], data_offsets=[9, 9]), "truncated"),
    "a negative size": (entry(shape=[-4]), "is malformed"),
    "two negative sizes": (entry(shape=[-2, -2]), "is malformed"),
    "a shape that is no list": (entry(shape=4), "is malformed"),
    "a truth value as a size": (entry(shape=[True, 4]), "is malformed"),
    "an entry that is no object": ({"w": [1]}, "is malformed"),
    "an entry without a dtype": ({"w": {"shape": [4], "data_offsets": [0, 4]}}, "is malformed"),
    "a list": ([1], "not a JSON object"),
    "metadata that are no object": ({"__metadata__": 3, "w": ENTRY}, "malformed"),
    "no JSON": (b"{", "not readable as JSON"),
    "not UTF-8": (b'{"w\xff":1}', "not readable as JSON"),
    "a number of a million digits": (b'{"w":' + b"9" * 1_000_000 + b"}", "not readable as JSON"),
    "a deep nest": (b'{"w":' + b"[" * 100_000, "not readable as JSON"),
    "a name twice": (b'{"w":%(e)s,"w":%(e)s}' % {b"e": json.dumps(ENTRY).encode()}, "'w' is there twice"),
    "the same bytes twice": ({"v": ENTRY, "w": ENTRY}, "overlap"),
    "an overlap of one byte": ({"v": ENTRY, "w": ENTRY | {"data_offsets": [3, 7]}}, "overlap"),
    "no tensors": ({}, "no tensor would be written"),
}


@pytest.mark.parametrize("command", ["inspect", "convert"])
@pytest.mark.parametrize("case", HEADERS)
def test_headers(case: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, message = HEADERS[case]
    path = write(tmp_path / "x.safetensors", header, bytes(8))
    words = [command, str(path)] + ([str(tmp_path / "out")] if command == "convert" else [])
    status = main(words)
    said = capsys.readouterr()
    if case == "no tensors" and command == "inspect":
        assert status == 0
    else:
        assert status == 2
        assert message in said.err
        assert "Traceback" not in said.err
        assert len(said.err) < 10_000 or case == "a number of a million digits"
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("length", [0, 1, 1 << 20, (1 << 63) - 1, (1 << 64) - 1])
def test_lengths_of_the_header(length: int, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"not a safetensors file|not readable as JSON"):
        open_tensors(write(tmp_path / "x.safetensors", entry(), length=length))


@pytest.mark.parametrize("size", [0, 1, 7])
def test_files_that_are_too_short(size: int, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(bytes(size))
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        open_tensors(tmp_path)


INDICES: dict[str, tuple[object, str]] = {
    "the folder above": ({"weight_map": {"w": "../x.safetensors"}}, "not in its folder"),
    "an absolute path": ({"weight_map": {"w": "/etc/passwd"}}, "not in its folder"),
    "a hidden file": ({"weight_map": {"w": ".x.safetensors"}}, "not in its folder"),
    "a NUL": ({"weight_map": {"w": "x\0.safetensors"}}, "not in its folder"),
    "no name": ({"weight_map": {"w": ""}}, "not in its folder"),
    "the folder": ({"weight_map": {"w": "."}}, "not in its folder"),
    "a file that is not there": ({"weight_map": {"w": "y.safetensors"}}, "cannot be read: No such file"),
    "a tensor that is not there": ({"weight_map": {"w": "x.safetensors", "v": "x.safetensors"}}, "lacks tensor 'v'"),
    "a list": ({"weight_map": ["x.safetensors"]}, "not a readable index"),
    "no map": ({}, "not a readable index"),
    "a deep nest": (b"[" * 100_000, "not a readable index"),
    "not UTF-8": (b'{"weight_map":{"\xff":"x"}}', "not a readable index"),
    "a folder of that name": ({"weight_map": {"w": "sub"}}, "cannot be read"),
}


@pytest.mark.parametrize("case", INDICES)
def test_indices(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, message = INDICES[case]
    write(tmp_path / "x.safetensors", entry())
    (tmp_path / "sub").mkdir()
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    assert main(["convert", str(tmp_path), str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


# ---- links and special files -----------------------------------------------------------------------------------------


def test_weights_may_be_links(tmp_path: Path) -> None:
    """Hugging Face's cache consists of links, and large files lie on other disks: the user says where they lead."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.mkdir()
    folder.mkdir()
    save_file({"w": torch.ones(3)}, elsewhere / "blob")
    (folder / "model.safetensors").symlink_to(elsewhere / "blob")
    assert main(["convert", str(folder), str(tmp_path / "out")]) == 0
    assert torch.equal(open_tensors(tmp_path / "out").read()["w"], torch.ones(3))
    assert not (tmp_path / "out" / "model.safetensors").is_symlink()


def test_files_beside_the_weights_are_not_fetched_from_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are copied as they are, so a link could carry any file of the user into a folder that is published."""
    (tmp_path / "secret").write_text("key")
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file({"w": torch.ones(3)}, folder / "model.safetensors")
    (folder / "config.json").symlink_to(tmp_path / "secret")
    assert main(["convert", str(folder), str(tmp_path / "out")]) == 2
    assert f"is a link to {tmp_path / 'secret'}, outside of the folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_links_of_hugging_faces_cache(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abcd"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    save_file({"w": torch.ones(3)}, blobs / "aaaa")
    (blobs / "bbbb").write_text("{}")
    (snapshot / "model.safetensors").symlink_to(Path("../../blobs/aaaa"))
    (snapshot / "generation_config.json").symlink_to(Path("../../blobs/bbbb"))
    assert main(["convert", str(snapshot), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "generation_config.json").read_text() == "{}"


def test_special_files_do_not_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert main(["inspect", str(tmp_path)]) == 2
    assert main(["inspect", str(tmp_path / "model.safetensors")]) == 2
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("/dev/zero")
    assert main(["inspect", str(tmp_path)]) == 2
    assert "not a safetensors file" in capsys.readouterr().err
    (tmp_path / "model.safetensors").unlink()
    write(tmp_path / "model.safetensors", entry())
    os.mkfifo(tmp_path / "config.json")
    assert main(["convert", str(tmp_path), str(tmp_path / "out")]) == 0
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_link_that_leads_to_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    assert main(["inspect", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_names_cannot_steer_the_terminal_or_break_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a\x1b[31m", "b\nc", "\ud800", "../../etc/passwd", "x" * 100_000]
    header = {name: ENTRY | {"data_offsets": [4 * k, 4 * k + 4]} for k, name in enumerate(names)}
    path = write(tmp_path / "x.safetensors", header, bytes(4 * len(names)))
    (tmp_path / "p.aoa").write_text("'b\\nc' -> _\n")
    assert main(["inspect", str(path)]) == 0
    assert main(["convert", str(path), str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert open_tensors(tmp_path / "out").tensors.keys() == set(names)
    assert {p.name for p in tmp_path.iterdir()} == {"x.safetensors", "p.aoa", "out"}


def test_a_configuration_that_asks_for_a_billion_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "model.safetensors", entry())
    fields = {"model_type": "qwen3_moe", "vocab_size": 4, "hidden_size": 4, "intermediate_size": 4}
    fields |= {"num_attention_heads": 1, "num_hidden_layers": 1}
    for more in ({"num_hidden_layers": 10**9}, {"num_experts": 10**9}, {"hidden_size": 10**30}, {"vocab_size": "x"}):
        (tmp_path / "config.json").write_text(json.dumps(fields | more))
        assert main(["convert", str(tmp_path), str(tmp_path / "out"), "--dry-run"]) == 0
        assert "missing: " in capsys.readouterr().out


MEASURE = """
import sys
from oarlock.cli.main import main
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
import oarlock.cli.inspect, oarlock.cli.convert, oarlock.checkpoint.conversion
before, status = peak(), main(sys.argv[1:])
print("\\n", status, peak() - before, file=sys.stderr)
"""


def measured(*words: str, timeout: float) -> tuple[int, float]:
    """The exit status of a command, and the MiB that it took."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *words], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    status, peak = done.stderr.split()[-2:]
    return int(status), float(peak)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts the memory that Linux tells")
def test_what_a_header_of_10_mb_can_take(tmp_path: Path) -> None:
    """The costliest things that JSON can say per byte: empty lists, and short names."""
    path = write(tmp_path / "x.safetensors", b'{"w":[' + b"[]," * 3_000_000 + b"[]]}")
    status, peak = measured("inspect", str(path), timeout=120)
    assert status == 2
    assert peak < 600  # 64 bytes for three


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_a_million_tensors(command: str, tmp_path: Path) -> None:
    """A header of 80 MB; the library's limit is 100 MB. About 2 KiB a tensor, and no step that is quadratic."""
    header = {f"layers.{i}.w": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(1_000_000)}
    path = write(tmp_path / "x.safetensors", header, bytes(1_000_000))
    words = [command, str(path)] + ([str(tmp_path / "out")] if command == "convert" else [])
    status, peak = measured(*words, timeout=1000)
    assert status == 0
    assert peak < 3000
