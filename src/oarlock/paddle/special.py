"""`paddle.special`: special functions."""

from oarlock.paddle import tensors as _tensors  # noqa: F401 - the functions are declared there
from oarlock.paddle.declare import REGISTRY, exports

SHARED = "expm1 i0 i0e i1 i1e polygamma digamma sinc logit gammainc gammaincc gammaln multigammaln erf erfinv"
for _name in SHARED.split():
    REGISTRY[f"paddle.special.{_name}"] = REGISTRY[f"paddle.{_name}"]
globals().update(exports("paddle.special"))
