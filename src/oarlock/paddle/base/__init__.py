"""Guards of Paddle's logs, and old names of what lies elsewhere today."""

from oarlock.paddle.base import core, dygraph, framework
from oarlock.paddle.base.framework import in_dygraph_mode
from oarlock.paddle.dtypes import CPUPlace, CUDAPinnedPlace, CUDAPlace, XPUPlace
from oarlock.paddle.framework import (
    get_flags,
    in_dynamic_or_pir_mode,
    in_pir_mode,
    is_compiled_with_cinn,
    is_compiled_with_cuda,
    is_compiled_with_rocm,
    is_compiled_with_xpu,
    set_flags,
)
from oarlock.paddle.nn.parameter import ParamAttr
from oarlock.paddle.utils import unique_name

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "ParamAttr",
    "XPUPlace",
    "core",
    "dygraph",
    "framework",
    "get_flags",
    "in_dygraph_mode",
    "in_dynamic_or_pir_mode",
    "in_pir_mode",
    "is_compiled_with_cinn",
    "is_compiled_with_cuda",
    "is_compiled_with_rocm",
    "is_compiled_with_xpu",
    "set_flags",
    "unique_name",
]
