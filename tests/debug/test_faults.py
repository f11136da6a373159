"""Faults of every kind, planted where tools often go blind: each is named, and nothing of torch stays changed."""

import contextlib
import gc
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

from oarlock import debug

CONTEXTS: dict[str, Callable[[nn.Module], object]] = {
    "names": lambda model: debug.trace(model, nodes=False),
    "hooks": lambda model: debug.trace(model, stacks=True),
    "digests": lambda model: debug.trace(model, stacks=True, digests="sha1"),
    "errors": debug.errors,
    "nonfinite": debug.find_nonfinite,
    "log": lambda model: debug.loglevel(3, backward=True, model=model),
}


class Deep(nn.Module):
    """`num_layers` blocks, the one of number `bad` with a fault."""

    def __init__(
        self, bad: int, fault: Callable[[Tensor], Tensor], *, num_layers: int = 6, again: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(num_layers))
        self.bad, self.fault, self.again = bad, fault, again

    def block(self, i: int, x: Tensor) -> Tensor:
        h = self.layers[i](x)
        return self.fault(h) if i == self.bad else h.tanh()

    def forward(self, x: Tensor) -> Tensor:
        for i in range(len(self.layers)):
            x = checkpoint(self.block, i, x, use_reentrant=False) if self.again else self.block(i, x)
        return x.square().sum()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("bad", [0, 3, 5])
def test_a_nan_of_any_layer_is_found_in_its_layer(bad: int, again: bool) -> None:
    model = Deep(bad, lambda h: (h - h.max() - 1).sqrt(), again=again)
    with debug.find_nonfinite(model) as found:
        model(torch.ones(2, 4)).backward()
    assert found.first is not None
    assert (found.first.role, found.first.name) == ("producer", "sqrt1")
    assert any("test_faults.py" in line for line in found.first.where)


@pytest.mark.parametrize("again", [False, True])
def test_a_nan_of_a_backward_node_is_found(again: bool) -> None:
    model = Deep(3, lambda h: (h * 0).sqrt(), again=again)  # finite forward, 0 * inf backward
    with debug.find_nonfinite(model) as found:
        model(torch.ones(2, 4)).backward()
    assert found.nan is not None
    assert found.nan.phase == "backward"
    assert found.nan.name.startswith(("mul", "sqrt"))


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        raise ValueError("planted")


def failing(x: Tensor) -> Tensor:
    return Failing.apply(x)


def test_an_error_on_another_thread_is_named() -> None:
    model, notes = Deep(2, failing), []
    with debug.errors(model) as recorder:

        def work() -> None:
            with recorder.on_this_thread():
                try:
                    model(torch.ones(2, 4)).backward()
                except ValueError as error:
                    notes.extend(error.__notes__)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert "in the backward of Failing1" in notes[0]


def test_a_custom_operator_that_differs_is_named() -> None:
    sign = 1.0

    @torch.library.custom_op("oarlock_faults::scaled", mutates_args=())
    def scaled(x: Tensor) -> Tensor:
        return x * 2.0 * sign

    scaled.register_fake(torch.empty_like)
    scaled.register_autograd(lambda ctx, g: g * 2.0, setup_context=lambda ctx, inputs, output: None)

    def records() -> list[dict]:
        model = Deep(1, scaled)
        with debug.trace(model, digests="sha1", stacks=True) as t:
            model(torch.ones(2, 4)).backward()
        return t.records

    a = records()
    sign = -1.0
    report = debug.compare(a, records())
    assert report.first is not None
    assert report.first.a is not None
    assert "scaled" in report.first.a["name"]
    assert report.first.a["stack"]


def test_a_fault_that_only_the_recomputation_has_is_named() -> None:
    calls = 0

    def drifting(h: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        with torch._C.DisableTorchFunction():
            drift = torch.full_like(h, float(calls > 1 and faulty))
        return (h + drift).tanh()  # drift differs, which nothing recorded has made

    faulty, runs = False, []
    for plant in (False, True):
        calls, faulty = 0, plant
        model = Deep(2, drifting, again=True)
        with debug.trace(model, digests="sha1") as t:
            model(torch.ones(2, 4)).backward()
        runs.append(t.records)
    report = debug.compare(*runs)
    (drift,) = report.outside
    assert drift.a is not None
    assert (drift.a["api"], drift.a["phase"]) == ("add", "recompute")


def identities() -> tuple[object, ...]:
    """What of torch a recorder could have changed."""
    return (
        nn.Module.__call__,
        nn.Module.__dict__["__call__"],
        torch.autograd.Function.__dict__["apply"],
        torch.autograd.backward,
        torch.autograd.grad,
        Tensor.backward,
        torch.autograd._engine_run_backward,
        torch.nn.functional.linear,
        torch.utils.checkpoint.checkpoint,
        *_get_current_function_mode_stack(),
    )


@pytest.mark.parametrize("where", ["nowhere", "forward", "backward", "hook"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_nothing_of_torch_stays_patched(context: str, where: str) -> None:
    def raising(*_: object) -> None:
        raise ValueError("planted")

    def fault(h: Tensor) -> Tensor:
        if where == "forward":
            raising()
        if where == "hook":
            h.register_hook(raising)
        return failing(h) if where == "backward" else h.tanh()

    model, before = Deep(3, fault), identities()
    with contextlib.ExitStack() as contexts:
        if where != "nowhere":
            contexts.enter_context(pytest.raises(ValueError, match="planted"))
        contexts.enter_context(CONTEXTS[context](model))  # type: ignore[arg-type]
        model(torch.ones(2, 4)).backward()
    after = identities()
    assert len(after) == len(before)
    assert all(a is b for a, b in zip(after, before, strict=True))
    assert all(not p._backward_hooks and not p._post_accumulate_grad_hooks for p in model.parameters())
    # And it still runs.
    model.bad = -1
    model(torch.ones(2, 4)).backward()


@pytest.mark.parametrize("context", ["hooks", "digests"])
def test_a_thousand_iterations_leave_no_tensor(context: str, tmp_path) -> None:
    model = Deep(-1, torch.tanh, num_layers=1)
    options = {"digests": "digest64"} if context == "digests" else {}

    def count() -> int:
        gc.collect()
        return sum(type(found) is Tensor for found in gc.get_objects())

    with debug.trace(model, tmp_path, **options) as t:
        for i in range(1000):
            model(torch.ones(2, 4)).backward()
            model.zero_grad()
            t.step()
            if i == 20:
                before = count()
        after = count()
        assert len(t._pending) <= 2048
    assert after <= before + 2


def test_a_compiled_module_is_called_as_it_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.GELU())
    monkeypatch.setattr(model[1], "_compiled_call_impl", lambda x: x * 7)
    x = torch.ones(1, 2)
    with debug.trace(model, nodes=False) as t:
        result = model(x)
    assert torch.equal(result, model[0](x) * 7)
    assert [record["name"] for record in t.records] == ["0/linear1", "1/mul1"]


def test_a_call_of_modules_that_others_replaced_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, called = nn.Module.__call__, []

    def replaced(self: nn.Module, *args: object) -> object:
        called.append(type(self).__name__)
        return plain(self, *args)

    monkeypatch.setattr(nn.Module, "__call__", replaced)
    model = nn.Sequential(nn.Linear(2, 2), nn.GELU())
    x = torch.ones(1, 2)
    with debug.trace(model, nodes=False) as t:
        model(x)
    assert called == ["Sequential", "Linear", "GELU"]
    assert [record["name"] for record in t.records] == ["0/linear1", "1/gelu1"]
    assert nn.Module.__call__ is replaced
