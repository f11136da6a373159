"""What cannot be compiled is named by file and line: planted breaks, and the decoders, which have none."""

import logging
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
    with pytest.raises(TooManyBreaks, match=r"1 graph breaks, 0 are allowed"):
        report.check(0)
    report.check(1)


def test_a_break_inside_of_a_loop_gives_up_its_function_and_counts_what_is_lost() -> None:
    torch.manual_seed(0)
    report = explain(Loop(), torch.randn(2, 4))
    (found,) = report.breaks
    assert (found.line, found.eager) == (line_of("planted branch"), "forward")
    # Three times: a linear, a sum, a comparison, its truth, and perhaps an addition.
    assert 3 * 4 <= found.ops_lost <= 3 * 6
    assert "runs eagerly: the break is inside of a loop" in str(report)


def test_several_breaks_are_told_apart() -> None:
    report = explain(Both(), torch.randn(2, 4))
    assert {each.line for each in report.breaks} == {line_of("planted item"), line_of("planted branch")}
    assert report.num_breaks >= 2  # torch first tries with inner calls inlined, and meets their breaks twice


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
