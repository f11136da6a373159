"""Random tensors have the shape, dtype, range and moments that Paddle's have; their numbers are torch's.

Tolerances: of N = 20,000 draws the mean lies within 5 standard errors, `5 * std / sqrt(N)`, in all but one case of a
million; the deviation within 6 % for these distributions. The seed is fixed.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import oarlock.paddle as paddle

N = 20_000


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    paddle.patch_tensor()
    paddle.seed(7)
    yield
    paddle.unpatch_tensor()


def zeros(dtype: str = "float32") -> torch.Tensor:
    return paddle.zeros([N], dtype)


DRAWS: dict[str, tuple[Callable[[], torch.Tensor], float, float]] = {  # what is drawn, its mean, its deviation
    "rand": (lambda: paddle.rand([N]), 0.5, 12**-0.5),
    "rand of half": (lambda: paddle.rand([N], "float16"), 0.5, 12**-0.5),
    "randn": (lambda: paddle.randn([N], dtype="bfloat16"), 0.0, 1.0),
    "standard_normal": (lambda: paddle.standard_normal([N]), 0.0, 1.0),
    "gaussian by normal": (lambda: paddle.normal(2.0, 3.0, [N]), 2.0, 3.0),
    "normal of tensors": (lambda: paddle.normal(zeros() + 2, zeros() + 3), 2.0, 3.0),
    "normal of a tensor and a number": (lambda: paddle.normal(zeros(), 3.0), 0.0, 3.0),
    "uniform": (lambda: paddle.uniform([N], min=-2.0, max=4.0), 1.0, 6 * 12**-0.5),
    "uniform with a seed": (lambda: paddle.uniform([N], "float64", -1.0, 1.0, 3), 0.0, 3**-0.5),
    "randint": (lambda: paddle.randint(0, 5, [N]), 2.0, 2**0.5),
    "randint_like": (lambda: paddle.randint_like(zeros(), 2, 5), 3.0, (2 / 3) ** 0.5),
    "randperm": (lambda: paddle.randperm(N), (N - 1) / 2, N * 12**-0.5),
    "log_normal": (lambda: paddle.log_normal(0.0, 0.5, [N]), math.exp(0.125), 0.604),
    "bernoulli": (lambda: paddle.bernoulli(zeros() + 0.3), 0.3, 0.21**0.5),
    "bernoulli of p": (lambda: paddle.bernoulli(zeros(), p=0.3), 0.3, 0.21**0.5),
    "binomial": (lambda: paddle.binomial(zeros("int64") + 10, zeros() + 0.3), 3.0, 2.1**0.5),
    "poisson": (lambda: paddle.poisson(zeros() + 3), 3.0, 3**0.5),
    "standard_gamma": (lambda: paddle.standard_gamma(zeros() + 3), 3.0, 3**0.5),
    "multinomial": (lambda: paddle.multinomial(paddle.ones([5]), N, True), 2.0, 2**0.5),
    "exponential_": (lambda: zeros().exponential_(2.0), 0.5, 0.5),
    "geometric_": (lambda: paddle.geometric_(zeros(), 0.3), 1 / 0.3, 0.7**0.5 / 0.3),
    "bernoulli_": (lambda: zeros().bernoulli_(0.3), 0.3, 0.21**0.5),
    "uniform_": (lambda: paddle.uniform_(zeros(), 0.0, 1.0), 0.5, 12**-0.5),
    "normal_": (lambda: paddle.normal_(zeros(), 1.0, 2.0), 1.0, 2.0),
    "log_normal_": (lambda: paddle.log_normal_(zeros(), 0.0, 0.5), math.exp(0.125), 0.604),
    "random_": (lambda: zeros("int32").random_(3, 9), 5.5, (35 / 12) ** 0.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_mean_and_deviation(name: str) -> None:
    draw, mean, deviation = DRAWS[name]
    found = draw().double()
    assert found.shape == (N,)
    assert abs(found.mean().item() - mean) < 5 * deviation / N**0.5
    assert found.std().item() == pytest.approx(deviation, rel=0.06)


def test_a_complex_normal_has_half_of_its_variance_in_either_part() -> None:
    for found in (paddle.normal(1 + 2j, 2.0, [N]), paddle.normal(paddle.full([N], 1 + 2j, "complex64"), 2.0)):
        assert found.dtype == torch.complex64
        assert abs(found.mean().item() - (1 + 2j)) < 10 / N**0.5
        assert found.real.std().item() == pytest.approx(2**0.5, rel=0.06)
        assert found.imag.std().item() == pytest.approx(2**0.5, rel=0.06)


def test_the_middle_of_cauchy_values() -> None:
    assert paddle.cauchy_(zeros(), loc=1.0, scale=2.0).median().item() == pytest.approx(1.0, abs=0.15)


def test_ranges() -> None:
    assert set(paddle.randint(-1, 2, [N]).tolist()) == {-1, 0, 1}
    assert set(paddle.randint(3, shape=[N]).tolist()) == {0, 1, 2}
    assert set(paddle.bernoulli(zeros() + 0.5).tolist()) == {0.0, 1.0}
    assert paddle.geometric_(zeros(), 0.9).min() == 1
    assert torch.equal(paddle.geometric_(zeros(), 0.4) % 1, zeros())
    assert sorted(paddle.randperm(9).tolist()) == list(range(9))
    values = paddle.uniform([N], min=2.0, max=3.0)
    assert values.min() >= 2
    assert values.max() <= 3


SHAPES: list[tuple[Any, tuple[int, ...]]] = [
    ([2, 3], (2, 3)),
    ((2,), (2,)),
    ([], ()),
    ([0, 3], (0, 3)),
    (torch.tensor([2, 3]), (2, 3)),
    ([torch.tensor(2), 3], (2, 3)),
]


@pytest.mark.parametrize(("given", "shape"), SHAPES)
@pytest.mark.parametrize("name", ["rand", "randn", "standard_normal", "uniform"])
def test_shapes_and_dtypes(name: str, given: Any, shape: tuple[int, ...]) -> None:
    function = getattr(paddle, name)
    assert function(given).shape == shape
    assert function(given).dtype == torch.float32
    assert function(shape=given, dtype="float64").dtype == torch.float64
    assert function(size=given).stop_gradient


def test_no_gradient_flows_into_draws() -> None:
    x = paddle.full([4], 0.5, requires_grad=True)
    for draw in (paddle.bernoulli, paddle.standard_gamma, lambda v: paddle.normal(v, 1.0)):
        assert draw(x).stop_gradient


def test_seeds_repeat_and_states_come_back() -> None:
    paddle.seed(5)
    first, state = paddle.randn([3]), paddle.get_rng_state()
    second = paddle.randn([3])
    paddle.seed(5)
    assert torch.equal(paddle.randn([3]), first)
    paddle.set_rng_state(state)
    assert torch.equal(paddle.randn([3]), second)
    assert torch.equal(paddle.uniform([3], seed=4), paddle.uniform([3], seed=4))
