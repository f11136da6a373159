"""`paddle.compat.nn`: torch's modules, refusing the arguments of Paddle's."""

import torch

from oarlock.paddle.compat.nn import functional
from oarlock.paddle.compat.spelling import torch_module

__all__ = [
    "AvgPool1D",
    "AvgPool1d",
    "AvgPool2D",
    "AvgPool2d",
    "AvgPool3D",
    "AvgPool3d",
    "Linear",
    "MultiheadAttention",
    "Softmax",
    "Unfold",
    "functional",
]

POOL = "exclusive data_format name"
AvgPool1D = torch_module("AvgPool1D", torch.nn.AvgPool1d, POOL)
AvgPool2D = torch_module("AvgPool2D", torch.nn.AvgPool2d, POOL)
AvgPool3D = torch_module("AvgPool3D", torch.nn.AvgPool3d, POOL)
AvgPool1d, AvgPool2d, AvgPool3d = AvgPool1D, AvgPool2D, AvgPool3D
Linear = torch_module("Linear", torch.nn.Linear, "weight_attr bias_attr name")
MultiheadAttention = torch_module(
    "MultiheadAttention", torch.nn.MultiheadAttention, "need_weights weight_attr bias_attr"
)
Unfold = torch_module("Unfold", torch.nn.Unfold, "kernel_sizes strides paddings dilations name")


class _Softmax(torch.nn.Softmax):
    """torch's module, whose `dim` None means 0 for 0, 1 or 3 dimensions and 1 otherwise."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Softmax along `dim`."""
        return functional.softmax(input, self.dim)


Softmax = torch_module("Softmax", _Softmax, "axis name")
