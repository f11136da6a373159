"""The programs of the families: each reverse undoes its program, and folders are loaded by them into any shards."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.hf_variants import SIZES, VARIANTS
from oarlock import models
from oarlock.checkpoint import CheckpointError, Shard, load_checkpoint, open_tensors, save_checkpoint
from oarlock.checkpoint.aoa import AOA, Program, TensorSpec

SPARSE = ["qwen3_moe", "ernie4_5_moe", "dots1", "deepseek_v3", "gpt_oss"]  # the first two with a dense layer between


def config_of(variant: str) -> models.DecoderConfig:
    model_type, fields = VARIANTS[variant]
    return models.DecoderConfig.from_hf({**SIZES, **fields, "model_type": model_type})


def state_of(config: models.DecoderConfig) -> dict[str, Tensor]:
    """Every element of every tensor is another number."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in models.Decoder(config).state_dict().items()}
    sizes = [shape.numel() for shape in shapes.values()]
    parts = torch.arange(float(sum(sizes))).split(sizes)
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def specs(tensors: dict[str, Tensor]) -> dict[str, TensorSpec]:
    return {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def halves(full: dict[str, Tensor], rank: int, dtype: torch.dtype | None = None) -> dict[str, Shard]:
    """What one of two ranks holds: of vectors all, of others rows (experts, in stacks) or columns; uneven where odd."""
    shards = {}
    for index, (name, tensor) in enumerate(full.items()):
        dim = index % tensor.dim() if tensor.dim() > 1 else 0
        size = tensor.shape[dim] // 2 + 1 if tensor.dim() > 1 else tensor.shape[0]
        start = rank * size if tensor.dim() > 1 else 0
        local = torch.empty_like(tensor.narrow(dim, start, min(size, tensor.shape[dim] - start)), dtype=dtype)
        shards[name] = Shard.box(local, tensor.shape, [start if d == dim else 0 for d in range(tensor.dim())])
    return shards


def assert_holds(shards: dict[str, Shard], full: dict[str, Tensor]) -> None:
    for name, shard in shards.items():
        for box, view in shard.views():
            assert torch.equal(view, full[name][box.slices].to(view.dtype)), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_reverse_undoes_the_program(variant):
    config = config_of(variant)
    ours = state_of(config)
    to_hf = AOA(models.weights_program(config, "to_hf")).compile(specs(ours))
    theirs = to_hf.apply(ours)
    from_hf = AOA(models.weights_program(config)).compile(specs(theirs), specs(ours))
    assert equal(from_hf.apply(theirs), ours)
    assert not from_hf.unread
    assert not to_hf.unread
    assert from_hf.reverse().tensors == to_hf.tensors  # block by block: the derived text is the inverse
    assert to_hf.reverse().tensors == from_hf.tensors


def test_an_expert_lies_at_its_number_in_layers_that_have_experts():
    config = config_of("qwen3_moe")
    assert config.sparse_layers == (0, 2)
    ours = state_of(config)
    theirs = AOA(models.weights_program(config, "to_hf")).compile(specs(ours)).apply(ours)
    assert torch.equal(theirs["model.layers.2.mlp.experts.3.up_proj.weight"], ours["layers.2.mlp.experts.up_proj"][3])
    assert torch.equal(theirs["model.layers.1.mlp.up_proj.weight"], ours["layers.1.mlp.up_proj.weight"])
    assert "model.layers.1.mlp.experts.0.up_proj.weight" not in theirs


def test_a_family_program_needs_no_configuration():
    config = config_of("dots1")
    ours = state_of(config)
    theirs = AOA(models.weights_program(config, "to_hf")).compile(specs(ours)).apply(ours)
    forward = AOA(models.family_program("dots1")).compile(specs(theirs))
    assert equal(forward.apply(theirs), ours)
    told_by_destination = AOA(models.family_program("dots1", "to_hf")).compile(specs(ours), specs(theirs))
    told_by_number = AOA(models.family_program("dots1", "to_hf", num_experts=4)).compile(specs(ours))
    assert told_by_destination.tensors == told_by_number.tensors == forward.reverse().tensors
    with pytest.raises(ValueError, match=r"model_type 'gpt2' is not supported; supported: llama, qwen2"):
        models.family_program("gpt2")
    with pytest.raises(ValueError, match="keeps all dtypes"):
        models.family_program("dots1", "to_hf", dtype=torch.bfloat16)


def test_casts_leave_the_selection_bias_alone():
    config = config_of("ernie4_5_moe")
    theirs = AOA(models.weights_program(config, "to_hf")).compile(specs(state_of(config))).apply(state_of(config))
    halved = {name: tensor.bfloat16() for name, tensor in theirs.items()}
    text = models.weights_program(config, dtype=torch.float16)
    dtypes = {name: relation.dtype for name, relation in AOA(text).compile(specs(halved)).tensors.items()}
    biases = {name for name, dtype in dtypes.items() if dtype == torch.float32}
    assert biases == {name for name in dtypes if name.endswith("correction_bias")} != set()
    assert {dtypes[name] for name in dtypes.keys() - biases} == {torch.float16}


@pytest.fixture(params=SPARSE)
def folder(request, tmp_path) -> Path:
    model = models.Decoder(config_of(request.param))
    models.save(model, tmp_path / "model", max_shard_size=50_000)
    return tmp_path / "model"


def test_two_ranks_load_their_halves(folder):
    full = models.load(folder).state_dict()
    for rank, dtype in ((0, None), (1, torch.bfloat16)):
        shards = halves(full, rank, dtype)
        report = models.load_sharded(folder, shards)
        assert sorted(report.loaded) == sorted(full)
        assert report.bytes_needed < 0.6 * sum(tensor.nbytes for tensor in full.values())
        assert_holds(shards, full)


def test_a_pipeline_stage_loads_its_layers(folder):
    full = models.load(folder).state_dict()
    stage = {name: torch.empty_like(tensor) for name, tensor in full.items() if name.startswith("layers.1.")}
    report = models.load_sharded(folder, stage)
    assert set(report.unexpected) == full.keys() - stage.keys()
    assert equal(stage, {name: full[name] for name in stage})


def test_optimizer_states_under_their_names_follow_the_program(folder, tmp_path):
    config = models.read_config(folder)
    full = models.load(folder).state_dict()
    generator = torch.Generator().manual_seed(0)
    to_hf: Program = AOA(models.weights_program(config, "to_hf")).compile(specs(full))
    moments = {
        name: torch.randn(relation.shape, generator=generator, dtype=torch.float64)
        for name, relation in to_hf.tensors.items()
    }
    save_file({f"exp_avg/{name}": moment for name, moment in moments.items()}, tmp_path / "optimizer.safetensors")
    expected = AOA(models.weights_program(config)).compile(specs(moments)).apply(moments)
    shards = {f"exp_avg/{name}": shard for name, shard in halves(full, 1, torch.float64).items()}
    program = models.weights_program(config, dtype=torch.bfloat16)  # casts concern weights, not their moments
    open_tensors(tmp_path / "optimizer.safetensors").load(shards, aoa=program, slots=True)
    for name, shard in shards.items():
        key = name.removeprefix("exp_avg/")
        if not key.endswith("correction_bias"):
            assert_holds({key: shard}, expected)


def test_a_checkpoint_saved_by_the_program_is_a_model_folder(folder, tmp_path):
    model = models.load(folder)
    path = save_checkpoint(
        tmp_path / "run",
        1,
        tensors={"model": model.state_dict()},
        hf={"model": models.weights_program(model.config, "to_hf")},
        files={"config.json": json.dumps(model.config.to_hf()).encode()},
    )
    assert equal(models.load(path).state_dict(), model.state_dict())
    assert equal(load_checkpoint(path).tensors("model"), model.state_dict())


def test_what_load_sharded_refuses(folder):
    full = models.load(folder).state_dict()
    norm = torch.full_like(full["norm.weight"], 7.0)
    with pytest.raises(CheckpointError, match=r"1 tensors have no source: norm.weihgt \(did you mean norm.weight\?\)"):
        models.load_sharded(folder, {"norm.weihgt": norm})
    with pytest.raises(CheckpointError, match=r"norm.weight: the checkpoint has shape \[32\], the destination \[31\]"):
        models.load_sharded(folder, {"norm.weight": norm[:31]})
    last = sorted(folder.glob("*.safetensors"))[-1]
    tensors = load_file(last)
    name, tensor = tensors.popitem()
    save_file({**tensors, name: tensor[:1].clone()}, last)
    with pytest.raises(ValueError, match=re.escape(f"{name} in {last.name} has shape [1")):
        models.load_sharded(folder, {"norm.weight": norm})
    assert (norm == 7.0).all()
