"""Memory of our own is the host's, whatever torch.set_default_device says; "meta" would lose every value."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import load_file, save_file

from oarlock.checkpoint import Shard, iter_full, open_tensors, reshard
from oarlock.checkpoint.gguf_blocks import BLOCKS
from oarlock.checkpoint.paddle import load_state_file, save_state_file
from oarlock.cli.main import main

W, H = torch.arange(48.0).view(6, 8), torch.ones(3).half()


@pytest.mark.parametrize("layout", ["hf", "sharded", "paddle"])
def test_convert(tmp_path: Path, layout: str) -> None:
    """A cast, a transposition and a constant, all of which pass through memory of the conversion."""
    save_file({"w": W, "h": H, "none": torch.zeros(0, 3)}, tmp_path / "m.safetensors")
    (tmp_path / "a.aoa").write_text("w^T -> t, dtype=bfloat16\nw -> w2\nh -> p, pad=7\n")
    with torch.device("meta"):
        command = ["convert", str(tmp_path / "m.safetensors"), str(tmp_path / "out"), "--to", layout]
        assert main([*command, "--aoa", str(tmp_path / "a.aoa")]) == 0
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(found["t"], W.T.bfloat16())
    assert torch.equal(found["w2"], W)
    assert found["p"].tolist() == [1, 1, 1, 0, 0, 0, 0]


def test_gguf(tmp_path: Path) -> None:
    """Every quantised type gives what it gives on the host."""
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    for code, block in BLOCKS.items():
        packed = np.full((2, 512 // block.num_values * block.num_bytes), 0x35, dtype=np.uint8)
        writer.add_tensor(f"q{code}", packed, raw_dtype=GGMLQuantizationType(code))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = open_tensors(tmp_path / "m.gguf").read()
    with torch.device("meta"):
        found = open_tensors(tmp_path / "m.gguf").read()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_paddle(tmp_path: Path) -> None:
    """Files of Paddle, written and read; an empty array is memory too."""
    state = {"w": W, "b": W.bfloat16(), "none": torch.zeros(0, 3)}
    with torch.device("meta"):
        save_state_file(tmp_path / "m.pdparams", state)
        whole, read = load_state_file(tmp_path / "m.pdparams"), open_tensors(tmp_path / "m.pdparams").read()
    for name, tensor in state.items():
        assert torch.equal(whole[name], tensor)
        assert torch.equal(read[name], tensor)


def test_between_memories() -> None:
    """What a reshard and a merge allocate."""
    src = {"w": Shard.flat(W.flatten(), (6, 8), 0), "h": H, "s": torch.tensor(3.0)}
    dst = {"t": torch.zeros(8, 6, dtype=torch.bfloat16), "p": torch.zeros(7).half(), "s": torch.zeros(())}
    with torch.device("meta"):
        reshard(src, dst, aoa="w^T -> t, dtype=bfloat16\nh -> p, pad=7", staging_bytes=40)
        merged = dict(iter_full(src, "w^T -> t\nh -> p, pad=7", dtype=torch.bfloat16))
    assert torch.equal(dst["t"], W.T.bfloat16())
    assert dst["p"].tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert dst["s"] == 3
    assert torch.equal(merged["t"], W.T.bfloat16())
