"""Every family can be trained from scratch, from a section of a few lines."""

import dataclasses
import math
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from oarlock import models
from oarlock.generate import generate
from oarlock.train.build import decoder_config
from oarlock.train.config import ModelConfig, OptimizerConfig, load_config
from oarlock.train.loop import train
from oarlock.train.metrics import read_metrics
from oarlock.train.optim import build_optimizers


def test_the_trainer_offers_every_family() -> None:
    offered = typing.get_args(typing.get_type_hints(ModelConfig)["family"])
    assert offered == tuple(models.FAMILIES)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_the_defaults_make_a_small_model(family: str) -> None:
    config = decoder_config(ModelConfig(family=family), 1000, 128)  # type: ignore[arg-type]
    assert config.model_type == family
    with torch.device("meta"):
        assert models.Decoder(config).num_parameters() < 10_000_000
    assert config.num_experts == (8 if models.FAMILIES[family].scoring else 0)
    assert config.is_sparse(3) == bool(models.FAMILIES[family].scoring)
    assert config.window(0) == (128 if family == "gpt_oss" else None)
    assert config.rope_scaling is None


def test_keys_of_the_section_reach_the_model() -> None:
    section = ModelConfig(family="deepseek_v3", q_lora_rank=48, kv_lora_rank=40, qk_rope_head_dim=16, num_experts=4)
    config = decoder_config(section, 100, 64)
    assert (config.q_lora_rank, config.kv_lora_rank, config.qk_rope_head_dim, config.num_experts) == (48, 40, 16, 4)
    assert (config.head_dim, config.v_head_dim, config.num_key_value_heads) == (80, 64, 4)
    assert config.sparse_layers == (1, 2, 3)
    section = dataclasses.replace(section, family="gpt_oss", sliding_window=32, moe_intermediate_size=96)
    config = decoder_config(section, 100, 64)
    assert [config.window(layer) for layer in range(4)] == [32, None, 32, None]
    assert config.intermediate_size == config.moe_intermediate_size == 96
    with pytest.raises(ValueError, match=r"'llama' has no experts: set model\.num_experts = 0"):
        decoder_config(ModelConfig(family="llama", num_experts=4), 100, 64)


@pytest.mark.parametrize("family", ["dots1", "deepseek_v3", "gpt_oss"])
def test_three_steps(family: str, tiny: Callable[..., Path]) -> None:
    sizes = ["--model.num_experts", "4", "--model.moe_intermediate_size", "16", "--model.kv_lora_rank", "16"]
    sizes += ["--model.sliding_window", "8"] if family == "gpt_oss" else []
    options = ["--model.family", family, *sizes, "--train.steps", "3", "--train.eval_every", "0"]
    run = train(load_config(tiny(), options)).directory
    losses = [record["loss"] for record in read_metrics(run) if record["kind"] == "train"]
    assert len(losses) == 3
    assert losses[2] < losses[0] < 1.1 * math.log(300)
    model = models.load(run / "hf")
    assert model.config.model_type == family
    assert [len(tokens) for tokens in generate(model, [[5, 6]], max_new_tokens=4)] == [4]


def test_biases_of_experts_are_no_matrices() -> None:
    """They stand in one tensor [experts, width], but do not decay and do not go to Muon."""
    config = decoder_config(ModelConfig(family="gpt_oss"), 100, 64)
    model = models.Decoder(config)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = build_optimizers(model, OptimizerConfig(name="muon"))["muon"].param_groups
    in_muon = [names[id(parameter)] for group in groups for parameter in group["params"]]
    assert "layers.0.mlp.experts.gate_up_proj" in in_muon
    assert not [name for name in in_muon if name.endswith(("bias", "sinks"))]
