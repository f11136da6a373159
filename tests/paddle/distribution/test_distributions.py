"""Distributions by properties of their own: samples have the moments that are claimed, densities sum to 1."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import scipy.stats
import torch

import oarlock.paddle as paddle
from oarlock.paddle import distribution as D

COUNT = 40_000
U = torch.tensor([0.3, 0.6, 0.85])
MADE: dict[str, Callable[[], Any]] = {
    "normal": lambda: D.Normal(torch.tensor([0.5, -1.0]), 2.0),
    "lognormal": lambda: D.LogNormal([0.1, 0.2], 0.3),
    "uniform": lambda: D.Uniform(-1.0, [2.0, 3.0]),
    "laplace": lambda: D.Laplace(U, 0.5),
    "gumbel": lambda: D.Gumbel(U, 0.5),
    "student": lambda: D.StudentT(10.0, U, 2.0),
    "gamma": lambda: D.Gamma(U + 1, 0.7),
    "chi2": lambda: D.Chi2(U + 2),
    "exponential": lambda: D.Exponential(U),
    "beta": lambda: D.Beta(U, 2.0),
    "dirichlet": lambda: D.Dirichlet(U + 1),
    "continuous bernoulli": lambda: D.ContinuousBernoulli(U),
    "bernoulli": lambda: D.Bernoulli(U),
    "binomial": lambda: D.Binomial(5, U),
    "poisson": lambda: D.Poisson(U * 4),
    "geometric": lambda: D.Geometric(U),
    "multinomial": lambda: D.Multinomial(6, U),
    "multivariate": lambda: D.MultivariateNormal([0.5, 1.0], torch.tensor([[2.0, 0.7], [0.7, 1.0]])),
    "independent": lambda: D.Independent(D.Normal(U, 1.0), 1),
}


@pytest.mark.parametrize("name", MADE)
def test_samples_have_the_claimed_moments(name: str) -> None:
    torch.manual_seed(0)
    made = MADE[name]()
    x = made.sample([COUNT]).double()
    assert x.shape == (COUNT, *made.batch_shape, *made.event_shape)
    assert not x.requires_grad
    spread = made.variance.double().sqrt() / math.sqrt(COUNT)
    assert ((x.mean(0) - made.mean) / spread).abs().max() < 5  # five standard errors
    fourth = ((x - made.mean) ** 4).mean(0)
    error = ((fourth - made.variance**2) / COUNT).sqrt() + 1e-12
    assert ((x.var(0) - made.variance) / error).abs().max() < 5


@pytest.mark.parametrize("name", sorted({*MADE} - {"independent", "multinomial", "dirichlet"}))
def test_the_entropy_is_the_mean_surprise_of_samples(name: str) -> None:
    torch.manual_seed(1)
    made = MADE[name]()
    surprise = -made.log_prob(made.sample([COUNT])).double()
    error = surprise.std(0) / math.sqrt(COUNT)
    assert ((surprise.mean(0) - made.entropy()).abs() < 5 * error + 1e-6).all()


@pytest.mark.parametrize("name", ["dirichlet", "multinomial", "independent"])
def test_the_entropy_of_several_numbers(name: str) -> None:
    torch.manual_seed(2)
    made = MADE[name]()
    surprise = -made.log_prob(made.sample([COUNT])).double()
    assert (surprise.mean() - made.entropy()).abs() < 5 * surprise.std() / math.sqrt(COUNT)


@pytest.mark.parametrize(
    "name", ["normal", "laplace", "gumbel", "gamma", "exponential", "beta", "bernoulli", "poisson"]
)
def test_a_divergence_is_the_mean_difference_of_logarithms(name: str) -> None:
    torch.manual_seed(3)
    pairs = {
        "normal": (D.Normal(U, 1.0), D.Normal(0.2, U + 1)),
        "laplace": (D.Laplace(U, 1.0), D.Laplace(0.2, U + 1)),
        "gumbel": (D.Gumbel(U, 1.0), D.Gumbel(0.2, U + 1)),
        "gamma": (D.Gamma(U + 1, 1.0), D.Gamma(2.0, U)),
        "exponential": (D.Exponential(U), D.Exponential(1.5)),
        "beta": (D.Beta(U + 1, 1.5), D.Beta(2.0, U + 1)),
        "bernoulli": (D.Bernoulli(U), D.Bernoulli(0.4)),
        "poisson": (D.Poisson(U * 5), D.Poisson(2.0)),
    }
    p, q = pairs[name]
    x = p.sample([COUNT])
    difference = (p.log_prob(x) - q.log_prob(x)).double()
    error = difference.std(0) / math.sqrt(COUNT)
    assert ((difference.mean(0) - D.kl_divergence(p, q)).abs() < 5 * error + 1e-6).all()


@pytest.fixture
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_in_float64")
def test_densities_are_those_of_scipy() -> None:
    x = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    for made, other in (
        (D.Beta(2.0, 3.5), scipy.stats.beta(2.0, 3.5)),
        (D.Gamma(2.0, 3.5), scipy.stats.gamma(2.0, scale=1 / 3.5)),
        (D.StudentT(4.0, 0.5, 2.0), scipy.stats.t(4.0, 0.5, 2.0)),
        (D.Cauchy(0.5, 2.0), scipy.stats.cauchy(0.5, 2.0)),
        (D.Gumbel(0.5, 2.0), scipy.stats.gumbel_r(0.5, 2.0)),
        (D.LogNormal(0.5, 2.0), scipy.stats.lognorm(2.0, scale=math.exp(0.5))),
        (D.Chi2(3.0), scipy.stats.chi2(3.0)),
    ):
        torch.testing.assert_close(made.log_prob(x), torch.from_numpy(other.logpdf(x.numpy())), rtol=1e-10, atol=1e-10)
    for made, other in ((D.Poisson(3.0), scipy.stats.poisson(3.0)), (D.Binomial(7, 0.3), scipy.stats.binom(7, 0.3))):
        counts = torch.arange(8.0, dtype=torch.float64)
        torch.testing.assert_close(
            made.log_prob(counts), torch.from_numpy(other.logpmf(counts.numpy())), rtol=1e-10, atol=1e-10
        )
        assert made.entropy().item() == pytest.approx(other.entropy(), rel=1e-8)


@pytest.mark.parametrize("name", ["laplace", "cauchy", "exponential", "continuous bernoulli"])
def test_icdf_inverts_cdf(name: str) -> None:
    p = U.double()
    made = {
        "laplace": D.Laplace(p, 0.5),
        "cauchy": D.Cauchy(p, 0.5),
        "exponential": D.Exponential(p),
        "continuous bernoulli": D.ContinuousBernoulli(p),
    }[name]
    share = torch.tensor([0.1, 0.45, 0.8], dtype=torch.float64)
    torch.testing.assert_close(made.cdf(made.icdf(share)), share)


@pytest.mark.parametrize(
    "function",
    [
        lambda p: D.Bernoulli(p).log_prob(torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)),
        lambda p: D.Bernoulli(p).entropy(),
        lambda p: D.Beta(p, 1.0).entropy(),
        lambda p: D.Multinomial(6, p).log_prob(torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)),
        lambda p: D.Laplace(p, p).log_prob(torch.tensor([0.8, 0.1, -2.0], dtype=torch.float64)),
        lambda p: D.Cauchy(p, p).cdf(torch.tensor([0.8, 0.1, 2.0], dtype=torch.float64)),
        lambda p: D.kl_divergence(D.Gamma(p, 0.7), D.Gamma(1.5, p)),
        lambda p: D.Poisson(p).entropy(),
        lambda p: D.Binomial(4, p).entropy(),
        lambda p: D.LKJCholesky(3, p).log_prob(torch.eye(3, dtype=torch.float64)),
    ],
)
def test_gradients_are_finite_differences(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Paddle's broadcasting of these ends the process."""
    assert torch.autograd.gradcheck(function, U.double().requires_grad_())


def test_gradients_reach_the_parameters_through_samples() -> None:
    loc = torch.zeros(3, requires_grad=True)
    for made in (D.Normal(loc, 1.0), D.Laplace(loc, 1.0), D.Cauchy(loc, 1.0), D.Gumbel(loc, 1.0), D.Uniform(loc, 2.0)):
        x = made.rsample([5])
        (slope,) = torch.autograd.grad(x.sum(), loc)
        assert x.shape == (5, 3)
        assert slope.abs().sum() > 0
    assert not D.Normal(loc, 1.0).sample([2]).requires_grad


def test_a_seed_repeats_the_samples() -> None:
    for made in (D.Normal(0.0, 1.0), D.Uniform(0.0, 1.0)):
        assert torch.equal(made.sample([4], 7), made.sample([4], seed=7))
        assert not torch.equal(made.sample([4], 7), made.sample([4], seed=8))


def test_classes_are_drawn_by_softmax_and_weighed_by_shares() -> None:
    torch.manual_seed(0)
    made = D.Categorical(torch.tensor([1.0, 3.0]))
    drawn = made.sample([COUNT]).double().mean().item()
    assert drawn == pytest.approx(1 / (1 + math.exp(-2.0)), abs=0.01)
    assert made.probs(torch.tensor([0, 1])).tolist() == [0.25, 0.75]


def test_both_methods_draw_the_same_correlations() -> None:
    torch.manual_seed(0)
    for concentration in (0.8, 3.0):
        spreads = []
        for method in ("onion", "cvine"):
            factor = D.LKJCholesky(4, concentration, method).sample([COUNT])
            correlation = factor @ factor.mT
            assert torch.allclose(torch.diagonal(correlation, dim1=1, dim2=2), torch.ones(4), atol=1e-5)
            assert (factor.triu(1) == 0).all()
            assert (torch.diagonal(factor, dim1=1, dim2=2) >= 0).all()
            spreads.append(correlation.var(0))
        # Each correlation is 2·Beta(b, b) - 1 with b = concentration + (dim - 2) / 2: the variance is 1 / (2b + 1).
        expected = 1 / (2 * (concentration + 1) + 1)
        for spread in spreads:
            assert (spread[~torch.eye(4, dtype=torch.bool)] / expected - 1).abs().max() < 0.05


def test_a_number_stands_for_every_mean() -> None:
    matrix = torch.tensor([[2.0, 0.7], [0.7, 1.0]])
    x = torch.tensor([0.3, 0.9])
    whole = D.MultivariateNormal(torch.full((2,), 0.5), matrix)
    assert torch.equal(D.MultivariateNormal(0.5, matrix).log_prob(x), whole.log_prob(x))
    precise = D.MultivariateNormal(0.5, precision_matrix=torch.linalg.inv(matrix))
    torch.testing.assert_close(precise.log_prob(x), whole.log_prob(x))


def test_the_divergence_of_the_nearest_classes_is_taken() -> None:
    class Mine(D.Normal):
        pass

    class Yours(Mine):
        pass

    mine, yours = Mine(0.0, 1.0), Yours(0.5, 2.0)
    assert D.kl_divergence(mine, yours) == D.kl_divergence(D.Normal(0.0, 1.0), D.Normal(0.5, 2.0))

    @D.register_kl(Mine, Mine)
    def _mine(p: Any, q: Any) -> Any:
        return "mine"

    assert D.kl_divergence(mine, yours) == yours.kl_divergence(mine) == "mine"
    with pytest.raises(NotImplementedError, match="no divergence of Normal from Beta"):
        D.kl_divergence(D.Normal(0.0, 1.0), D.Beta(1.0, 1.0))
    with pytest.raises(TypeError):
        D.register_kl(int, D.Normal)  # type: ignore[arg-type]


def test_an_exponential_family_has_its_entropy() -> None:
    class Exponential(D.ExponentialFamily):
        _mean_carrier_measure = 0.0

        def __init__(self, rate: torch.Tensor) -> None:
            self.rate = rate
            super().__init__(rate.shape)

        @property
        def _natural_parameters(self) -> Any:
            return (-self.rate,)

        def _log_normalizer(self, n: torch.Tensor) -> torch.Tensor:
            return -(-n).log()

    torch.testing.assert_close(Exponential(U).entropy(), D.Exponential(U).entropy())


def test_a_distribution_says_what_it_lacks() -> None:
    for method in ("sample", "rsample", "entropy"):
        with pytest.raises(NotImplementedError, match=f"Distribution has no {method}"):
            getattr(D.Distribution(), method)()
    with pytest.raises(NotImplementedError, match="Poisson has no rsample"):
        D.Poisson(1.0).rsample()
    with pytest.raises(ValueError, match="no mean"):
        D.Cauchy(0.0, 1.0).mean  # noqa: B018
    with pytest.raises(ValueError, match="from 1 to 0"):
        D.Independent(D.Normal(0.0, 1.0), 1)
    with pytest.raises(ValueError, match="give one of"):
        D.MultivariateNormal(torch.zeros(2))


def test_parameters_follow_the_tensors_that_an_optimizer_changes() -> None:
    rate = torch.nn.Parameter(torch.tensor([1.0]))
    made = D.Exponential(rate)
    with torch.no_grad():
        rate.fill_(4.0)
    assert made.mean.item() == 0.25
    assert made.rate is rate


def test_strict_mode_gives_strict_tensors() -> None:
    with paddle.strict():
        made = D.Normal(paddle.ones([2, 3]), 1.0)
        x = made.rsample([4])
        assert x.shape == [4, 2, 3]
        assert made.mean.shape == [2, 3]
        assert made.scale.shape == []
        assert made.log_prob(x).max(2).shape == [4, 2]
        assert D.kl_divergence(made, made).shape == [2, 3]
        assert D.TanhTransform().forward(x).shape == [4, 2, 3]
        assert D.TransformedDistribution(made, [D.ExpTransform()]).log_prob(x.exp()).shape == [4, 2, 3]
