"""`paddle.compat.nn.functional`: torch's meaning of the functions that conflict."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.compat.spelling import torch_spelling
from oarlock.paddle.declare import write
from oarlock.paddle.dtypes import as_dtype

__all__ = ["linear", "pad", "scaled_dot_product_attention", "softmax", "unfold"]
AT = "paddle.compat.nn.functional"


def _softmax(input: Tensor, dim: int | None = None, dtype: Any = None, *, out: Tensor | None = None) -> Tensor:
    """Along `dim`: 0 for 0, 1 or 3 dimensions and 1 otherwise where it is None."""
    if dim is None:
        dim = 0 if input.ndim in (0, 1, 3) else 1
    made = torch.softmax(input, dim, dtype=as_dtype(dtype))
    return made if out is None else write(made, out)


softmax = torch_spelling(f"{AT}.softmax", _softmax, "x axis name", "paddle.nn.functional.softmax")
linear = torch_spelling(f"{AT}.linear", F.linear, "x name", "paddle.nn.functional.linear")
pad = torch_spelling(f"{AT}.pad", F.pad, "x name data_format pad_from_left_axis", "paddle.nn.functional.pad")
unfold = torch_spelling(
    f"{AT}.unfold", F.unfold, "x name kernel_sizes dilations paddings strides", "paddle.nn.functional.unfold"
)
scaled_dot_product_attention = F.scaled_dot_product_attention
