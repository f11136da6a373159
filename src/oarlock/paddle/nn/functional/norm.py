"""Normalisation over batches, layers, groups and neighbouring channels, and distances of vectors."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import as_ints
from oarlock.paddle.nn.functional.extents import AT, channels_back, channels_first, wide


@api("paddle.layer_norm", at=AT)
def layer_norm(
    x: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """Zero mean and unit variance over the last dimensions, then `·weight + bias`."""
    shape = as_ints(normalized_shape)
    half = x.dtype in (torch.float16, torch.bfloat16)
    if half and weight is not None and weight.dtype == torch.float32:  # weights of mixed precision
        return layer_norm(x.float(), shape, weight, bias, epsilon).to(x.dtype)
    weight = None if weight is None else weight.reshape(shape)
    return F.layer_norm(x, shape, weight, None if bias is None else bias.reshape(shape), epsilon)


@api(at=AT)
def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """`input / sqrt(mean(input²) + eps) · weight` over the last dimensions."""
    return F.rms_norm(input, as_ints(normalized_shape), weight, eps)


@api("paddle.group_norm", at=AT)
def group_norm(
    x: Tensor,
    num_groups: int,
    epsilon: float = 1e-5,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    data_format: str = "NCHW",
) -> Tensor:
    """Zero mean and unit variance over groups of channels."""
    if weight is None and bias is not None:  # torch's kernel takes none of the two, or both
        weight = torch.ones_like(bias)
    return channels_back(F.group_norm(channels_first(x, data_format), num_groups, weight, bias, epsilon), data_format)


@api(at=AT)
def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.9,
    eps: float = 1e-5,
    data_format: str = "NCHW",
) -> Tensor:
    """Zero mean and unit variance over each channel of each sample.

    The running statistics, `use_input_stats` and `momentum` have no effect, as in Paddle.
    """
    first = channels_first(x, data_format)
    dims = list(range(2, first.ndim))
    centred = first - first.mean(dims, keepdim=True)
    made = centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + eps)
    shape = [1, -1] + [1] * len(dims)
    made = made if weight is None else made * weight.reshape(shape)
    made = made if bias is None else made + bias.reshape(shape)
    return channels_back(made, data_format)


@api(at=AT)
def batch_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    data_format: str = "NCHW",
    use_global_stats: bool | None = None,
) -> Tensor:
    """Zero mean and unit variance over the batch. `momentum` is the share of the old statistics: 1 - torch's.

    The running variance takes the biased variance of the batch, where torch takes the unbiased one.
    """
    from_batch = training if use_global_stats is None else not use_global_stats
    first = channels_first(x, data_format)
    if not first.numel() or (from_batch and first.numel() == first.shape[1]):
        return x.clone()  # Paddle leaves a single value per channel as it is
    mean, variance = (None, None) if from_batch else (running_mean, running_var)
    made = F.batch_norm(first, mean, variance, weight, bias, from_batch, 0.0, epsilon)
    if training and from_batch:
        dims = [d for d in range(first.ndim) if d != 1]
        with torch.no_grad():
            running_mean.mul_(momentum).add_(first.mean(dims), alpha=1 - momentum)
            running_var.mul_(momentum).add_(first.var(dims, correction=0), alpha=1 - momentum)
    return channels_back(made, data_format)


@api(at=AT)
def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, data_format: str = "NCHW"
) -> Tensor:
    """`x / (k + alpha·mean of the squares of `size` neighbouring channels)**beta`."""
    made = F.local_response_norm(wide(channels_first(x, data_format)).contiguous(), size, alpha, beta, k)
    return channels_back(made, data_format).to(x.dtype)


@api(at=AT, x="input")
def normalize(x: Tensor, p: float = 2, axis: int = 1, epsilon: float = 1e-12) -> Tensor:
    """`x / max(‖x‖ₚ, epsilon)` along `axis`."""
    if not x.numel():
        return x.clone()
    return F.normalize(x, float(p), axis if x.ndim > 1 else 0, epsilon)


@api(at=AT)
def cosine_similarity(x1: Tensor, x2: Tensor, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """`x1·x2 / max(‖x1‖·‖x2‖, eps)` along `axis`."""
    squares = (x1 * x1).sum(axis) * (x2 * x2).sum(axis)
    return (x1 * x2).sum(axis) / torch.sqrt(squares.clamp(min=eps * eps))


@api(at=AT, x="x1", y="x2", p="", epsilon="eps")
def pairwise_distance(x: Tensor, y: Tensor, p: float = 2.0, epsilon: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of `x - y + epsilon` over the last dimension."""
    return torch.linalg.vector_norm(x - y + epsilon, p, -1, keepdim)


@api("paddle.pdist", at=AT)
def pdist(
    x: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary", name: str | None = None
) -> Tensor:
    """The p-norms of the differences of all pairs of rows, in the order (0, 1), (0, 2), ..."""
    row, column = torch.triu_indices(len(x), len(x), 1, device=x.device)  # torch.pdist dies on an empty gradient
    return torch.linalg.vector_norm(x[row] - x[column], float(p), -1)
