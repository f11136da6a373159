"""`oarlock plan`: the text and the JSON say the same, overrides count, and what does not fit is named."""

import json
import re
from pathlib import Path

import pytest
import torch

from oarlock.cli.main import main
from oarlock.generate import KeyValueCache
from oarlock.models import Decoder, DecoderConfig
from oarlock.parallel import Mesh
from oarlock.train.build import decoder_config
from oarlock.train.config import load_config
from tiny_run import write_config


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text("[data]\nvocab_size = 1000\nsequence_length = 512\n[train]\nsteps = 40\n")
    return str(path)


def test_text_and_json_agree(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", config, "--peak", "1e12", "--share", "0.5"]
    assert main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert main(words) == 0
    text = capsys.readouterr().out
    rows = dict(re.findall(r"^  (\S[\S ]*?)  +(\S+(?: \S?iB)?)", text, flags=re.MULTILINE))
    total = plan["parameters"]["total"]
    assert total == Decoder(decoder_config(load_config(config).model, 1000, 512)).num_parameters()
    assert f"{total:,}" in text
    assert rows["steps"] == "40"
    assert float(rows["FLOPs"]) == pytest.approx(plan["flops"], rel=0.01)
    mib = float(rows["peak"].removesuffix(" MiB"))
    assert mib == pytest.approx(plan["memory_kept"]["peak"] / 2**20, abs=0.06)
    assert plan["seconds"] == pytest.approx(plan["flops"] / 5e11)
    assert "50% of 1.00 TFLOP/s per rank (given)" in text


def test_the_cache_of_a_token_is_what_generation_allocates(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    latent = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    for model_type, fields in (("qwen3", {"num_key_value_heads": 2, "head_dim": 8}), ("deepseek_v3", latent)):
        shape = DecoderConfig(model_type=model_type, num_attention_heads=4, **sizes, **fields)
        file = Path(config).with_name("config.json")
        file.write_text(json.dumps(shape.to_hf()))
        words = ["plan", config, "--peak", "1e12", "--model.config", str(file)]
        assert main([*words, "--json"]) == 0
        per_token = json.loads(capsys.readouterr().out)["cache_bytes_per_token"]
        cache = KeyValueCache(shape.num_hidden_layers, capacity=5)
        with torch.no_grad():
            Decoder(shape).to(torch.bfloat16)(torch.zeros(1, 5, dtype=torch.int64), cache=cache)
        assert cache.num_bytes == 5 * per_token
        assert main(words) == 0
        kept = "latents and shared keys" if model_type == "deepseek_v3" else "keys and values"
        assert re.search(rf"cache per token +\S+ \S*B +{kept} in bf16", capsys.readouterr().out)


def test_overrides_and_ranks_change_the_plan(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    def tokens(*words: str) -> int:
        assert main(["plan", config, "--peak", "1e12", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)["tokens"]

    assert tokens() == 40 * 512
    assert tokens("--world-size", "8", "--train.batch_size", "2", "--train.accumulation=3") == 48 * 40 * 512


def test_the_peak_is_measured_unless_given(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", config, "--train.device", "cpu"]) == 0
    assert re.search(r"at 60% of \S+ .FLOP/s per rank \(measured here\)", capsys.readouterr().out)


def test_a_mixture_of_experts_shows_what_a_token_uses(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", config, "--peak", "1e12", "--model.family", "qwen3_moe", "--model.num_experts", "8"]) == 0
    assert "active per token" in capsys.readouterr().out


def test_windows_are_shown(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", config, "--peak", "1e12", "--model.sliding_window", "64"]) == 0
    assert "each sees 256 keys on average, 60 within 64" in capsys.readouterr().out  # 64 - 63 · 32 / 512


def test_the_vocabulary_comes_from_a_given_tokenizer(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocabulary = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 299, "content": "<end>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocabulary))
    assert main(["plan", config, "--peak", "1e12", "--json", "--data.tokenizer", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"]["embedding"] == 300 * 256
    (tmp_path / "tokenizer.json").write_text("{}")
    assert main(["plan", config, "--data.tokenizer", str(tmp_path)]) == 2
    assert "not a tokenizer.json with a vocabulary" in capsys.readouterr().err


def test_a_config_json_brings_its_own_shape(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"model_type": "llama", "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336}
    fields |= {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
    fields |= {"max_position_embeddings": 8192, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    words = ["--model.config", str(tmp_path / "config.json"), "--world-size", "64", "--json", "--peak", "1e15"]
    assert main(["plan", config, *words]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"]["total"] == 8_030_261_248  # Llama 3 8B


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.toml"], "no configuration file none.toml"),
        (["CONFIG", "--world-size", "0"], "world_size must be at least 1, got 0"),
        (["CONFIG", "--data.tokenizer", "nowhere"], "data.tokenizer = 'nowhere': no such tokenizer.json"),
        (["CONFIG", "--model.config", "none.json"], "no model configuration none.json"),
        (["CONFIG", "--peak", "0"], "peak and share must be positive"),
    ],
)
def test_what_does_not_fit_is_named(
    config: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *(config if word == "CONFIG" else word for word in words)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_with_the_data_the_plan_has_the_steps_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from oarlock.train.loop import Trainer

    path = write_config(tmp_path)
    budget = ["--train.steps", "0", "--train.flops", "1e10"]
    assert main(["plan", str(path), "--read-data", "--peak", "1e12", "--json", *budget]) == 0
    plan = json.loads(capsys.readouterr().out)
    trainer = Trainer(load_config(path, budget), resume="never", mesh=Mesh.build())
    assert plan["num_steps"] == trainer.num_steps > 10
    assert plan["parameters"]["total"] == trainer.model.num_parameters()
    assert main(["plan", str(path), "--read-data", "--mean-visible", "9"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_a_vocabulary_that_is_still_to_be_learned_is_told(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", config, "--peak", "1e12"]) == 0
    assert re.search(r"vocabulary +1,000 +at most", capsys.readouterr().out)
