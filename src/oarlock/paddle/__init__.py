# ruff: noqa: F401 - what is imported here is the namespace
"""Paddle's API on torch: plain tensors in and out, in Paddle's convention and the industry's.

import oarlock.paddle as paddle

paddle.sum(x, axis=1, keepdim=True) is torch.sum(x, dim=1, keepdim=True)   # both spellings work
paddle.patch_tensor()                                                      # x.astype("float16"), x.stop_gradient
"""

import importlib as _importlib
import math as _math
from difflib import get_close_matches as _get_close_matches
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

import torch as _torch

from oarlock.paddle import (
    amp,
    audio,
    autograd,
    base,
    compat,
    cuda,
    device,
    fft,
    framework,
    functional,
    geometric,
    incubate,
    inplace,
    io,
    jit,
    library,
    linalg,
    methods,
    methods_in_place,
    metric,
    nn,
    optimizer,
    random,
    regularizer,
    sampling,
    serialization,
    signal,
    sparse,
    special,
    static,
    text,
    utils,
    version,
    vision,
)
from oarlock.paddle import dtypes as _dtypes
from oarlock.paddle import paths as _paths
from oarlock.paddle.amp.auto_cast import autocast
from oarlock.paddle.compat.proxy import use_torch_proxy_guard as use_compat_guard
from oarlock.paddle.declare import exports as _exports
from oarlock.paddle.device import Event, Stream, device_guard, get_device_module
from oarlock.paddle.dtypes import CPUPlace, CUDAPinnedPlace, CUDAPlace, CustomPlace, Place, XPUPlace
from oarlock.paddle.nn.lazy import LazyGuard
from oarlock.paddle.nn.parameter import ParamAttr
from oarlock.paddle.patch import patch_tensor, unpatch_tensor
from oarlock.paddle.strict import strict
from oarlock.paddle.summary import summary
from oarlock.paddle.tensor_class import Tensor

for _name, _dtype in {**_dtypes.NAMES, **_dtypes.SHORT, "float": _torch.float32}.items():
    globals()[_name] = _dtype
globals().update(_exports("paddle"))
tensor = _paths.tensor_namespace(globals()["tensor"])
_paths.add_files()
_assert = _torch._assert
get_default_device, set_default_device = framework.get_device, framework.set_device

__version__ = version.full_version
Generator = _torch.Generator
no_grad, enable_grad, set_grad_enabled = _torch.no_grad, _torch.enable_grad, _torch.set_grad_enabled
dtype = _torch.dtype
Size = _torch.Size
e, pi, inf, nan, newaxis = _math.e, _math.pi, _math.inf, _math.nan, None
FloatTensor, DoubleTensor, HalfTensor, BFloat16Tensor = (
    _torch.FloatTensor,
    _torch.DoubleTensor,
    _torch.HalfTensor,
    _torch.BFloat16Tensor,
)
IntTensor, LongTensor, ShortTensor, CharTensor, ByteTensor, BoolTensor = (
    _torch.IntTensor,
    _torch.LongTensor,
    _torch.ShortTensor,
    _torch.CharTensor,
    _torch.ByteTensor,
    _torch.BoolTensor,
)

if _TYPE_CHECKING:
    from oarlock.paddle import distributed, distribution
    from oarlock.paddle.distributed.data_parallel import DataParallel


_LATE = {"distributed": "distributed", "distribution": "distribution", "DataParallel": "distributed.data_parallel"}


def __getattr__(name: str) -> _Any:
    """What takes long to import, because torch's own part does, is imported when it is first used."""
    if name in _LATE:
        module = _importlib.import_module(f"oarlock.paddle.{_LATE[name]}")
        return module if _LATE[name] == name else getattr(module, name)
    near = _get_close_matches(name, __dir__(), 1, 0.8)
    meant = f"did you mean {near[0]!r}? " if near else ""
    check = "`oarlock paddle check FILE` lists what of a program is absent"
    raise AttributeError(f"paddle has no {name!r} here; {meant}{check}", name=name)


def __dir__() -> list[str]:
    """All names, also those not imported yet."""
    return sorted({*globals(), *_LATE})
