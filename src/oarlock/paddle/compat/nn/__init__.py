"""`paddle.compat.nn`: torch's modules."""

import torch
from torch.nn import AvgPool1d as AvgPool1D
from torch.nn import AvgPool2d as AvgPool2D
from torch.nn import AvgPool3d as AvgPool3D
from torch.nn import Linear, MultiheadAttention, Unfold

from oarlock.paddle.compat.nn import functional

__all__ = ["AvgPool1D", "AvgPool2D", "AvgPool3D", "Linear", "MultiheadAttention", "Softmax", "Unfold", "functional"]


class Softmax(torch.nn.Softmax):
    """torch's module, whose `dim` None means 0 for 0, 1 or 3 dimensions and 1 otherwise."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Softmax along `dim`."""
        return functional.softmax(input, self.dim)
