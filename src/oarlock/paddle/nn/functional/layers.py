"""Linear maps, embeddings, normalisation, dropout, attention, padding and resizing."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import DTypeLike, as_dtype, as_ints
from oarlock.paddle.nn.functional.extents import AT, channels_back, channels_first


@api(at=AT)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight + bias` with weight [in, out], where torch's is [out, in]."""
    made = torch.matmul(x, weight)
    return made if bias is None else made + bias


@api(at=AT)
def bilinear(x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x1·weight[o]·x2 + bias`."""
    return F.bilinear(x1, x2, weight, None if bias is None else bias.flatten())


@api(at=AT, x="input")
def embedding(
    x: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    sparse: bool = False,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    """The rows `x` of `weight`; the row `padding_idx` reads as zeros."""
    made = F.embedding(x.long(), weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    if padding_idx is None or padding_idx == -1:
        return made
    return made.masked_fill((x == padding_idx % weight.shape[0]).unsqueeze(-1), 0.0)


@api("paddle.layer_norm", at=AT)
def layer_norm(
    x: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """Zero mean and unit variance over the last dimensions, then `·weight + bias`."""
    shape = as_ints(normalized_shape)
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
    """Zero mean and unit variance over each channel of each sample; `momentum` is the share of the old statistics."""
    made = F.instance_norm(
        channels_first(x, data_format), running_mean, running_var, weight, bias, use_input_stats, 1 - momentum, eps
    )
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
    made = F.batch_norm(
        first,
        None if from_batch else running_mean,
        None if from_batch else running_var,
        weight,
        bias,
        from_batch,
        0.0,
        epsilon,
    )
    if from_batch:
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
    made = F.local_response_norm(channels_first(x, data_format), size, alpha, beta, k)
    return channels_back(made, data_format)


@api(at=AT, x="input")
def normalize(x: Tensor, p: float = 2, axis: int = 1, epsilon: float = 1e-12) -> Tensor:
    """`x / max(‖x‖ₚ, epsilon)` along `axis`."""
    return F.normalize(x, p, axis if x.ndim > 1 else 0, epsilon)


@api(at=AT)
def cosine_similarity(x1: Tensor, x2: Tensor, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along `axis`."""
    return F.cosine_similarity(x1, x2, axis, eps)


@api(at=AT, x="x1", y="x2", p="", epsilon="eps")
def pairwise_distance(x: Tensor, y: Tensor, p: float = 2.0, epsilon: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of `x - y + epsilon` over the last dimension."""
    return torch.linalg.vector_norm(x - y + epsilon, p, -1, keepdim)


@api(at=AT)
def dropout(
    x: Tensor,
    p: Any = 0.5,
    axis: Any = None,
    training: bool = True,
    inplace: bool = False,
    mode: str = "upscale_in_train",
) -> Tensor:
    """Zero elements (whole slices where `axis` names the dimensions that vary) with probability `p`."""
    if mode not in ("upscale_in_train", "downscale_in_infer", "downgrade_in_infer"):
        raise ValueError(f"mode must be 'upscale_in_train' or 'downscale_in_infer', not {mode!r}")
    keep, upscale = 1.0 - float(p), mode == "upscale_in_train"
    if not training:
        made = x if upscale else x * keep
    elif keep == 0.0:
        made = x * 0.0
    else:
        dims = range(x.ndim) if axis is None else [d % x.ndim for d in as_ints(axis)]
        shape = [n if d in dims else 1 for d, n in enumerate(x.shape)]
        mask = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(keep)
        made = x * (mask / keep if upscale else mask)
    return x.copy_(made) if inplace else made


@api(at=AT)
def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero whole channels of [N, C, L]."""
    return F.dropout1d(input, p, training, inplace)


@api(at=AT)
def dropout2d(x: Tensor, p: float = 0.5, training: bool = True, data_format: str = "NCHW") -> Tensor:
    """Zero whole channels of images."""
    return channels_back(F.dropout2d(channels_first(x, data_format), p, training), data_format)


@api(at=AT)
def dropout3d(x: Tensor, p: float = 0.5, training: bool = True, data_format: str = "NCDHW") -> Tensor:
    """Zero whole channels of volumes."""
    return channels_back(F.dropout3d(channels_first(x, data_format), p, training), data_format)


@api(at=AT)
def alpha_dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Dropout that keeps mean and variance of a SELU network."""
    return F.alpha_dropout(x, p, training)


@api(at=AT)
def feature_alpha_dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """`alpha_dropout` of whole channels."""
    return F.feature_alpha_dropout(x, p, training)


@api(at=AT)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    training: bool = True,
    backend: str | None = None,
    scale: float | None = None,
    enable_gqa: bool = True,
) -> Tensor:
    """`softmax(query·keyᵀ·scale + mask)·value` of [batch, sequence, heads, head size].

    torch has heads before sequence.
    """
    made = F.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask,
        dropout_p if training else 0.0,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa and query.shape[2] != key.shape[2],
    )
    return made.transpose(1, 2)


@api(at=AT)
def pad(
    x: Tensor,
    pad: Any,
    mode: str = "constant",
    value: float = 0.0,
    data_format: str | None = None,
    pad_from_left_axis: bool = True,
) -> Tensor:
    """Pad `x`. A list of 2·ndim numbers starts at the first dimension (from the last one if not `pad_from_left_axis`);
    a shorter one at the last spatial dimension, as torch's."""
    sizes = as_ints(pad)
    if len(sizes) == 2 * x.ndim and mode == "constant":
        if pad_from_left_axis:
            pairs = [sizes[i : i + 2] for i in range(0, len(sizes), 2)]
            sizes = [n for pair in reversed(pairs) for n in pair]
        return F.pad(x, sizes, value=float(value))
    layout = data_format or "NC"
    first = channels_first(x, layout)
    return channels_back(F.pad(first, sizes, mode, float(value) if mode == "constant" else None), layout)


@api(at=AT)
def zeropad2d(x: Tensor, padding: Any, data_format: str = "NCHW") -> Tensor:
    """Zeros around images: left, right, top, bottom."""
    return channels_back(F.pad(channels_first(x, data_format), as_ints(padding)), data_format)


@api(at=AT)
def affine_grid(theta: Tensor, out_shape: Any, align_corners: bool = True) -> Tensor:
    """The sampling grid of affine maps; `align_corners` is True, where torch's default is False."""
    return F.affine_grid(theta, as_ints(out_shape), align_corners)


@api(at=AT, x="input")
def grid_sample(
    x: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = True
) -> Tensor:
    """`x` sampled at a grid; `align_corners` is True, where torch's default is False."""
    return F.grid_sample(x, grid, mode, padding_mode, align_corners)


@api("upsample", at=AT)
def interpolate(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
    align_mode: int = 0,
    data_format: str | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resize to `size` or by `scale_factor`."""
    layout = data_format or "NC"
    size = None if size is None else as_ints(size)
    if isinstance(scale_factor, Tensor):
        scale_factor = scale_factor.tolist()
    corners = align_corners if mode in ("linear", "bilinear", "bicubic", "trilinear") else None
    made = F.interpolate(
        channels_first(x, layout), size, scale_factor, mode, corners, recompute_scale_factor, antialias
    )
    return channels_back(made, layout)


@api(at=AT)
def sequence_mask(x: Tensor, maxlen: Any = None, dtype: DTypeLike = "int64") -> Tensor:
    """`y[..., j] = j < x`, for j below `maxlen` (the largest of `x`)."""
    length = int(x.max()) if maxlen is None else int(maxlen)
    return (torch.arange(length, device=x.device) < x.unsqueeze(-1)).to(as_dtype(dtype))
