"""Model folders: shards, dtypes, replacement, and one clear error for everything that can be wrong with them."""

import dataclasses
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from oarlock import models
from oarlock.checkpoint.aoa import AOA, TensorSpec
from oarlock.models.hf import _made

CONFIG = models.DecoderConfig(
    model_type="ernie4_5_moe",
    vocab_size=31,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_experts=3,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
    num_shared_experts=1,
    sparse_layers=(1,),
    tie_word_embeddings=True,
)


@pytest.fixture
def model() -> models.Decoder:
    model = models.Decoder(CONFIG)
    model.layers[1].mlp.gate.correction_bias.normal_()
    return model


@pytest.fixture
def folder(model, tmp_path):
    models.save(model, tmp_path / "model")
    return tmp_path / "model"


def same(a: models.Decoder, b: models.Decoder) -> bool:
    theirs = b.state_dict()
    return all(torch.equal(tensor, theirs[key]) for key, tensor in a.state_dict().items())


def change(folder, edit) -> None:
    """Rewrite the folder's only weight file."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_shards_and_index_hold_the_same_model(model, tmp_path):
    from transformers import AutoModelForCausalLM

    models.save(model, tmp_path, max_shard_size=4000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in model.state_dict().values())
    assert same(models.load(tmp_path), model)
    ids = torch.randint(0, 31, (1, 8))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits
    torch.testing.assert_close(model.logits(model(ids)), theirs, rtol=0, atol=1e-5)


def test_saving_again_replaces_the_model_and_keeps_other_files(model, folder):
    models.save(model, folder, max_shard_size=4000)
    (folder / "tokenizer.json").write_text("{}")
    other = models.Decoder(CONFIG)
    models.save(other, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert same(models.load(folder), other)


def test_loaded_weights_do_not_live_in_the_file(folder):
    loaded = models.load(folder)
    before = {key: tensor.clone() for key, tensor in loaded.state_dict().items()}
    models.save(models.Decoder(CONFIG), folder)
    assert all(torch.equal(tensor, before[key]) for key, tensor in loaded.state_dict().items())


def test_dtype_is_kept_or_converted(model, tmp_path):
    models.save(model.to(torch.bfloat16), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    kept, converted = models.load(tmp_path), models.load(tmp_path, dtype=torch.float32)
    assert {p.dtype for p in kept.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in converted.parameters()} == {torch.float32}
    assert kept.layers[1].mlp.gate.correction_bias.dtype == torch.float32
    assert same(kept.to(torch.float32), converted)


def test_experts_of_different_dtypes_are_converted_to_the_given_one(model, folder):
    change(folder, lambda t: t.update({k: v.double() for k, v in t.items() if "experts.2." in k}))
    assert same(models.load(folder, dtype=torch.float32), model)


def test_files_beside_the_model_are_no_part_of_it(model, folder):
    save_file({"adapter": torch.zeros(2)}, folder / "adapter_model.safetensors")
    (folder / "consolidated.safetensors.index.json").write_text("{}")
    assert same(models.load(folder), model)
    models.save(model, folder, max_shard_size=4000)
    assert same(models.load(folder), model)


def test_what_a_killed_save_left_is_replaced(model, folder):
    (folder / ".model.safetensors.draft").write_bytes(b"half")
    models.save(model, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert same(models.load(folder), model)


@pytest.mark.parametrize("text", ["w -> x", "w[1] -> x", "w^T -> x", "w[0], w[1] -> x, stack=0", "w, w -> x, axis=0"])
def test_what_is_written_is_what_the_program_says(text):
    w = torch.arange(24.0).view(2, 3, 4)
    program = AOA(text).compile({"w": TensorSpec.of(w)})
    made = _made(
        program.tensors["x"], lambda _, at, size: w[tuple(map(slice, at, map(sum, zip(at, size, strict=True))))]
    )
    assert torch.equal(made, program.apply({"w": w})["x"])


def test_all_parameters_train_after_loading(folder):
    assert all(parameter.requires_grad for parameter in models.load(folder).parameters())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "missing model.norm.weight [16]"),
        (lambda t: t.update(extra=torch.zeros(2)), "unexpected extra [2] in model.safetensors"),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(15)}),
            "model.norm.weight in model.safetensors has shape [15]; config.json asks for [16]",
        ),
        (
            lambda t: t.pop("model.layers.1.mlp.experts.2.up_proj.weight"),
            "missing model.layers.1.mlp.experts.2.up",
        ),
        (lambda t: t.update({"model.norm.weight": torch.zeros(16, dtype=torch.int8)}), "has dtype I8; supported: F64"),
        (
            lambda t: t.update({"model.layers.1.mlp.experts.2.up_proj.weight": torch.zeros(8, 16).half()}),
            "other experts are torch.float32; give a dtype",
        ),
        (lambda t: t.update({"lm_head.weight": torch.zeros(31, 16)}), "set it to false"),
    ],
)
def test_tensors_that_do_not_fit(folder, edit, message):
    change(folder, edit)
    with pytest.raises(ValueError, match=re.escape(message)):
        models.load(folder)


def test_every_problem_is_in_one_error(folder):
    change(folder, lambda t: [t.pop(name) for name in list(t) if "experts" in name])
    with pytest.raises(ValueError, match=r"(?s)do not fit its config.json:\n.*missing.*missing.*and 7 more"):
        models.load(folder)


def test_a_copy_of_the_tied_head_is_accepted(model, folder):
    change(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert same(models.load(folder), model)


def test_prediction_layers_that_transformers_skips_are_skipped_with_a_warning(model, folder):
    change(folder, lambda t: t.update({"model.mtp_block.0.mlp.weight": torch.zeros(3)}))
    with pytest.warns(UserWarning, match=r"1 tensors of .* are left out, e.g. model.mtp_block.0.mlp.weight"):
        assert same(models.load(folder), model)


def test_missing_files(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a model folder: it has no config.json"):
        models.load(tmp_path / "nowhere")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has neither model.safetensors nor model.safetensors.index.json$"):
        models.load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model.bin would have to be unpickled, which Oarlock never"):
        models.load(folder)
    (folder / "model.safetensors").write_bytes(weights[:1000])
    with pytest.raises(
        ValueError, match=r"model.safetensors: not a safetensors file \(header of \d+ bytes in a file of"
    ):
        models.load(folder)
    (folder / "model.safetensors").write_bytes(weights[:-10])
    with pytest.raises(ValueError, match=r"model.safetensors: truncated: it ends 10 bytes early; fetch it again"):
        models.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not valid JSON"):
        models.load(folder)


def test_broken_index(model, tmp_path):
    models.save(model, tmp_path, max_shard_size=4000)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first = sorted(set(index["weight_map"].values()))[1]
    (tmp_path / first).unlink(missing_ok=True)
    with pytest.raises(
        FileNotFoundError, match=rf"{first} is missing; model.safetensors.index.json expects \d+ tensors"
    ):
        models.load(tmp_path)
    index["weight_map"]["model.norm.weight"] = "../outside.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"names '../outside.safetensors'; shards must lie beside the index"):
        models.load(tmp_path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="has no weight_map"):
        models.load(tmp_path)


def test_nothing_is_written_when_the_configuration_cannot_be(tmp_path):
    config = dataclasses.replace(CONFIG, num_hidden_layers=5, layer_types=(), sparse_layers=(0, 1, 4))
    with pytest.raises(ValueError, match="not evenly spaced"):
        models.save(models.Decoder(config), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="max_shard_size must be at least 1 byte; got 0"):
        models.save(models.Decoder(CONFIG), tmp_path / "new", max_shard_size=0)


def test_every_file_can_be_read_by_whom_the_umask_lets(folder) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert len(set(modes.values())) == 1, modes


def test_the_layer_that_predicts_one_more_token_is_left_out(tmp_path):
    config = models.DecoderConfig(
        **{"model_type": "deepseek_v3", "vocab_size": 31, "hidden_size": 16, "intermediate_size": 24},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "kv_lora_rank": 8, "qk_nope_head_dim": 4},
        **{"qk_rope_head_dim": 4, "v_head_dim": 6},
    )
    model = models.Decoder(config)
    models.save(model, tmp_path)
    change(tmp_path, lambda t: t.update({"model.layers.2.eh_proj.weight": torch.zeros(3)}))
    with pytest.warns(UserWarning, match=r"1 tensors of .* are left out, e.g. model.layers.2.eh_proj.weight"):
        assert same(models.load(tmp_path), model)


def test_mxfp4_weights_are_refused_and_can_be_read_as_the_message_says(tmp_path):
    """A folder as gpt-oss is published, tiny: expert weights in blocks of 32 with a common exponent."""
    from transformers import AutoModelForCausalLM, Mxfp4Config

    fields = {"vocab_size": 31, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
    config = models.DecoderConfig(
        **{"model_type": "gpt_oss", **fields, "num_attention_heads": 4, "num_experts": 2, "num_experts_per_tok": 1}
    )
    models.save(models.Decoder(config), tmp_path / "full")
    folder = tmp_path / "quantised"
    shutil.copytree(tmp_path / "full", folder)
    generator = torch.Generator().manual_seed(0)

    def quantise(tensors):
        for name, rows, columns in (("gate_up_proj", 64, 64), ("down_proj", 64, 32)):
            name = f"model.layers.0.mlp.experts.{name}"
            del tensors[name]
            blocks = torch.randint(0, 256, (2, rows, columns // 32, 16), generator=generator)
            scales = torch.randint(118, 124, (2, rows, columns // 32), generator=generator)
            tensors |= {f"{name}_blocks": blocks.to(torch.uint8), f"{name}_scales": scales.to(torch.uint8)}

    change(folder, quantise)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"quantization_config": {"quant_method": "mxfp4"}}))
    with pytest.raises(ValueError, match=r"Mxfp4Config\(dequantize=True\)\).save_pretrained\(NEW_FOLDER\)"):
        models.load(folder)
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.float32, attn_implementation="eager"
    )
    theirs.save_pretrained(tmp_path / "dequantised")
    ours = models.load(tmp_path / "dequantised")
    ids = torch.randint(0, 31, (1, 8))
    torch.testing.assert_close(ours.logits(ours(ids)), theirs(ids).logits, rtol=0, atol=1e-4)
