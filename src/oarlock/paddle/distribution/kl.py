"""Divergences by the classes of the two distributions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.distribution import continuous, discrete, unit_interval
from oarlock.paddle.distribution.distribution import Distribution, OnTorch
from oarlock.paddle.distribution.independent import Independent
from oarlock.paddle.distribution.normal import LogNormal, MultivariateNormal, Normal
from oarlock.paddle.distribution.parameters import sum_rightmost
from oarlock.paddle.strict import bounded, is_strict

Divergence = Callable[[Any, Any], Tensor]
_DIVERGENCES: dict[tuple[type, type], Divergence] = {}


def register_kl(cls_p: type[Distribution], cls_q: type[Distribution]) -> Callable[[Divergence], Divergence]:
    """Decorate the function `(p, q) -> divergence` of two classes and of their subclasses.

    Raises:
        TypeError: one of them is no class of distributions.
    """
    if not (issubclass(cls_p, Distribution) and issubclass(cls_q, Distribution)):
        raise TypeError("register_kl() takes two subclasses of Distribution")

    def register(function: Divergence) -> Divergence:
        _DIVERGENCES[cls_p, cls_q] = function
        return function

    return register


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The expected `log p(x) - log q(x)` for x of p, in nats, [*batch_shape].

    The function is that of the nearest classes above those of `p` and `q`.

    Raises:
        NotImplementedError: none is known of these classes.
    """
    for above_p in type(p).__mro__:
        for above_q in type(q).__mro__:
            found = _DIVERGENCES.get((above_p, above_q))
            if found is not None:
                ours = str(found.__module__).startswith("oarlock.") and is_strict()
                return (bounded(found) if ours else found)(p, q)
    raise NotImplementedError(
        f"no divergence of {type(p).__name__} from {type(q).__name__} is known; see register_kl()"
    )


def _of_engines(p: OnTorch, q: OnTorch) -> Tensor:
    return torch.distributions.kl_divergence(p._engine(), q._engine())


for _class in (
    unit_interval.Beta,
    unit_interval.Dirichlet,
    unit_interval.ContinuousBernoulli,
    continuous.Cauchy,
    continuous.Laplace,
    continuous.Gumbel,
    continuous.Gamma,
    continuous.Exponential,
    discrete.Bernoulli,
    discrete.Binomial,
    discrete.Poisson,
    MultivariateNormal,
):
    register_kl(_class, _class)(_of_engines)


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    distance = ((p.loc - q.loc).abs() / q.scale) ** 2
    made = 0.5 * (ratio + distance - 1 - ratio.log())
    return (2 * made).to(p.loc.dtype) if p.loc.is_complex() else made


@register_kl(LogNormal, LogNormal)
def _lognormal(p: LogNormal, q: LogNormal) -> Tensor:
    return _normal(p._base, q._base)  # type: ignore[arg-type]


@register_kl(continuous.Uniform, continuous.Uniform)
def _uniform(p: continuous.Uniform, q: continuous.Uniform) -> Tensor:
    return ((q.high - q.low) / (p.high - p.low)).log()


@register_kl(discrete.Categorical, discrete.Categorical)
def _categorical(p: discrete.Categorical, q: discrete.Categorical) -> Tensor:
    logs = p.logits.log_softmax(-1)
    return (logs.exp() * (logs - q.logits.log_softmax(-1))).sum(-1, keepdim=True)


@register_kl(discrete.Geometric, discrete.Geometric)
def _geometric(p: discrete.Geometric, q: discrete.Geometric) -> Tensor:
    """Of one trial, as in Paddle; that of the counts is this by `p.probs`."""
    a, b = p.probs, q.probs
    return a * (a / b).log() + (1 - a) * ((1 - a) / (1 - b)).log()


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p._rank != q._rank:
        raise NotImplementedError(f"the ranks {p._rank} and {q._rank} differ")
    return sum_rightmost(kl_divergence(p._base, q._base), p._rank)
