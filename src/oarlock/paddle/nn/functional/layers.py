"""Linear maps, embeddings, dropout and the small helpers of sequences."""

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
    if padding_idx is None:
        return made
    return made.masked_fill((x == padding_idx % weight.shape[0]).unsqueeze(-1), 0.0)


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
    if keep == 1.0:
        return x
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
def sequence_mask(x: Tensor, maxlen: Any = None, dtype: DTypeLike = "int64") -> Tensor:
    """`y[..., j] = j < x`, for j below `maxlen` (the largest of `x`)."""
    length = int(x.max()) if maxlen is None else int(maxlen)
    return (torch.arange(length, device=x.device) < x.unsqueeze(-1)).to(as_dtype(dtype))


@api(at=AT)
def gather_tree(ids: Tensor, parents: Tensor) -> Tensor:
    """Whole beams from their last step back: `ids[t]` of the beam that `parents` leads to, [time, batch, beam]."""
    beam, rows = parents.new_zeros(parents.shape[1:]) + torch.arange(parents.shape[2], device=ids.device), []
    for step in range(len(ids) - 1, -1, -1):
        rows.append(ids[step].gather(1, beam.long()))
        beam = parents[step].gather(1, beam.long())
    return torch.stack(rows[::-1]) if rows else ids.clone()


@api(at=AT, out=False)
@torch.no_grad()
def embedding_renorm_(x: Tensor, weight: Tensor, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale the rows `x` of `weight` in place so that their norm is at most `max_norm`."""
    return torch.embedding_renorm_(weight, x.long().flatten(), max_norm, norm_type)
