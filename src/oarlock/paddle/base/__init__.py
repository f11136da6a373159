"""Guards of Paddle's logs, and old names of what lies elsewhere today."""

from oarlock.paddle.base import dygraph, framework
from oarlock.paddle.dtypes import CPUPlace, CUDAPinnedPlace, CUDAPlace, XPUPlace
from oarlock.paddle.framework import get_flags, set_flags
from oarlock.paddle.nn.parameter import ParamAttr
from oarlock.paddle.utils import unique_name

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "ParamAttr",
    "XPUPlace",
    "dygraph",
    "framework",
    "get_flags",
    "set_flags",
    "unique_name",
]
