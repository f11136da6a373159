"""What cannot be compiled is named by file and line: planted breaks, and the decoders, which have none."""

import functools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from oarlock.attention import ColumnMask
from oarlock.compile import TooManyBreaks, Watch, compile_blocks, explain, forget_compiled, is_compiled
from oarlock.models import FAMILIES, Decoder
from oarlock.train.build import decoder_config
from oarlock.train.config import ModelConfig

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # tracing makes instances of Functions and looks at .grad of non-leaves
HERE = Path(__file__).name


def line_of(text: str) -> int:
    """The line of this file that ends in a mark."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


class Item(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.a(x).sum().item()  # planted item
        return self.b(x) * scale


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            if x.sum() > 0:  # planted branch
                x = x + 1
        return x


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item, self.loop = Item(), Loop()

    def forward(self, x: Tensor) -> Tensor:
        return self.loop(self.item(x))


def test_a_break_is_named_with_its_line_and_kind() -> None:
    report = explain(Item(), torch.randn(2, 4))
    (found,) = report.breaks
    assert (Path(found.file).name, found.line, found.count, found.eager) == (HERE, line_of("planted item"), 1, "")
    assert "item()" in found.kind
    assert report.num_graphs == 2
    assert f"{HERE}:{found.line}" in str(report)
    with pytest.raises(TooManyBreaks, match=r"1 graph break, 0 are allowed"):
        report.check(0)
    report.check(1)


def test_a_break_inside_of_a_loop_gives_up_its_function_and_counts_what_is_lost() -> None:
    torch.manual_seed(0)
    report = explain(Loop(), torch.randn(2, 4))
    (found,) = report.breaks
    assert (found.line, found.eager) == (line_of("planted branch"), "Loop.forward")
    # Three times: a linear, a sum, a comparison, its truth, and perhaps an addition.
    assert 3 * 4 <= found.ops_lost <= 3 * 6
    assert "runs eagerly: the break is inside of a loop" in str(report)


def test_several_breaks_are_told_apart() -> None:
    report = explain(Both(), torch.randn(2, 4))
    assert {each.line for each in report.breaks} == {line_of("planted item"), line_of("planted branch")}
    assert report.num_breaks == 2  # torch also met them while it tried to inline the inner calls


class Printing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        print(end="")  # planted print
        return x + 1


class Middle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Printing()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.middle = Middle()

    def forward(self, x: Tensor) -> Tensor:
        return self.middle(self.middle(x))


class PrintingFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        print(end="")  # planted function
        return x * 2

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 2


def hooked() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, inputs, out: print(end="") or out * 2)  # planted hook
    return layer


def two_on_a_line(x: Tensor) -> Tensor:
    return x * x.sum().item() * x.mean().item()  # planted pair


@pytest.mark.parametrize(
    ("program", "mark", "count"),
    [
        (Printing(), "planted print", 1),
        (Outer(), "planted print", 1),  # met in three functions, but one function ends there
        (PrintingFunction.apply, "planted function", 1),
        (hooked(), "planted hook", 1),
        (two_on_a_line, "planted pair", 2),
    ],
)
def test_a_break_counts_where_it_is_and_not_again_in_every_caller(program: object, mark: str, count: int) -> None:
    report = explain(program, torch.ones(2, 4, requires_grad=True))  # type: ignore[arg-type]
    (found,) = report.breaks
    assert (found.line, found.count, found.eager) == (line_of(mark), count, "")
    assert not found.kind.startswith(("Explanation", "Hint", "Encountered"))
    assert report.num_breaks == count


def numbers(x: Tensor) -> Iterator[Tensor]:
    for i in range(3):
        print(end="")  # planted generator
        yield x + i


def generated(x: Tensor) -> Tensor:
    return x + sum(numbers(x))


def within_try(x: Tensor) -> Tensor:
    try:
        print(end="")  # planted try
        return x + 1
    except ValueError:
        return x


def behind_a_break(x: Tensor) -> Tensor:
    y = x * 2
    print(end="")  # planted first
    for _ in range(2):
        y = y + 1
        print(end="")  # planted second
    return y


class LoopOverPrinting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Printing() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        for layer in self.layers:
            y = layer(y)
        return y


@pytest.mark.parametrize(
    ("program", "mark", "eager", "in_loop", "lost"),
    [
        (generated, "planted generator", "generated", False, 7),  # three additions, three of sum, one
        (within_try, "planted try", "within_try", False, 1),
        (behind_a_break, "planted second", "behind_a_break", True, 2),  # the product was in a graph
        (LoopOverPrinting(), "planted print", "LoopOverPrinting.forward", True, 1),  # the layers compile on their own
    ],
)
def test_the_function_given_up_is_named_and_only_its_own_operations_are_lost(
    program: object, mark: str, eager: str, in_loop: bool, lost: int
) -> None:
    report = explain(program, torch.ones(2, 4))  # type: ignore[arg-type]
    found = next(each for each in report.breaks if each.line == line_of(mark))
    assert (found.eager, found.in_loop, found.ops_lost) == (eager, in_loop, lost)
    assert f"{eager} runs eagerly{': the break is inside of a loop' if in_loop else ''}." in str(report)


class Stateful(Loop):
    """Gives up its function, and has state that a second call would advance."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x) + torch.rand(4)).sum()


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_second_call_leaves_random_state_buffers_and_gradients_as_after_one(wrapped: bool) -> None:
    torch.manual_seed(0)
    models = [Stateful(), Stateful()]
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(8, 4)
    states = []
    for model, times in ((models[0], 1), (models[1], 0)):
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight) if weight.ndim == 2 else None
        torch.manual_seed(1)

        def step(x: Tensor, model: nn.Module = model) -> None:
            model(x).backward()

        call = functools.partial(lambda model, x: model(x).backward(), model) if wrapped else functools.partial(step, x)
        if times:
            assert explain(*((call, x) if wrapped else (call,))).breaks[0].eager
        else:
            step(x)
        states.append((torch.get_rng_state(), model.state_dict(), [weight.grad for weight in model.parameters()]))
    torch.testing.assert_close(states[0], states[1])


def test_a_function_compiled_too_often_is_a_break(caplog: pytest.LogCaptureFixture) -> None:
    torch.compiler.reset()
    function = torch.compile(lambda x, n: x * len(n), backend="eager", dynamic=False)
    with Watch() as watch, torch._dynamo.config.patch(recompile_limit=3):
        for n in range(6):
            function(torch.ones(2), [0] * n)
    torch.compiler.reset()
    (found,) = watch.report.breaks
    assert (found.kind, found.eager) == ("Compiled 3 times", "<lambda>")
    assert [again.reasons[0] for again in watch.report.recompiles] == [
        "0/0: not n", "0/1: len(n) == 1", "0/2: len(n) == 2"
    ]  # fmt: skip
    with pytest.raises(TooManyBreaks):
        watch.report.check(0)
    assert str(watch.report).startswith("1 break, 3 recompilations")


def test_a_program_without_a_graph_is_no_success() -> None:
    report = explain(lambda x: x.shape, torch.ones(2))
    assert report.num_breaks == 0
    with pytest.raises(TooManyBreaks, match=r"no graph was made"):
        report.check(0)


def test_a_model_without_breaks_is_one_graph() -> None:
    report = explain(nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(2, 4))
    assert (report.num_graphs, report.num_breaks, report.num_ops) == (1, 0, 2)
    report.check()


def test_recompilations_come_with_the_guard_that_failed() -> None:
    torch.compiler.reset()
    layer = torch.compile(nn.Linear(4, 4), backend="eager")
    with Watch() as watch:
        for rows in (2, 3):
            layer(torch.randn(rows, 4))
    (again,) = watch.report.recompiles
    assert "size mismatch at index 0. expected 2, actual 3" in again.reasons[0]
    torch.compiler.reset()


def test_logging_is_as_before() -> None:
    name = "torch._dynamo.symbolic_convert.__graph_breaks"
    explain(Item(), torch.randn(2, 4))
    logger = logging.getLogger(name)
    before = (logger.level, logger.handlers[:], logger.propagate)
    with pytest.raises(RuntimeError, match=r"reduction dim|mat1 and mat2"):
        explain(nn.Linear(3, 3), torch.randn(2, 4))
    assert (logger.level, logger.handlers[:], logger.propagate) == before


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_one_graph_with_documents_and_experts(family: str) -> None:
    config = decoder_config(
        ModelConfig(family=family, hidden_size=64, intermediate_size=128, num_hidden_layers=2), 256, 64
    )
    model = Decoder(config)
    model.initialize(torch.Generator().manual_seed(0))
    lengths = [[20, 44], [50, 14]]
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    ids = torch.randint(256, (2, 64), generator=torch.Generator().manual_seed(1))

    def loss(ids: Tensor, positions: Tensor, mask: ColumnMask) -> Tensor:
        hidden = model(ids, position_ids=positions, mask=mask)
        return functional.cross_entropy(model.logits(hidden).flatten(0, 1), ids.flatten()) + model.auxiliary_loss()

    report = explain(loss, ids, positions, ColumnMask.causal_document(lengths))
    report.check(0)
    assert report.num_graphs == 1


def test_compiled_blocks_have_the_gradients_of_eager_ones_and_compile_once_for_all_masks() -> None:
    config = decoder_config(ModelConfig(family="qwen3_moe", hidden_size=64, intermediate_size=128), 256, 64)
    models = [Decoder(config), Decoder(config)]
    models[0].initialize(torch.Generator().manual_seed(0))
    models[1].load_state_dict(models[0].state_dict())
    torch.compiler.reset()
    assert compile_blocks(models[0], backend="aot_eager", fullgraph=True) == config.num_hidden_layers
    assert is_compiled(models[0])
    assert list(models[0].state_dict()) == list(models[1].state_dict())
    with Watch() as watch:
        for seed, lengths in enumerate(([[20, 44], [50, 14]], [[3, 61], [64]], [[10, 20, 34], [32, 32]])):
            generator = torch.Generator().manual_seed(seed)
            ids = torch.randint(256, (2, 64), generator=generator)
            for model in models:
                model.zero_grad()
                hidden = model(ids, mask=ColumnMask.causal_document(lengths))
                functional.cross_entropy(model.logits(hidden).flatten(0, 1), ids.flatten()).backward()
            for (name, p), q in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad, atol=1e-6, rtol=1e-4, msg=name)
    kinds = {type(layer.mlp) for layer in models[0].layers}
    assert len(watch.report.recompiles) == len(kinds) - 1  # dense and sparse layers run different code
    forget_compiled(models[0])
    assert not is_compiled(models[0])


def test_blocks_must_be_there() -> None:
    with pytest.raises(ValueError, match=r"Linear has no nn\.ModuleList"):
        compile_blocks(nn.Linear(2, 2))
