"""`oarlock convert`: bitwise there and back, complete or absent, and clear errors for hostile files."""

import json
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from oarlock import models
from oarlock.checkpoint import load_checkpoint, open_tensors, save_checkpoint
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


def test_a_kill_leaves_no_folder(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors")
    code = (
        "import os, sys; from pathlib import Path; from oarlock.checkpoint import open_tensors;"
        "from oarlock.checkpoint.conversion import plan;"
        "plan(open_tensors(sys.argv[1])).write(Path(sys.argv[2]), max_bytes=9**9, manifest=False, others={},"
        "progress=lambda n: os.kill(os.getpid(), 9))"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "x.safetensors"), str(tmp_path / "out")]
    done = subprocess.run(words, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()


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
