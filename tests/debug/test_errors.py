"""Exceptions in backward passes carry where they come from; nothing stays behind."""

import gc
import re

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from oarlock import debug


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        raise ValueError("planted")


class Nest(torch.autograd.Function):
    """Runs a graph of its own, whose depth is `levels` Functions."""

    @staticmethod
    def forward(ctx, x: Tensor, levels: int) -> Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = Nest.apply(ctx.x, levels - 1) if levels > 1 else Bad.apply(ctx.x)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, None]:
        ctx.y.backward(g)
        return ctx.x.grad, None


class Layer(nn.Module):
    def __init__(self, act) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.proj(x))


def notes_of(model: nn.Module, *, x: Tensor | None = None, run=None) -> list[str]:
    def step() -> None:
        y = model(torch.randn(2, 4) if x is None else x).sum()
        (run or Tensor.backward)(y)

    with pytest.raises((ValueError, RuntimeError)) as info, debug.errors(model):
        step()
    return info.value.__notes__


def test_a_custom_function_is_named_with_the_place_of_its_call() -> None:
    model = nn.Sequential(Layer(torch.relu), Layer(lambda x: Bad.apply(x)))
    (note,) = notes_of(model)
    assert note.startswith("in the backward of 1/Bad1 (BadBackward), made here:")
    assert re.search(r"test_errors.py:\d+ in .*Layer.forward|test_errors.py:\d+ in test_a_custom.*lambda", note)
    assert "1.proj/linear2_out_float32_2x4" in note


@pytest.mark.parametrize("run", [Tensor.backward, torch.autograd.backward, lambda y: torch.autograd.grad(y, y)])
def test_every_way_into_the_engine_carries_notes(run) -> None:
    model = nn.Sequential(Layer(lambda x: Bad.apply(x)))
    if run not in (Tensor.backward, torch.autograd.backward):
        (weight,) = [p for p in model.parameters() if p.dim() == 2]
        run = lambda y: torch.autograd.grad(y, weight)  # noqa: E731
    assert "0/Bad1" in notes_of(model, run=run)[0]


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_nested_functions_are_indented_one_level_each(levels: int) -> None:
    notes = notes_of(Layer(lambda x: Nest.apply(x, levels)))
    assert len(notes) == levels + 1
    for i, note in enumerate(notes):
        name = "Bad1" if i == 0 else f"Nest{levels + 1 - i}"
        indent = "  " * (levels - i)
        assert note.startswith(f"{indent}in the backward of {name} ")
        assert all(line.startswith(indent) for line in note.splitlines())


def test_a_function_in_a_checkpointed_region_is_named() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Layer(lambda x: Bad.apply(x.exp()))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    notes = notes_of(Checkpointed())
    assert "inner/Bad1" in notes[0]


def exp_then_add(x: Tensor) -> Tensor:
    y = x.exp()
    y.add_(1)  # planted
    return y


def exp_then_write_a_view(x: Tensor) -> Tensor:
    y = x.exp()
    y[0].zero_()  # planted
    return y


def mul_then_write_an_input(x: Tensor) -> Tensor:
    scale = torch.ones(4)
    y = x * scale
    scale[1] = 3.0  # planted
    return y


def view_then_write_its_base(x: Tensor) -> Tensor:
    scale = torch.ones(2, 2)
    flat = scale.view(4)
    y = x * flat
    scale.mul_(2)  # planted
    return y


@pytest.mark.parametrize(
    ("act", "api", "write"),
    [
        (exp_then_add, "exp1", "add_1"),
        (exp_then_write_a_view, "exp1", "zero_1"),
        (mul_then_write_an_input, "mul1", "setitem1"),
        (view_then_write_its_base, "mul1", "mul_1"),
    ],
)
def test_a_version_error_names_both_places(act, api: str, write: str) -> None:
    (note,) = notes_of(Layer(act))
    made, changed = note.split("changed in place by ")
    assert f"in the backward of {api} " in made
    first_line = act.__code__.co_firstlineno
    assert any(f"test_errors.py:{first_line + i} in {act.__name__}" in made for i in (1, 2, 3))
    planted = next(i for i, line in enumerate(_source(act)) if "# planted" in line)
    assert changed.startswith(f"{write}, here:\n  ")
    assert f"test_errors.py:{first_line + planted} in {act.__name__}" in changed.splitlines()[1]


def _source(function) -> list[str]:
    import inspect

    return inspect.getsource(function).splitlines()


def test_a_hook_that_raises_is_placed() -> None:
    model = Layer(torch.relu)

    def hook(grad: Tensor) -> None:
        raise ValueError("planted")

    def act(x: Tensor) -> Tensor:
        y = x.exp()
        y.register_hook(hook)
        return y.square()

    model.act = act
    assert notes_of(model)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_torch_stays_patched(fails: bool) -> None:
    before = (
        nn.Module.__call__,
        torch.autograd.Function.__dict__["apply"],
        torch.overrides._len_torch_function_stack(),
    )
    model = Layer(lambda x: Bad.apply(x) if fails else x)
    if fails:
        assert notes_of(model)
    else:
        with debug.errors(model), debug.trace(model):
            model(torch.randn(2, 4)).sum().backward()
    after = (nn.Module.__call__, torch.autograd.Function.__dict__["apply"], torch.overrides._len_torch_function_stack())
    assert before[0] is after[0]
    assert before[1] is after[1]
    assert before[2] == after[2]


def test_a_thousand_iterations_leave_nothing_behind() -> None:
    model = Layer(torch.relu)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.randn(2, 4)
    with debug.errors(model) as recorder:

        def iterations(count: int) -> int:
            for _ in range(count):
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                recorder.step()
            gc.collect()
            return len(gc.get_objects())

        iterations(10)
        first = iterations(10)
        last = iterations(1000)
    # 13 tensors are made in an iteration; the table of known ones is swept at 4,096 entries, of 3 objects each.
    assert last - first < 3 * 4096 + 1000


def test_a_hook_of_a_tensor_that_raises_names_its_node() -> None:
    def refuse(gradient: Tensor) -> None:
        raise ValueError("refused")

    x = torch.ones(3, requires_grad=True)
    with debug.errors():
        y = x.exp()
        y.register_hook(refuse)
        with pytest.raises(ValueError, match="refused") as caught:
            y.sin().sum().backward()
    (note,) = caught.value.__notes__
    assert "in the backward of exp1 (ExpBackward0)" in note


def test_hooks_of_the_program_stay_its_own() -> None:
    """All nodes share one table of hooks, which no tensor of the program may come to hold."""
    x = torch.ones(3, requires_grad=True)
    seen: list[str] = []
    with debug.errors():
        y, z = x.exp(), x.sin()
        handle = y.register_hook(lambda gradient: seen.append("y"))
        (y + z).sum().backward(retain_graph=True)
        assert seen == ["y"]
        handle.remove()
        (y + z).sum().backward()
    assert seen == ["y"]


def test_no_node_is_held_after_a_backward() -> None:
    recorder = debug.errors()
    with recorder:
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        x.exp().sum().backward()
        assert recorder._local.node is None
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        assert recorder._local.node is None
