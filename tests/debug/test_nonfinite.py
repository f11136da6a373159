"""The producer of the first NaN or infinity is told from those that pass it on."""

import pytest
import torch
from torch import Tensor, nn

from oarlock import debug


class Net(nn.Module):
    def __init__(self, spoil, k: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
        self.spoil, self.k = spoil, k

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x).tanh()
            if i == self.k:
                x = self.spoil(x)
        return x.sum()


def found(spoil, *, k: int = 2, model: nn.Module | None = None) -> debug.NonFinite:
    model = model or Net(spoil, k)
    with debug.find_nonfinite(model) as f:
        model(torch.randn(3, 5)).backward()
    return f


@pytest.mark.parametrize("k", range(4))
def test_the_producer_in_layer_k_is_named(k: int) -> None:
    f = found(lambda x: x.abs().neg().log(), k=k)
    assert f.first is not None
    assert (f.first.role, f.first.name, f.first.phase) == ("producer", "log1", "forward")
    assert str(f.first.inputs[0]).startswith("neg1_out_float32_3x5 float32 3x5 finite")
    assert f.first.outputs[0].nan == 15
    assert "test_nonfinite.py" in f.first.where[0]
    assert f.num_passed_on > 0


def test_a_nan_born_in_backward_is_named() -> None:
    f = found(lambda x: (x * 0).sqrt() * 0)  # 0 * inf
    assert f.nan is not None
    assert (f.nan.name, f.nan.phase) == ("sqrt1Backward", "backward")


def test_infinities_that_are_filled_in_are_no_finding() -> None:
    mask = torch.ones(3, 5).tril().bool()
    f = found(lambda x: x.masked_fill(~mask, float("-inf")).softmax(-1))
    assert f.first is None
    assert f.report() == "all values are finite"


def test_a_row_of_masked_scores_makes_the_softmax_the_producer() -> None:
    mask = torch.zeros(3, 5).bool()
    f = found(lambda x: x.masked_fill(~mask, float("-inf")).softmax(-1))
    assert f.nan is not None
    assert f.nan.name == "softmax1"
    assert f.nan.inputs[0].inf == 15


def test_an_overflow_is_an_infinity_first() -> None:
    f = found(lambda x: (x * 1e30 * 1e30) * 0)
    assert f.nan is not None
    assert f.inf is not None
    assert (f.inf.name, f.nan.name) == ("mul2", "mul3")


def test_a_weight_that_is_nan_came_from_outside() -> None:
    model = Net(lambda x: x)
    with torch.no_grad():
        model.layers[1].weight[0, 0] = float("nan")
    f = found(None, model=model)
    assert f.nan is not None
    assert f.nan.role == "outside, first used by"
    assert f.nan.name == "layers.1/linear2"
    assert any(held.name == "layers.1.weight" and held.nan == 1 for held in f.nan.inputs)


def test_tensors_in_dicts_and_tuples_integers_and_uninitialised_memory() -> None:
    def spoil(x: Tensor) -> Tensor:
        torch.empty(100).fill_(0)
        values, indices = x.max(-1)
        return torch.stack([values, indices.float()])

    assert found(spoil, k=3).first is None
