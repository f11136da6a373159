"""Models in GGUF files: written from transformers' models as llama.cpp does, read back under Hugging Face's names."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as token_models
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers import AutoTokenizer as HFTokenizer

from oarlock import models
from oarlock.checkpoint import open_tensors
from oarlock.checkpoint.gguf_header import GgufHeader
from oarlock.cli.main import main
from oarlock.models.gguf import ARCHITECTURES, GgufModel
from oarlock.models.gguf_tokenizer import tokenizer_files
from oarlock.ops.rotary import rope_frequencies

SIZES = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
Q8_0 = GGMLQuantizationType.Q8_0
NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate.": "ffn_gate_inp.",
}


def model_of(model_type: str, **more: Any) -> PreTrainedModel:
    fields: dict[str, Any] = SIZES | {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    fields |= {"rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "head_dim": HEAD_DIM}
    if model_type == "qwen2":
        del fields["head_dim"]
    if model_type == "qwen3_moe":
        fields |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
    decoder = models.DecoderConfig(model_type=model_type, **fields, **more)
    settings = decoder.to_hf()
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings)).float()


def saved_names(model: PreTrainedModel, folder: Path) -> dict[str, Tensor]:
    """The tensors as transformers saves them."""
    model.save_pretrained(folder)
    return open_tensors(folder).read()


def to_gguf(path: Path, architecture: str, tensors: dict[str, Tensor], config: Any, *, kind: str = "F16") -> Path:
    """What llama.cpp's converter writes: q and k of llama for neighbouring pairs, experts stacked, vectors in F32."""
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if architecture != "qwen2":
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
    if architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    stacks: dict[str, list[Tensor]] = {}
    for name, tensor in tensors.items():
        if ".experts." in name:
            layer, expert, part = re.findall(r"layers\.(\d+)\..*experts\.(\d+)\.(\w+)_proj", name)[0]
            stack = stacks.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", [])
            assert len(stack) == int(expert)
            stack.append(tensor)
            continue
        theirs = name
        for ours, other in NAMES.items():
            theirs = theirs.replace(ours, other)
        if architecture == "llama" and (".attn_q." in theirs or ".attn_k." in theirs):
            heads = config.num_attention_heads if ".attn_q." in theirs else config.num_key_value_heads
            tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        stacks[theirs] = [tensor]
    for name, parts in stacks.items():
        tensor = torch.stack(parts) if "_exps" in name else parts[0]
        values = tensor.numpy()
        if tensor.dim() == 1 or "_inp" in name or kind == "F32":
            writer.add_tensor(name, values)
        else:
            quantised = GGMLQuantizationType[kind]
            writer.add_tensor(name, quantize(values, quantised), raw_dtype=quantised)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rounded(name: str, tensor: Tensor) -> Tensor:
    """What Q8_0 leaves of a tensor that is stored so."""
    if tensor.dim() == 1 or name.endswith("mlp.gate.weight"):
        return tensor
    return torch.from_numpy(dequantize(quantize(tensor.numpy(), Q8_0), Q8_0))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_model_comes_back(architecture: str, kind: str, tmp_path: Path) -> None:
    """Bitwise from F32; from Q8_0 what is left of each tensor (rows are rounded alone, so their order is no matter)."""
    model = model_of(ARCHITECTURES[architecture], tie_word_embeddings=architecture == "llama")
    expected = saved_names(model, tmp_path / "original")
    path = to_gguf(tmp_path / "m.gguf", architecture, expected, model.config, kind=kind)
    assert main(["convert", str(path), str(tmp_path / "hf")]) == 0
    found = open_tensors(tmp_path / "hf").read()
    if kind == "Q8_0":
        expected = {name: rounded(name, tensor) for name, tensor in expected.items()}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name].float(), tensor), name
    ours, original = models.load(tmp_path / "hf", dtype=torch.float32), models.load(tmp_path / "original")
    assert ours.config == original.config
    ids = torch.arange(12)[None]
    if kind == "F32":
        assert torch.equal(ours(ids), original(ids))


def test_transformers_reads_the_same(tmp_path: Path) -> None:
    model = model_of("llama")
    path = to_gguf(tmp_path / "m.gguf", "llama", saved_names(model, tmp_path / "original"), model.config, kind="Q8_0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = AutoModelForCausalLM.from_pretrained(
            tmp_path, gguf_file="m.gguf", config=model.config, dtype=torch.float32
        )
    assert main(["convert", str(path), str(tmp_path / "hf")]) == 0
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in ours.state_dict().items())


def test_to_a_checkpoint_in_the_decoders_names(tmp_path: Path) -> None:
    model = model_of("llama")
    expected = saved_names(model, tmp_path / "original")
    path = to_gguf(tmp_path / "m.gguf", "llama", expected, model.config)
    words = ["convert", str(path), str(tmp_path / "own"), "--to", "sharded", "--family", "llama", "--dtype", "float32"]
    assert main(words) == 0
    found = open_tensors(tmp_path / "own").read()
    decoder = models.load(tmp_path / "original")
    assert found.keys() == decoder.state_dict().keys()
    for name, tensor in decoder.state_dict().items():
        reference = tensor if "norm" in name else tensor.half().float()
        assert torch.equal(found[name], reference), name


def test_rope_of_llama_3(tmp_path: Path) -> None:
    """The factors that llama.cpp stores are recognised, and others refused."""
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = model_of("llama", rope_theta=500_000.0, rope_scaling=scaling)
    tensors = saved_names(model, tmp_path / "original")
    tensors["rope_freqs.weight"] = rope_frequencies(HEAD_DIM, 500_000.0) / rope_frequencies(
        HEAD_DIM, 500_000.0, scaling
    )
    path = to_gguf(tmp_path / "m.gguf", "llama", tensors, model.config)
    assert GgufModel(path).config.rope_scaling == scaling
    tensors["rope_freqs.weight"][5] *= 1.1
    path = to_gguf(tmp_path / "n.gguf", "llama", tensors, model.config)
    with pytest.raises(ValueError, match="are not those of Llama 3"):
        GgufModel(path)


def test_what_has_no_place_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of("llama")
    tensors = saved_names(model, tmp_path / "original")
    path = to_gguf(tmp_path / "m.gguf", "falcon", tensors, model.config)
    assert main(["convert", str(path), str(tmp_path / "hf")]) == 2
    assert "names of architecture 'falcon' are not known" in capsys.readouterr().err
    (tmp_path / "p.aoa").write_text("blk.$L.ffn_up.weight -> up.$L\n")
    assert main(["convert", str(path), str(tmp_path / "hf"), "--aoa", str(tmp_path / "p.aoa")]) == 0
    assert "up.1" in open_tensors(tmp_path / "hf").tensors
    path = to_gguf(tmp_path / "n.gguf", "llama", tensors | {"strange.weight": torch.ones(3)}, model.config)
    assert main(["convert", str(path), str(tmp_path / "other")]) == 2
    assert "'strange.weight' has no name in a llama model" in capsys.readouterr().err


# ---- tokenizers ------------------------------------------------------------------------------------------------------

TEXTS = [
    "Hello world, it's 2026!\n\n  Zahlen: 12345 über Straße\t\tok",
    "def f(x):\n    return x ** 2  # \u00e9\u4f60\u597d",
    " leading and trailing ",
    "",
]


def tokenizer_of(path: Path, **metadata: Any) -> tuple[Tokenizer, dict[str, Any]]:
    """What is made of a file with this metadata."""
    writer = GGUFWriter(path, "llama")
    for key, value in metadata.items():
        key = f"tokenizer.ggml.{key}"
        {list: writer.add_array, str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}[type(value)](
            key, value
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files, problem = tokenizer_files(GgufHeader(path), 2048)
    assert not problem
    return Tokenizer.from_str(files["tokenizer.json"].decode()), json.loads(files["tokenizer_config.json"])


def test_byte_level_tokenizer(tmp_path: Path) -> None:
    original = Tokenizer(token_models.BPE())
    cuts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    original.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    original.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|end|>", "<|start|>"], initial_alphabet=alphabet, show_progress=False
    )
    original.train_from_iterator(TEXTS * 5, trainer)
    model = json.loads(original.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    metadata = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [3, 3] + [1] * (len(tokens) - 2),
        "merges": [" ".join(pair) for pair in model["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 0,
    }
    ours, config = tokenizer_of(tmp_path / "t.gguf", **metadata)
    for text in [*TEXTS, "a<|end|>b", "<|start|>Hello"]:
        assert ours.encode(text).ids == original.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == original.decode(original.encode(text).ids)
    assert (config["bos_token"], config["eos_token"]) == ("<|start|>", "<|end|>")
    ours, _ = tokenizer_of(tmp_path / "u.gguf", **metadata, add_bos_token=True)
    assert ours.encode("Hello").ids == [1, *original.encode("Hello").ids]


def test_sentencepiece_tokenizer(tmp_path: Path) -> None:
    """Against transformers' own reading of the same file (which, unlike llama.cpp, adds no blank before a blank)."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["\u2581", "H", "e", "l", "o", "w", "r", "d", "\u2581w", "He", "ll", "lo", "or", "llo", "ld", "Hello"]
    words += ["orld", "\u2581world", "\u2581Hello", "\u2581He", "\u00e9"]
    tokens = pieces + words
    scores = [0.0] * len(pieces) + [-float(index) for index in range(len(words))]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "scores": [float(score) for score in scores],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    ours, config = tokenizer_of(tmp_path / "t.gguf", **metadata)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = HFTokenizer.from_pretrained(tmp_path, gguf_file="t.gguf")
    for text in ["Hello world", "HelloHello", "lower world \u00e9\u4f60", "two  blanks"]:
        assert ours.encode(text, add_special_tokens=False).ids == theirs(text, add_special_tokens=False).input_ids, text
        assert ours.decode(ours.encode(text).ids) == text
    assert ours.encode("Hello").ids[0] == 1
    assert config["unk_token"] == "<unk>"


def test_an_unknown_tokenizer_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a"])
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "viking")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files, problem = tokenizer_files(GgufHeader(path), 2048)
    assert not files
    assert "(gpt2, viking)" in problem
