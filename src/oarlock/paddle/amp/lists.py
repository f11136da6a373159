"""Operations that a program itself puts on the lists of `auto_cast`.

They are cast, or kept in float32, whatever the lists of torch.autocast say.

torch.autocast's lists are fixed, so calls of torch's functions are looked at by name. Names are those of Paddle's
operations (`matmul_v2`, `elementwise_add`, `softmax`) or of torch's functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

# Paddle's name of an operation -> torch's functions, where they are called otherwise.
_NAMES = {
    "matmul": "matmul linear mm bmm __matmul__ __rmatmul__",
    "matmul_v2": "matmul linear mm bmm __matmul__ __rmatmul__",
    "mul": "mm linear",
    "elementwise_add": "add __add__ __radd__ add_ __iadd__",
    "elementwise_sub": "sub subtract __sub__ __rsub__ rsub",
    "elementwise_mul": "mul multiply __mul__ __rmul__",
    "elementwise_div": "div divide __truediv__ __rtruediv__ true_divide",
    "elementwise_pow": "pow __pow__ __rpow__",
    "elementwise_max": "maximum max",
    "elementwise_min": "minimum min",
    "reduce_sum": "sum",
    "reduce_mean": "mean",
    "reduce_max": "amax max",
    "reduce_min": "amin min",
    "reduce_prod": "prod",
    "p_norm": "norm vector_norm",
    "c_softmax_with_cross_entropy": "cross_entropy nll_loss",
    "softmax_with_cross_entropy": "cross_entropy nll_loss",
    "cross_entropy_with_softmax": "cross_entropy nll_loss",
    "lookup_table": "embedding",
    "lookup_table_v2": "embedding",
    "squared_l2_norm": "norm vector_norm",
    "depthwise_conv2d": "conv2d",
    "flash_attn": "scaled_dot_product_attention",
    "fused_gemm_epilogue": "linear",
    "concat": "cat concat concatenate",
}


class CustomLists(TorchFunctionMode):
    """Within the block, calls of listed functions are cast.

    Args:
        white: names of operations that run in `dtype`.
        black: names of operations that run in float32.
        dtype: float16 or bfloat16.
        device: kind of device whose autocast is on.

    Raises:
        ValueError: a name is on both lists.
    """

    def __init__(self, white: Iterable[str], black: Iterable[str], dtype: torch.dtype, device: str) -> None:
        super().__init__()
        white, black = set(white), set(black)
        if white & black:
            raise ValueError(f"{', '.join(sorted(white & black))}: on the white list and on the black list")
        self._white, self._black = _functions(white), _functions(black)
        self._dtype, self._device = dtype, device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self._black:
            target = torch.float32
        elif name in self._white:
            target = self._dtype
        else:
            return func(*args, **(kwargs or {}))

        def cast(value: Any) -> Any:
            return value.to(target) if isinstance(value, Tensor) and value.dtype in _CAST else value

        with torch.autocast(self._device, enabled=False):
            return func(*tree_map(cast, args), **tree_map(cast, kwargs or {}))


_CAST = frozenset([torch.float16, torch.bfloat16, torch.float32])


def _functions(names: Iterable[str]) -> frozenset[str]:
    return frozenset(word for name in names for word in _NAMES.get(name, name).split())
