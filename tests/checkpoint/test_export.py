"""A group under Hugging Face's names: other libraries read the directory as theirs, and it loads by its own names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from oarlock.checkpoint import CheckpointError, Shard, export, load_checkpoint, save_checkpoint
from oarlock.checkpoint.aoa import AOA, TensorSpec
from oarlock.checkpoint.huggingface import open_safetensors
from oarlock.ranks import Ranks
from process_group import run_ranks

PROGRAMS = [
    "",
    "a -> x.a\nb^T -> x.b",
    "a, c -> ac, axis=0",
    "qkv -> q, k, vv, axis=0, sizes=[4,2,2]",
    "e -> e.0, e.1, e.2, stack=0",
    "qkv -> gu, rearrange='(two i) h -> (i two) h, two=2'",
    "t -> u, permute='[2,0,1]'\nt2 -> t2, reshape=[4,3]",
    "a -> h, dtype='float64'\nv -> p, pad=11",
]


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = {"a": (5, 6), "b": (3, 4), "c": (2, 6), "qkv": (8, 3), "e": (3, 2, 2), "t": (3, 4, 2), "v": (7,)}
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    others = {"t2": torch.arange(12), "s": torch.tensor(2.0), "none": torch.zeros(0, 3), "h8": torch.ones(3).bfloat16()}
    return made | others


def in_pieces(tensor: torch.Tensor, cut: int) -> Shard | torch.Tensor:
    """The same tensor as a process with two runs of its rows would hold it."""
    if tensor.dim() == 0 or tensor.shape[0] < 2:
        return tensor
    cut, size = cut % (tensor.shape[0] - 1) + 1, tensor.shape[0]
    return Shard.blocks(torch.cat([tensor[cut:], tensor[:cut]]), tensor.shape, 0, [(cut, size), (0, cut)])


def stored(path: Path) -> dict[str, torch.Tensor]:
    """As the safetensors library reads them, through the index."""
    names = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    found = {}
    for name, file in names.items():
        with safe_open(path / file, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}
            found[name] = opened.get_tensor(name)
    return found


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.sampled_from(PROGRAMS), cut=st.integers(0, 9), size=st.sampled_from([40, 150, 10**6]))
def test_any_program(tmp_path_factory: pytest.TempPathFactory, text: str, cut: int, size: int) -> None:
    whole = tensors()
    group = {name: in_pieces(tensor, cut) for name, tensor in whole.items()}
    root = tmp_path_factory.mktemp("c")
    path = save_checkpoint(root, 1, tensors={"model": group}, hf={"model": text}, max_shard_bytes=size)
    expected = AOA(text).compile({name: TensorSpec.of(tensor) for name, tensor in whole.items()}, None).apply(whole)
    found = stored(path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert open_safetensors(path).tensors.keys() == expected.keys()
    saved = load_checkpoint(path, verify="read")
    assert saved.names("model") == list(whole)
    assert saved.shapes("model") == {name: tuple(tensor.shape) for name, tensor in whole.items()}
    again = saved.tensors("model")
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())
    part = Shard.box(torch.zeros(2, 4), (5, 6), (2, 1))
    report = saved.load("model", {"a": part}, strict="destination")
    assert torch.equal(part.tensor, whole["a"][2:4, 1:5])
    assert (report.loaded, len(report.unexpected)) == (["a"], len(whole) - 1)


def test_through_a_program_of_the_reader(tmp_path: Path) -> None:
    """Composition: what is read consists of tensors that themselves consist of what is stored."""
    whole = tensors()
    text = "a, c -> ac, axis=0\nqkv -> gu, rearrange='(two i) h -> (i two) h, two=2'\nt -> u, permute='[2,0,1]'"
    path = save_checkpoint(tmp_path, 1, tensors={"model": whole}, hf={"model": text})
    ours = """
        a[::2]^T -> at
        qkv[1:8:3] -> r
        t -> f, reshape=[24]
        f[3:23:5] -> g
        qkv -> m, rearrange='(a b) h -> b a h, a=4'
    """
    expected = AOA(ours).compile({name: TensorSpec.of(tensor) for name, tensor in whole.items()}, None).apply(whole)
    found = {name: torch.zeros_like(tensor) for name, tensor in expected.items() if name in ("at", "r", "g", "m")}
    load_checkpoint(path, verify="read").load("model", found, aoa=ours, strict="destination")
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_ties(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    group = {"head": weight, "embed": weight, "norm": torch.ones(3)}
    for step, (text, names) in enumerate(
        [
            ("", {"head", "norm"}),
            ("head -> _", {"embed", "norm"}),
            ("embed -> model.embed", {"model.embed", "norm"}),
            ("head -> lm_head\nembed -> model.embed", {"lm_head", "model.embed", "norm"}),
        ]
    ):
        path = save_checkpoint(tmp_path, step, tensors={"model": group}, hf={"model": text})
        assert stored(path).keys() == names, text
        again = load_checkpoint(path).tensors("model")
        assert list(again) == list(group)
        assert all(torch.equal(again[name], tensor) for name, tensor in group.items())


def test_what_is_dropped_or_lost(tmp_path: Path) -> None:
    whole = tensors()
    path = save_checkpoint(tmp_path, 1, tensors={"model": whole}, hf={"model": "t2 -> _"})
    assert set(load_checkpoint(path).names("model")) == whole.keys() - {"t2"}
    with pytest.raises(ValueError, match=r"group 'model' could not be read again .*'a' cannot be recovered"):
        save_checkpoint(tmp_path, 2, tensors={"model": whole}, hf={"model": "a[:3] -> a3"})
    with pytest.raises(ValueError, match=r"stores no element of 'a'; say 'a -> _' if that is meant"):
        save_checkpoint(tmp_path, 2, tensors={"model": whole}, hf={"model": "c -> a"})
    with pytest.raises(ValueError, match=r"hf names the group 'modle', but `tensors` has model"):
        save_checkpoint(tmp_path, 2, tensors={"model": whole}, hf={"modle": ""})
    with pytest.raises(ValueError, match=r"group 'model' has no tensors to store"):
        save_checkpoint(tmp_path, 2, tensors={"model": {}}, hf={"model": ""})


def test_transformers_reads_it(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    fused = {}
    for name, tensor in model.state_dict().items():
        if ".gate_proj." in name:
            up = model.state_dict()[name.replace("gate", "up")]
            fused[name.replace("gate_proj", "gate_up")] = torch.cat([tensor, up])
        elif ".up_proj." not in name:
            fused[name] = tensor
    moments = {f"exp_avg/{name}": torch.randn(tensor.shape) for name, tensor in fused.items()}
    text = "model.layers.$L.mlp.gate_up.weight -> model.layers.$L.mlp.gate_proj.weight, " \
        "model.layers.$L.mlp.up_proj.weight, axis=0"  # fmt: skip
    path = save_checkpoint(
        *(tmp_path, 1),
        tensors={"model": fused, "optimizer": moments},
        hf={"model": text},
        files={"config.json": config.to_json_string().encode()},
        max_shard_bytes=4000,
    )
    again = transformers.LlamaForCausalLM.from_pretrained(path)
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    saved = load_checkpoint(path, verify="read")
    assert all(torch.equal(saved.tensors("model")[name], tensor) for name, tensor in fused.items())
    assert all(torch.equal(saved.tensors("optimizer")[name], tensor) for name, tensor in moments.items())


def test_a_flipped_bit(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, tensors={"model": tensors()}, hf={"model": "b^T -> bt"})
    raw = bytearray((path / "model.safetensors").read_bytes())
    raw[-3] ^= 1
    (path / "model.safetensors").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"model.safetensors: .*expected digest"):
        load_checkpoint(path, verify="read").load("model", {"b": torch.zeros(3, 4)}, strict="destination")


def save_together(root: str) -> dict[str, Any]:
    """Uneven parts on every rank; the steps are so small that tensors travel in several."""
    dist.init_process_group("gloo")
    export.STEP_BYTES = 30
    rank, whole = dist.get_rank(), tensors()
    for number, text in enumerate(PROGRAMS):
        group: dict[str, Any] = {}
        for name, tensor in whole.items():
            if name in ("s", "none", "e", "h8"):
                group[name] = tensor
                continue
            cut = [0, 1, 1, tensor.shape[0]] if number % 2 else [0, 1, 2, tensor.shape[0]]
            part = tensor[cut[rank] : cut[rank + 1]].clone()
            group[name] = Shard.box(part, tensor.shape, (cut[rank],) + (0,) * (tensor.dim() - 1))
        options = {"hf": {"model": text}, "max_shard_bytes": 100}
        if number % 2:
            save_checkpoint(root, number, tensors={"model": group}, **options)
        else:
            save_checkpoint(root, number, tensors={"model": group}, wait=False, **options).result()
    full = {"w": torch.ones(8, 3), "v": torch.zeros(100)}
    options = {"hf": {"model": ""}, "max_shard_bytes": 100}

    def refuse(*_: object) -> None:
        raise AssertionError("replicas need no exchange")

    Ranks.exchange = refuse
    save_checkpoint(root, 100, tensors={"model": full}, **options)
    dist.destroy_process_group()
    return {}


def test_pieces_of_several_ranks(tmp_path: Path) -> None:
    run_ranks(3, save_together, tmp_path)
    whole = tensors()
    for number, text in enumerate(PROGRAMS):
        path = tmp_path / f"step-{number:08d}"
        program = AOA(text).compile({name: TensorSpec.of(tensor) for name, tensor in whole.items()}, None)
        expected = program.apply(whole)
        found = stored(path)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected), text
        again = load_checkpoint(path).tensors("model")
        assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())
    assert len(list((tmp_path / "step-00000000").glob("model-*"))) > 3
