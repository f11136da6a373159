"""`compare` names the place of a planted fault, of every kind, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock import debug
from oarlock.digest import sha1


class Net(nn.Module):
    """Three layers; `fault` is what the second does to its result, or to what it computes it from."""

    def __init__(self, fault: Callable[[Tensor], Tensor] | None = None, act=F.gelu, swap: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.fault, self.act, self.swap = fault, act, swap

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            h = layer(x)
            if i == 1:
                h = self.act(h)
                h = torch.sub(x, h) if self.swap else torch.sub(h, x)
                if self.fault is not None:
                    h = self.fault(h)
            x = h
        return x.square().mean()


def run(model: nn.Module, folder: Path | None = None, *, steps: int = 2, **options) -> list[dict]:
    torch.manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options = {"digests": "sha1"} | options
    with debug.trace(model, folder, **options) as t:
        for _ in range(steps):
            model(torch.randn(4, 6)).backward()
            optimizer.step()
            optimizer.zero_grad()
            t.step()
    return t.records


def test_equal_runs_are_the_same(tmp_path: Path) -> None:
    a, b = run(Net(), tmp_path / "a"), run(Net(), tmp_path / "b")
    report = debug.compare(a, b)
    assert report.same
    assert report.num_compared == len(a) > 40
    assert "the runs are the same" in report.text()


def test_a_wrong_operation_is_named() -> None:
    report = debug.compare(run(Net()), run(Net(act=F.relu)))
    assert report.first is not None
    assert (report.first.a["api"], report.first.b["api"]) == ("gelu", "relu")
    assert report.first.a["step"] == 0
    assert "A calls gelu where B calls relu" in report.text()


def test_swapped_operands_are_named() -> None:
    report = debug.compare(run(Net()), run(Net(swap=True)))
    assert report.first is not None
    assert report.first.a["name"] == "sub1"
    assert "another order" in report.first.what


class Planted(torch.autograd.Function):
    """The identity, with a fault in the values that no other record shows."""

    change: Callable[[Tensor], Tensor] = staticmethod(lambda t: t.clone())
    change_gradient: Callable[[Tensor], Tensor] = staticmethod(lambda t: t.clone())

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return Planted.change(x.detach())

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return Planted.change_gradient(g)


def planted(x: Tensor) -> Tensor:
    return Planted.apply(x)


def flip_one_bit(x: Tensor) -> Tensor:
    y = x.clone()
    y.view(torch.int32).view(-1)[5] ^= 1
    return y


FAULTS = {
    "sign": lambda t: -t,
    "permuted": lambda t: t.flip(0),
    "one bit": flip_one_bit,
    "transposed": lambda t: t.view(6, 4).t().reshape(4, 6),
    "nan": lambda t: t.masked_fill(t == t.max(), float("nan")),
}


@pytest.mark.parametrize("algorithm", ["sha1", "md5", "digest64"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_values_is_named(fault: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = run(Net(fault=planted), digests=algorithm)
    monkeypatch.setattr(Planted, "change", staticmethod(FAULTS[fault]))
    report = debug.compare(a, run(Net(fault=planted), digests=algorithm))
    assert report.first is not None
    assert report.first.a["name"] == report.first.b["name"] == "Planted1"
    assert not report.outside


def test_a_function_whose_apply_was_taken_before_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    early = Planted.apply
    a = run(Net(fault=early))
    monkeypatch.setattr(Planted, "change", staticmethod(torch.neg))
    report = debug.compare(a, run(Net(fault=early)))
    assert report.first is not None
    assert report.first.a["name"] == "Planted1"
    assert [t["name"] for t in report.first.a["inputs"]] == ["sub1_out_float32_4x6"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_gradient_is_named(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = run(Net(fault=planted))
    monkeypatch.setattr(Planted, "change_gradient", staticmethod(FAULTS[fault]))
    report = debug.compare(a, run(Net(fault=planted)))
    assert report.first is not None
    assert report.first.a["name"] == "Planted1Backward"


def test_a_weight_that_was_written_unseen_is_named() -> None:
    a, model = run(Net()), Net()
    model.layers[1].weight.data.view(torch.int32).view(-1)[7] ^= 1
    report = debug.compare(a, run(model))
    assert next(d.what.split()[0] for d in report.outside) == "layers.1.weight"


def test_what_accumulates_in_a_leaf_is_recorded() -> None:
    model = Net()
    leaves = [r for r in run(model, steps=1) if r["kind"] == "leaf"]
    assert {r["module"] for r in leaves} == {name for name, _ in model.named_parameters()}
    again = Net()
    torch.manual_seed(2)
    again(torch.randn(4, 6)).backward()
    digests = {f"{name}@grad": sha1(parameter.grad) for name, parameter in again.named_parameters()}
    assert {r["outputs"][0]["name"]: r["outputs"][0]["digest"] for r in leaves} == digests
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_gradient_that_is_changed_at_its_leaf_is_named() -> None:
    a, model = run(Net()), Net()

    def flip(leaf: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            leaf.grad.view(torch.int32).view(-1)[3] ^= 1

    model.layers[1].bias.register_post_accumulate_grad_hook(flip)
    report = debug.compare(a, run(model))
    assert report.first is not None
    assert report.first.a["name"].startswith("layers.1.bias/accumulate_grad")


def test_a_gradient_that_a_hook_changes_in_place_is_seen() -> None:
    class Hooked(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = self.layers[0](x)
            if h.requires_grad:
                h.register_hook(self.hook)
            return self.layers[1](h).square().mean()

    def double(g: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            g.mul_(2)

    plain, changed = Hooked(), Hooked()
    plain.hook, changed.hook = (lambda g: None), double
    report = debug.compare(run(plain), run(changed))
    assert not report.same
    assert report.num_different


def test_an_operation_too_many_is_named_and_the_rest_still_pairs() -> None:
    report = debug.compare(run(Net()), run(Net(fault=lambda h: h * 2)))
    assert report.first is not None
    assert report.first.b["name"] == "mul1"
    assert report.only_a == []


def test_a_longer_run_is_compared_as_far_as_both_go() -> None:
    report = debug.compare(run(Net(), steps=3), run(Net(), steps=2))
    assert report.num_different == 0
    assert report.first is None
    assert {record["step"] for record in report.only_a} == {2}
    assert not report.same


def test_a_tolerance_tells_noise_from_a_fault() -> None:
    options = {"probes": True}
    a = run(Net(fault=lambda h: h * 1.0), **options)
    noisy = run(Net(fault=lambda h: h * (1 + 1e-6)), **options)
    assert not debug.compare(a, noisy).same
    assert debug.compare(a, noisy, tolerance=1e-4).same
    for fault in (lambda h: h * -1.0, lambda h: h * 1.001):
        report = debug.compare(a, run(Net(fault=fault), **options), tolerance=1e-4)
        assert report.first is not None
        assert report.first.a["name"] == "mul1"
    with pytest.raises(ValueError, match="probes=True"):
        debug.compare(run(Net()), run(Net()), tolerance=1e-4)


def test_decimals_hide_what_is_below_them() -> None:
    a = run(Net(fault=lambda h: h * 0.0), decimals=3)
    b = run(Net(fault=lambda h: h * -0.0), decimals=3)
    assert debug.compare(a, b).same
    assert not debug.compare(run(Net(), decimals=3), run(Net(fault=lambda h: h * 1.01), decimals=3)).same


def test_without_digests_only_names_and_shapes_are_compared() -> None:
    report = debug.compare(run(Net(), digests=None), run(Net(swap=True), digests=None))
    assert report.same
    assert "no digests" in report.text()


def test_a_gradient_that_only_its_leaf_shows_is_named() -> None:
    """A product of three dimensions has several nodes; it is not the first that gives the weight's gradient."""

    def train(change: Callable[[Tensor], Tensor]) -> list[dict]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.GELU(), nn.Linear(5, 4, bias=False))
        model[2].weight.register_hook(change)
        with debug.trace(model, digests="sha1") as t:
            model(torch.randn(2, 3, 6)).square().mean().backward()
        return t.records

    report = debug.compare(train(lambda g: g), train(lambda g: g * 1.0000002))
    assert report.first is not None
    assert report.first.a["name"].startswith("2.weight/accumulate_grad")
    assert report.num_different == 1


@pytest.mark.parametrize("steps", [2, 3])
def test_a_run_without_digests_is_compared_by_what_both_have(steps: int) -> None:
    with_digests, without = run(Net()), run(Net(), digests=None, steps=steps)
    for report in (debug.compare(with_digests, without), debug.compare(without, with_digests)):
        assert not report.has_contents
        assert (report.first, report.num_different, report.outside) == (None, 0, [])
        assert report.same is (steps == 2)
    report = debug.compare(with_digests, run(Net(act=F.relu), digests=None))
    assert (report.only_a[0]["api"], report.only_b[0]["api"]) == ("gelu", "relu")


def test_elements_that_have_changed_places_are_not_within_a_tolerance() -> None:
    def records(place: int | None) -> list[dict]:
        x = torch.randn(64, generator=torch.Generator().manual_seed(0))
        if place is not None:
            x[[0, place]] = x[[place, 0]]
        with debug.trace(digests="sha1", probes=True) as t:
            Identity.apply(x).relu()
        return t.records

    plain = records(None)
    assert not [place for place in range(1, 64) if debug.compare(plain, records(place), tolerance=1e-4).same]


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()


@pytest.mark.parametrize(("error", "same"), [(1e-7, True), (1e-2, False)])
def test_complex_numbers_are_compared_within_a_tolerance(error: float, same: bool) -> None:
    def records(factor: float) -> list[dict]:
        x = torch.randn(50, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
        with debug.trace(digests="sha1", probes=True) as t:
            x * factor
        return t.records

    assert debug.compare(records(1.0), records(1.0 + error), tolerance=1e-3).same is same


def test_a_write_that_only_one_run_has_is_named_and_its_tensor_is_not_from_outside() -> None:
    def train(decay: float) -> list[dict]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=decay, foreach=False)
        with debug.trace(model, digests="sha1") as t:
            model(torch.arange(8.0).reshape(2, 4)).sum().backward()
            optimizer.step()
        return t.records

    for a, b in ((0.0, 0.1), (0.1, 0.0)):
        report = debug.compare(train(a), train(b))
        assert not report.outside
        assert report.first is not None
        extra = report.first.b if a == 0.0 else report.first.a
        assert extra is not None
        assert (extra["api"], extra["outputs"][0]["name"]) == ("mul_", "0.weight")
