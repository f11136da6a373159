"""Tied weights meet untied ones: never a silent choice, never a missing name, optimizer state on one name only."""

from pathlib import Path

import pytest
import torch
from torch import nn

from oarlock import checkpoint
from oarlock.checkpoint import CheckpointError, Shard, load_checkpoint, save_checkpoint


class Tied(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 9, bias=False)
        if tied:
            self.head.weight = self.embed.weight


def save(root: Path, model: nn.Module, step: int = 1, **options: object) -> checkpoint.Checkpoint:
    path = save_checkpoint(root, step, tensors={"model": model.state_dict()}, **options)
    return load_checkpoint(path, verify="read")


PROGRAM = "embed.weight -> embed.weight\nhead.weight -> head.weight\n"


@pytest.mark.parametrize("hf", [None, {"model": ""}])
@pytest.mark.parametrize("aoa", [None, PROGRAM])
def test_an_untied_checkpoint_into_a_tied_model(tmp_path: Path, hf: dict[str, str] | None, aoa: str | None) -> None:
    source, model = Tied(tied=False), Tied(tied=True)
    saved = save(tmp_path, source, hf=hf)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    message = r"embed.weight and head.weight share their memory, but the checkpoint has different values .*prefer="
    for verify in ("read", False):
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(saved.path, verify=verify).load("model", model.state_dict(), aoa=aoa)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    for chosen in ("embed.weight", "head.weight"):
        report = saved.load("model", model.state_dict(), aoa=aoa, prefer=[chosen])
        assert torch.equal(model.embed.weight, source.state_dict()[chosen])
        assert sorted(report.loaded) == sorted(before)
    with torch.no_grad():
        source.embed.weight[0, 0] = torch.nan  # bits are compared
        source.head.weight.copy_(source.embed.weight)
    save(tmp_path, source, 2, hf=hf).load("model", model.state_dict(), aoa=aoa)
    assert torch.equal(model.embed.weight.view(torch.int32), source.head.weight.view(torch.int32))
    with torch.no_grad():
        source.head.weight[8, 3] += 1
    with pytest.raises(CheckpointError, match="different values"):
        save(tmp_path, source, 3, hf=hf).load("model", model.state_dict(), aoa=aoa)


@pytest.mark.parametrize("hf", [None, {"model": ""}, {"model": "head.weight -> _"}])
def test_a_tied_checkpoint_fills_both(tmp_path: Path, hf: dict[str, str] | None) -> None:
    source, model, tied = Tied(tied=True), Tied(tied=False), Tied(tied=True)
    saved = save(tmp_path, source, hf=hf)
    saved.load("model", model.state_dict())
    assert torch.equal(model.embed.weight, source.embed.weight)
    assert torch.equal(model.head.weight, source.embed.weight)
    report = saved.load("model", tied.state_dict())
    assert torch.equal(tied.head.weight, source.embed.weight)
    assert report.bytes_needed == sum(parameter.nbytes for parameter in tied.parameters()), "read once"


@pytest.mark.parametrize("aoa", [None, "embed.weight -> embed.weight"])
def test_one_name_is_enough_for_a_tied_model(tmp_path: Path, aoa: str | None) -> None:
    """As Hugging Face's folders have it."""
    source, tied, untied = Tied(tied=False), Tied(tied=True), Tied(tied=False)
    for name in ("head.weight", "embed.weight"):
        tensors = {key: value for key, value in source.state_dict().items() if key != name}
        text = aoa if name == "head.weight" else None
        path = save_checkpoint(tmp_path, len(name), tensors={"model": tensors}, overwrite=True)
        report = load_checkpoint(path, verify="read").load("model", tied.state_dict(), aoa=text)
        assert sorted(report.loaded) == sorted(tied.state_dict())
        assert report.missing == []
        assert torch.equal(tied.head.weight, source.state_dict()["embed.weight" if "head" in name else "head.weight"])
        with pytest.raises((CheckpointError, ValueError), match=name):
            load_checkpoint(path).load("model", untied.state_dict(), aoa=text)


def test_shards_tie_if_they_are_the_same_part(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, tensors={"m": {"a": torch.zeros(4, 3), "b": torch.ones(4, 3)}})
    memory = torch.zeros(2, 3)
    same = {name: Shard.box(memory, (4, 3), (2, 0)) for name in "ab"}
    with pytest.raises(CheckpointError, match=r"a and b share their memory, .* \(in \[2:4, 0:3\]\)"):
        load_checkpoint(path, verify="read").load("m", same)
    load_checkpoint(path, verify="read").load("m", same, prefer="b")
    assert bool((memory == 1).all())


def test_optimizer_state_on_one_name_only(tmp_path: Path) -> None:
    model, other = Tied(tied=True), Tied(tied=True)
    optimizers = [torch.optim.AdamW(module.parameters()) for module in (model, other)]
    model.head(model.norm(model.embed(torch.arange(9)))).sum().backward()
    optimizers[0].step()
    tensors = checkpoint.optimizer_tensors(optimizers[0], model.named_parameters())
    assert not any("head" in name for name in tensors)
    state = checkpoint.optimizer_state(optimizers[0], model.named_parameters())
    path = save_checkpoint(tmp_path, 1, tensors={"optimizer": tensors}, state=state)
    saved = load_checkpoint(path)
    checkpoint.load_optimizer(optimizers[1], other.named_parameters(), saved.tensors("optimizer"), saved.state)
    moment = optimizers[1].state[other.head.weight]["exp_avg"]
    assert torch.equal(moment, optimizers[0].state[model.embed.weight]["exp_avg"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex128, torch.bool])
@pytest.mark.parametrize("view", ["transposed", "part", "rows", "apart"])
def test_destinations_that_share_some_memory(tmp_path: Path, view: str, dtype: torch.dtype) -> None:
    """Each is saved as it is, so loading again is right; other values for what they share are an error."""

    def views(memory: torch.Tensor) -> dict[str, torch.Tensor]:
        a = memory[:12].view(3, 4)
        b = {"transposed": a.T, "part": a[1:, 1::2], "rows": memory[8:].view(2, 4), "apart": memory[12:]}[view]
        return {"other": torch.zeros(2), "a": a, "b": b}

    memory = (torch.arange(16) % 7 % 2 + 1).to(dtype)
    saved = load_checkpoint(save_checkpoint(tmp_path, 1, tensors={"m": views(memory)}), verify="read")
    found = torch.zeros(16, dtype=dtype)
    saved.load("m", views(found))
    used = slice(None) if view in ("rows", "apart") else slice(12)
    assert torch.equal(found[used], memory[used])
    other = {name: tensor.clone() for name, tensor in views(memory).items()}
    other["b"] = torch.zeros_like(other["b"])
    saved = load_checkpoint(save_checkpoint(tmp_path, 2, tensors={"m": other}), verify="read")
    found = torch.zeros(16, dtype=dtype)
    for aoa in (None, "a -> a ; b -> b"):
        if view == "apart":
            saved.load("m", views(found), aoa=aoa)
            continue
        with pytest.raises(CheckpointError, match=r"a and b share some of their memory.*prefer=\('a',\)"):
            saved.load("m", views(found), aoa=aoa)
        assert not found.view(torch.uint8).any()
    for name in ("a", "b"):
        saved.load("m", views(found), prefer=[name])
        assert torch.equal(views(found)[name], other[name])


def test_lazy_destinations_that_share_memory(tmp_path: Path) -> None:
    z = torch.randn(3, dtype=torch.complex64)
    saved = load_checkpoint(save_checkpoint(tmp_path, 1, tensors={"m": {"z": z, "c": z.conj(), "i": z.conj().imag}}))
    found = torch.zeros_like(z)
    saved.load("m", {"z": found, "c": found.conj(), "i": found.conj().imag})
    assert torch.equal(found, z)
