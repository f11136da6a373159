"""What Paddle answers at random or, in 3.3.1, not at all, against the definition.

Every check registers the API that it covers: the coverage page reads the names from the decorators.
"""

from collections.abc import Callable
from math import sqrt

import pytest
import torch
from torch import Tensor

import oarlock.paddle as paddle

FORMULAS: dict[str, Callable[[], None]] = {}
init = paddle.nn.init


def formula(*names: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a check of these APIs."""

    def register(check: Callable[[], None]) -> Callable[[], None]:
        FORMULAS.update(dict.fromkeys(names, check))
        return check

    return register


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape)


def assert_uniform(found: Tensor, low: float, high: float) -> None:
    # The extremes of n samples lie about 1/n of the width inside; the mean deviates by width / sqrt(12 n).
    n, width = found.numel(), high - low
    assert low <= found.min() <= low + 20 * width / n
    assert high - 20 * width / n <= found.max() <= high
    assert abs(found.mean() - (low + high) / 2) < 5 * width / sqrt(12 * n)


def assert_normal(found: Tensor, mean: float, std: float) -> None:
    n = found.numel()
    assert abs(found.mean() - mean) < 5 * std / sqrt(n)
    assert abs(found.std() / std - 1) < 5 / sqrt(2 * n)


@formula("paddle.nn.init.uniform_")
def uniform() -> None:
    assert_uniform(init.uniform_(zeros(200, 400), -3.0, 2.0), -3, 2)


@formula("paddle.nn.init.normal_")
def normal() -> None:
    assert_normal(init.normal_(zeros(200, 400), 1.0, 3.0), 1, 3)


@formula("paddle.nn.init.trunc_normal_")
def trunc_normal() -> None:
    found = init.trunc_normal_(zeros(200, 400), 1.0, 2.0, -1.0, 3.0)
    assert -1 <= found.min() < -0.99
    assert 2.99 < found.max() <= 3
    # A normal variable within one deviation of its mean has the deviation sqrt(1 - 2 phi(1) / (2 Phi(1) - 1)) = 0.5396.
    assert abs(found.std() / 2 - 0.5396) < 0.01


@formula("paddle.nn.init.xavier_uniform_", "paddle.nn.init.xavier_normal_")
def xavier() -> None:
    bound = 2 * sqrt(6 / 600)
    assert_uniform(init.xavier_uniform_(zeros(200, 400), 2.0), -bound, bound)
    assert_normal(init.xavier_normal_(zeros(20, 40, 5, 5)), 0, sqrt(2 / (40 * 25 + 20 * 25)))
    assert_normal(init.xavier_normal_(zeros(20, 40, 5, 5), fan_in=100.0, fan_out=200.0), 0, sqrt(2 / 300))


@formula("paddle.nn.init.kaiming_uniform_", "paddle.nn.init.kaiming_normal_")
def kaiming() -> None:
    """The fans of a matrix are its rows (in) and columns (out)."""
    assert_uniform(init.kaiming_uniform_(zeros(200, 400)), -sqrt(6 / 200), sqrt(6 / 200))
    assert_uniform(init.kaiming_uniform_(zeros(200, 400), mode="fan_out"), -sqrt(6 / 400), sqrt(6 / 400))
    assert_normal(init.kaiming_normal_(zeros(30, 40, 5, 5), a=1.0), 0, sqrt(1 / (40 * 25)))
    assert_normal(init.kaiming_normal_(zeros(30, 40, 5, 5), 0.0, "fan_out", "relu"), 0, sqrt(2 / (30 * 25)))


@formula("paddle.nn.init.orthogonal_")
def orthogonal() -> None:
    wide, tall = init.orthogonal_(zeros(20, 40), 3.0), init.orthogonal_(zeros(40, 20))
    torch.testing.assert_close(wide @ wide.T, 9 * torch.eye(20), atol=1e-5, rtol=0)
    torch.testing.assert_close(tall.T @ tall, torch.eye(20), atol=1e-5, rtol=0)


@formula("paddle.compat.softmax")
def softmax() -> None:
    for shape, dim in (((), 0), ((3,), 0), ((2, 3), 1), ((2, 3, 4), 0), ((2, 3, 4, 5), 1)):
        x = torch.randn(shape)
        weights = torch.exp(x) / torch.exp(x).sum(dim, keepdim=True)
        torch.testing.assert_close(paddle.compat.softmax(x), weights)


@formula("paddle.compat.Unfold")
def unfold() -> None:
    x = torch.randn(2, 3, 5, 6)
    blocks = [x[:, :, i : i + 2, j : j + 3].reshape(2, 18) for i in range(4) for j in range(4)]
    assert torch.equal(paddle.compat.Unfold(kernel_size=(2, 3))(x), torch.stack(blocks, 2))


@formula("paddle.compat.seed")
def seed() -> None:
    drawn = paddle.compat.seed()
    first = torch.rand(3)
    torch.manual_seed(drawn)
    assert torch.equal(torch.rand(3), first)


@formula("paddle.scatter_reduce_")
def scatter_reduce() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    made = paddle.scatter_reduce_(x, 0, torch.tensor([0, 0, 2]), torch.tensor([4.0, 5.0, 6.0]), "prod")
    assert made is x
    assert x.tolist() == [20.0, 2.0, 18.0]


@formula("paddle.Tensor.top_p_sampling")
def top_p_sampling() -> None:
    """Of .5, .3, .15, .05 the first two reach .7, in the ratio 5 : 3."""
    x = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).repeat(4000, 1)
    values, drawn = paddle.Tensor.top_p_sampling(x, torch.full((4000, 1), 0.7))
    assert set(drawn.flatten().tolist()) == {1, 3}
    # A share of n draws deviates by sqrt(p (1 - p) / n) = 0.008.
    assert abs((drawn == 1).double().mean() - 0.5 / 0.8) < 0.04
    assert torch.equal(values, x.gather(1, drawn))
    ps = torch.full((4, 1), 0.0)
    *_, top, order = paddle.Tensor.top_p_sampling(x[:4], ps, k=2, return_top=True)
    assert order.tolist() == [[1, 3]] * 4
    torch.testing.assert_close(top, torch.tensor([[0.5, 0.3]]).repeat(4, 1))
    seeds = torch.arange(4).reshape(4, 1)
    first, second = (paddle.Tensor.top_p_sampling(x[:4], ps + 1, topp_seed=seeds)[1] for _ in range(2))
    assert torch.equal(first, second)


@formula("paddle.enable_compat", "paddle.compat.use_torch_proxy_guard")
def proxy() -> None:
    """Paddle lends itself to `import torch`; here torch is torch, and a library made for it takes every tensor."""
    import sys

    paddle.enable_compat()
    with paddle.compat.use_torch_proxy_guard():
        assert sys.modules["torch"] is torch
        assert isinstance(paddle.ones([2]), sys.modules["torch"].Tensor)


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name: str) -> None:
    torch.manual_seed(0)
    FORMULAS[name]()
