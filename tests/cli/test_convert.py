"""`oarlock convert`: bitwise there and back, complete or absent, and clear errors for hostile files."""

import json
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import load_file, save_file

from oarlock import models
from oarlock.checkpoint import CheckpointError, list_checkpoints, load_checkpoint, open_tensors, save_checkpoint
from oarlock.cli.main import main

TENSORS = {"a": torch.randn(6, 4), "b": torch.randn(3).bfloat16(), "ids": torch.arange(5)}


def write(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_a_model_comes_back_bitwise_through_a_checkpoint(family: str, tmp_path: Path) -> None:
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8} if family == "qwen3_moe" else {}
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
    config = models.DecoderConfig(
        model_type=family, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False, **sizes, **moe
    )
    model = models.Decoder(config)
    hf, own, again = tmp_path / "hf", tmp_path / "own", tmp_path / "again"
    models.save(model, hf)
    assert main(["convert", str(hf), str(own), "--to", "sharded", "--family", family]) == 0
    state = load_checkpoint(own).tensors("model")
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert main(["convert", str(own), str(again), "--family", family, "--max-shard-size", "4KB"]) == 0
    assert len(list(again.glob("*.safetensors"))) > 1
    first, second = open_tensors(hf).read(), open_tensors(again).read()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    models.load(again)


def test_program_dtype_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors")
    (tmp_path / "p.aoa").write_text("a^T -> c\nb -> _\n")
    words = ["convert", str(tmp_path / "x.safetensors"), str(tmp_path / "out"), "--aoa", str(tmp_path / "p.aoa")]
    words += ["--dtype", "float16"]
    assert main([*words, "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert main(words) == 0
    wrote = capsys.readouterr().out
    assert wrote == dry.replace("would write", "wrote")
    assert "cast: 1 tensors from float32 to float16" in wrote
    assert "dropped by the program: 1 tensors: b" in wrote
    file = tmp_path / "out" / "model.safetensors"
    assert f"{file.stat().st_size:,} bytes" in wrote
    found = load_file(file)
    assert found.keys() == {"c", "ids"}
    assert torch.equal(found["c"], TENSORS["a"].T.half())
    assert main(words) == 2
    assert "exists" in capsys.readouterr().err


def test_ties_are_stored_once_and_damage_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = torch.randn(8, 4)
    path = save_checkpoint(tmp_path / "run", 3, tensors={"model": {"e": weight, "head": weight}})
    assert main(["convert", str(path), str(tmp_path / "own"), "--to", "sharded"]) == 0
    state = load_checkpoint(tmp_path / "own").tensors("model")
    assert state["e"].data_ptr() == state["head"].data_ptr()
    assert torch.equal(state["e"], weight)
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    capsys.readouterr()
    assert main(["convert", str(path), str(tmp_path / "bad")]) == 2
    assert "digest" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["own", "run"]


WRITE = (
    "import os, sys; from pathlib import Path; from oarlock.checkpoint import open_tensors;"
    "from oarlock.checkpoint.conversion import plan;"
    "plan(open_tensors(sys.argv[1])).write(Path(sys.argv[2]), max_bytes=int(sys.argv[3]), manifest={manifest},"
    "others={{'config.json': b'{{}}'}}, progress={progress})"
)


@pytest.mark.parametrize(("manifest", "max_bytes"), [(False, 9**9), (False, 20), (True, 20)])
def test_what_a_kill_leaves_is_no_checkpoint_and_is_removed(manifest: bool, max_bytes: int, tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors")
    out = tmp_path / "out"
    (tmp_path / ".out.tmp-notours").mkdir()
    code = WRITE.format(manifest=manifest, progress="lambda n: os.kill(os.getpid(), 9)")
    words = [sys.executable, "-c", code, str(tmp_path / "x.safetensors"), str(out), str(max_bytes)]
    assert subprocess.run(words, timeout=60).returncode == -signal.SIGKILL
    [left] = tmp_path.glob(".out.tmp-????????????")
    assert not out.exists()
    with pytest.raises(CheckpointError):
        open_tensors(left)
    with pytest.raises(CheckpointError):
        load_checkpoint(left)
    assert not list_checkpoints(tmp_path)
    assert not (left / "config.json").exists()
    assert main(["convert", str(tmp_path / "x.safetensors"), str(out)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.tmp-notours", "out", "x.safetensors"]


def test_two_at_once_are_kept_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one that writes keeps its draft; the other is refused."""
    save_file(TENSORS, tmp_path / "x.safetensors")
    code = WRITE.format(manifest=False, progress="lambda n: (print('writing', flush=True), sys.stdin.readline())")
    words = [sys.executable, "-c", code, str(tmp_path / "x.safetensors"), str(tmp_path / "out"), "999"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "writing\n"
        assert main(["convert", str(tmp_path / "x.safetensors"), str(tmp_path / "out")]) == 2
        assert "another process is writing" in capsys.readouterr().err
        assert main(["convert", str(tmp_path / "x.safetensors"), str(tmp_path / "other")]) == 0
        first.communicate("\n" * len(TENSORS), timeout=60)
    assert first.returncode == 0
    assert open_tensors(tmp_path / "out").tensors.keys() == TENSORS.keys()


MEASURE = """
import json, sys, threading, time
from oarlock.cli.main import main

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) / 1024

def watch():
    while not done:
        peaks.append(anonymous())
        time.sleep(0.002)

import torch, oarlock.checkpoint.conversion, oarlock.models.gguf, oarlock.cli.convert
for words in json.loads(sys.argv[1]):
    done, peaks = False, [anonymous()]
    thread = threading.Thread(target=watch)
    thread.start()
    assert main(words) == 0
    done = True
    thread.join()
    print("peak", max(peaks) - peaks[0], file=sys.stderr)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts the memory that Linux tells")
def test_big_tensors_pass_in_little_memory(tmp_path: Path) -> None:
    """128 MiB in one tensor: beyond the source's file pages, a step of 32 MiB and what it is computed with."""
    source, packed = tmp_path / "x.safetensors", tmp_path / "x.gguf"
    entry = {"dtype": "F32", "shape": [1 << 13, 4096], "data_offsets": [0, 1 << 27]}
    text = json.dumps({"w": entry}).encode().ljust(120)  # data that are not aligned would be copied whole
    source.write_bytes(struct.pack("<Q", len(text)) + text)
    with open(source, "ab") as file:
        file.truncate(file.tell() + (1 << 27))  # zeros without blocks on the disk
    writer = GGUFWriter(packed, "none")
    zeros = np.zeros((1 << 13, 4096 // 32 * 18), dtype=np.uint8)
    writer.add_tensor("w", zeros, raw_dtype=GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    programs = {
        "rows": "w -> v",
        "transposed": "w^T -> v",
        "stack": "w -> v, reshape=[4, 2048, 4096]; v -> *.v, stack=0 where * in 0:4",
        "dequantised": "w -> v",
    }
    calls = []
    for kind, program in programs.items():
        (tmp_path / kind).write_text(program)
        path = packed if kind == "dequantised" else source
        calls.append(["convert", str(path), str(tmp_path / f"{kind}.out"), "--aoa", str(tmp_path / kind)])
    words = [sys.executable, "-c", MEASURE, json.dumps(calls)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    peaks = [float(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("peak")]
    for kind, peak in zip(programs, peaks, strict=True):
        assert peak < 48, (kind, peak)


def test_the_report_tells_what_config_json_asks_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
    model = models.Decoder(models.DecoderConfig(model_type="llama", num_attention_heads=2, **sizes))
    models.save(model, tmp_path / "hf")
    words = ["convert", str(tmp_path / "hf"), str(tmp_path / "out"), "--dry-run"]
    assert main(words) == 0
    assert "missing: none, by config.json" in capsys.readouterr().out
    program = tmp_path / "p.aoa"
    program.write_text(
        "model.norm.weight -> norm\nmodel.layers.0.mlp.up_proj.weight^T -> model.layers.0.mlp.up_proj.weight\n"
    )
    assert main([*words, "--aoa", str(program)]) == 0
    told = capsys.readouterr().out
    assert "missing, though config.json asks for them: 1 tensors: model.norm.weight" in told
    assert "unexpected by config.json: 1 tensors: norm" in told
    assert "of another shape than config.json asks for: 1 tensors: model.layers.0.mlp.up_proj.weight" in told
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    for fields, text in (
        (config | {"num_hidden_layers": 10**9}, "config.json asks for 1000000000 layers, there are"),
        (config | {"model_type": "martian"}, "missing: cannot be told from config.json"),
        ([1], "missing: cannot be told from config.json (it is no JSON object)"),
    ):
        (tmp_path / "hf" / "config.json").write_text(json.dumps(fields))
        assert main(words) == 0
        assert text in capsys.readouterr().out


@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_hostile_files_get_clear_errors(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    rest = [str(tmp_path / "out")] if command == "convert" else []
    cases = {
        "header of": write(tmp_path / "long.safetensors", {}, length=1 << 40),
        "overlap": write(tmp_path / "over.safetensors", {"a": entry, "b": entry}, bytes(4)),
        "truncated": write(tmp_path / "short.safetensors", {"a": entry}, bytes(3)),
    }
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../over.safetensors"}}))
    cases["not in its folder"] = index
    for text, path in cases.items():
        assert main([command, str(path), *rest]) == 2
        assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
