"""`paddle.compat.nn`: torch's modules."""

from torch.nn import AvgPool1d as AvgPool1D
from torch.nn import AvgPool2d as AvgPool2D
from torch.nn import AvgPool3d as AvgPool3D
from torch.nn import Linear, MultiheadAttention, Softmax, Unfold

from oarlock.paddle.compat.nn import functional

__all__ = ["AvgPool1D", "AvgPool2D", "AvgPool3D", "Linear", "MultiheadAttention", "Softmax", "Unfold", "functional"]
