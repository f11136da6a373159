"""Random tensors and the state they come from. The streams are torch's: seeds give torch's numbers, not Paddle's."""

import builtins
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api, write
from oarlock.paddle.dtypes import DTypeLike, as_device, as_dtype, as_ints
from oarlock.paddle.tensors.creation import finish


def _options(dtype: DTypeLike | None, device: Any) -> dict[str, Any]:
    return {"dtype": as_dtype(dtype) or torch.get_default_dtype(), "device": as_device(device)}


@api(variadic="shape")
def rand(
    shape: Any,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Uniform values in [0, 1)."""
    return finish(torch.rand(as_ints(shape), **_options(dtype, device)), requires_grad, pin_memory)


@api(variadic="shape")
def randn(
    shape: Any,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Values of the standard normal distribution."""
    return finish(torch.randn(as_ints(shape), **_options(dtype, device)), requires_grad, pin_memory)


@api()
def rand_like(
    input: Tensor, *, dtype: DTypeLike | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uniform values in the shape of `input`."""
    return finish(torch.rand_like(input, dtype=as_dtype(dtype), device=as_device(device)), requires_grad)


@api()
def randn_like(x: Tensor, dtype: DTypeLike | None = None, *, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Standard normal values in the shape of `x`."""
    return finish(torch.randn_like(x, dtype=as_dtype(dtype), device=as_device(device)), requires_grad)


@api()
def randint(
    low: int = 0,
    high: Any = None,
    shape: Any = (1,),
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Integers in [low, high), or [0, low) where `high` is None; `randint(high, shape)` is torch's order."""
    if isinstance(high, (list, tuple)):
        high, shape = None, high
    bounds = (0, low) if high is None else (low, high)
    made = torch.randint(*bounds, tuple(as_ints(shape)), dtype=as_dtype(dtype) or torch.int64, device=as_device(device))
    return finish(made, requires_grad)


@api()
def randint_like(x: Tensor, low: int = 0, high: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """Integers in [low, high) in the shape of `x`."""
    bounds = (0, low) if high is None else (low, high)
    return torch.randint(*bounds, tuple(x.shape), device=x.device).to(as_dtype(dtype) or x.dtype)


@api()
def randperm(
    n: int,
    dtype: DTypeLike = "int64",
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A permutation of 0 ... n-1."""
    made = torch.randperm(int(n), dtype=as_dtype(dtype), device=as_device(device))
    return finish(made, requires_grad, pin_memory)


@api()
def uniform(
    shape: Any,
    dtype: DTypeLike | None = None,
    min: float = 0.0,
    max: float = 1.0,
    seed: int = 0,
    *,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform values in [min, max); a `seed` other than 0 makes them repeatable."""
    generator = torch.Generator().manual_seed(seed) if seed else None
    made = torch.empty(as_ints(shape), **_options(dtype, device)).uniform_(float(min), float(max), generator=generator)
    return finish(made, requires_grad)


@api()
def normal(mean: Any = 0.0, std: Any = 1.0, shape: Any = None, *, out: Tensor | None = None) -> Tensor:
    """Normal values: of `shape` where mean and std are numbers, else of the shape of the tensors."""
    if isinstance(mean, builtins.complex) or (isinstance(mean, Tensor) and mean.is_complex()):
        centre = torch.as_tensor(mean)
        sizes = centre.shape if isinstance(mean, Tensor) else [1] if shape is None else as_ints(shape)
        made = centre.to(torch.get_default_dtype().to_complex() if not centre.ndim else centre.dtype).expand(sizes)
        made = made.detach() + std * torch.randn_like(made)  # half of the variance in either part
    elif isinstance(mean, Tensor) or isinstance(std, Tensor):
        made = torch.normal(_values(mean), _values(std))
    else:
        made = torch.empty([1] if shape is None else as_ints(shape)).normal_(float(mean), float(std))
    return made if out is None else write(made, out)


def _values(number: Any) -> Any:
    return number.detach() if isinstance(number, Tensor) else number


@api()
def log_normal(mean: Any = 1.0, std: Any = 2.0, shape: Any = None) -> Tensor:
    """`exp` of normal values with mean `mean` and deviation `std`."""
    return torch.exp(normal(mean, std, shape))


@api()
def bernoulli(x: Tensor, p: float | None = None) -> Tensor:
    """1 with the probability in `x` (or `p` everywhere), else 0."""
    return torch.bernoulli(x.detach() if p is None else torch.full_like(x, float(p)))


@api()
def multinomial(x: Tensor, num_samples: int = 1, replacement: bool = False) -> Tensor:
    """Indices drawn in proportion to the weights in the last dimension of `x`."""
    return torch.multinomial(x, num_samples, replacement)


@api()
def poisson(x: Tensor) -> Tensor:
    """Poisson counts with the rates in `x`."""
    return torch.poisson(x)


@api()
def binomial(count: Tensor, prob: Tensor) -> Tensor:
    """Successes in `count` trials of probability `prob`, int64."""
    prob = prob.to(torch.get_default_dtype()) if not prob.is_floating_point() else prob
    count, prob = torch.broadcast_tensors(count.to(prob.dtype), prob)
    return torch.binomial(count.contiguous(), prob.contiguous()).to(torch.int64)


@api()
def standard_gamma(x: Tensor) -> Tensor:
    """Gamma values with the shapes in `x` and scale 1."""
    return torch.distributions.Gamma(x, torch.ones_like(x), validate_args=False).sample()


@api("manual_seed", out=False)
def seed(seed: int) -> torch.Generator:
    """Seed every generator."""
    return torch.manual_seed(seed)


@api(out=False)
def get_rng_state(device: Any = None) -> list[Tensor]:
    """The states of the generators of a device."""
    return [torch.get_rng_state()]


@api(out=False)
def set_rng_state(state_list: Any, device: Any = None) -> None:
    """Set what `get_rng_state` returned."""
    torch.set_rng_state(state_list[0] if isinstance(state_list, (list, tuple)) else state_list)


@api("paddle.get_cuda_rng_state", bare=True, out=False)
def get_cuda_rng_state() -> list[Tensor]:
    """The states of the generators of all CUDA devices."""
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


@api(out=False)
def set_cuda_rng_state(state_list: Any) -> None:
    """Set what `get_cuda_rng_state` returned."""
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state_list)


@api(variadic="shape")
def standard_normal(
    shape: Any, dtype: DTypeLike | None = None, *, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Values of the standard normal distribution."""
    return randn(shape, dtype, device=device, requires_grad=requires_grad)


@api(at="paddle.tensor")
def gaussian(
    shape: Any, mean: Any = 0.0, std: float = 1.0, seed: int = 0, dtype: DTypeLike | None = None, *, device: Any = None
) -> Tensor:
    """Normal values; a `seed` other than 0 makes them repeatable."""
    generator = torch.Generator().manual_seed(seed) if seed else None
    made = torch.randn(as_ints(shape), generator=generator, **_options(dtype, device))
    return made * std + mean


@api(out=False)
def uniform_(x: Tensor, min: float = 0.0, max: float = 1.0, seed: int = 0) -> Tensor:
    """Fill `x` with uniform values in [min, max)."""
    return x.uniform_(float(min), float(max), generator=torch.Generator().manual_seed(seed) if seed else None)


@api(out=False)
def normal_(x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Fill `x` with normal values."""
    return x.normal_(mean, std)


@api(out=False, lam="lambd")
def exponential_(x: Tensor, lam: float = 1.0) -> Tensor:
    """Fill `x` with exponential values of rate `lam`."""
    return x.exponential_(lam)


@api(out=False)
def bernoulli_(x: Tensor, p: Any = 0.5) -> Tensor:
    """Fill `x` with 1 of probability `p`, else 0."""
    return x.bernoulli_(p)


@api(out=False, loc="median", scale="sigma")
def cauchy_(x: Tensor, loc: float = 0, scale: float = 1) -> Tensor:
    """Fill `x` with Cauchy values."""
    return x.cauchy_(loc, scale)


@api(out=False, probs="p")
def geometric_(x: Tensor, probs: Any) -> Tensor:
    """Fill `x` with the number of trials until the first success: 1, 2, ... of probability `probs`."""
    chance = torch.as_tensor(probs, dtype=torch.float32, device=x.device)
    uniform = torch.rand(x.shape, device=x.device).clamp(min=torch.finfo(torch.float32).tiny)
    return x.copy_(torch.ceil(torch.log(uniform) / torch.log1p(-chance)).clamp(min=1))


@api(out=False)
def log_normal_(x: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    """Fill `x` with exp of normal values."""
    return x.log_normal_(mean, std)
