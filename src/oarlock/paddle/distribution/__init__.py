"""`paddle.distribution`: random variables, their transforms and divergences, on torch.distributions."""

from oarlock.paddle.distribution import independent, kl, normal, transform, transformed_distribution
from oarlock.paddle.distribution.continuous import (
    Cauchy,
    Chi2,
    Exponential,
    Gamma,
    Gumbel,
    Laplace,
    StudentT,
    Uniform,
)
from oarlock.paddle.distribution.discrete import Bernoulli, Binomial, Categorical, Geometric, Multinomial, Poisson
from oarlock.paddle.distribution.distribution import Distribution, ExponentialFamily
from oarlock.paddle.distribution.independent import Independent
from oarlock.paddle.distribution.kl import kl_divergence, register_kl
from oarlock.paddle.distribution.normal import LogNormal, MultivariateNormal, Normal
from oarlock.paddle.distribution.transform import (
    AbsTransform,
    AffineTransform,
    ChainTransform,
    ExpTransform,
    IndependentTransform,
    PowerTransform,
    ReshapeTransform,
    SigmoidTransform,
    SoftmaxTransform,
    StackTransform,
    StickBreakingTransform,
    TanhTransform,
    Transform,
)
from oarlock.paddle.distribution.transformed_distribution import TransformedDistribution
from oarlock.paddle.distribution.unit_interval import Beta, ContinuousBernoulli, Dirichlet, LKJCholesky

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Cauchy",
    "ChainTransform",
    "Chi2",
    "ContinuousBernoulli",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "ExponentialFamily",
    "Gamma",
    "Geometric",
    "Gumbel",
    "Independent",
    "IndependentTransform",
    "LKJCholesky",
    "Laplace",
    "LogNormal",
    "Multinomial",
    "MultivariateNormal",
    "Normal",
    "Poisson",
    "PowerTransform",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "StackTransform",
    "StickBreakingTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "independent",
    "kl",
    "kl_divergence",
    "normal",
    "register_kl",
    "transform",
    "transformed_distribution",
]
