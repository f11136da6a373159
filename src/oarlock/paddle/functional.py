"""`paddle.functional`: functions of tensors under the path that torch.functional has."""

from oarlock.paddle.compat import split
from oarlock.paddle.declare import exports as _exports

_NAMES = {"atleast_1d", "atleast_2d", "atleast_3d", "broadcast_shapes"}
_NAMES |= {"einsum", "meshgrid", "norm", "unique_consecutive"}
globals().update({name: function for name, function in _exports("paddle").items() if name in _NAMES})

__all__ = ["split", *sorted(_NAMES)]  # pyright: ignore[reportUnsupportedDunderAll]
