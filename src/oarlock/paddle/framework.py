"""The state of the framework: default dtype and device, gradient modes, autocast."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import CPUPlace, CUDAPlace, Place, as_device, as_dtype, dtype_name


@api(out=False)
def get_default_dtype() -> str:
    """The default dtype by its name."""
    return dtype_name(torch.get_default_dtype())


@api(out=False)
def set_default_dtype(d: Any) -> None:
    """Set the dtype of new floating tensors."""
    torch.set_default_dtype(as_dtype(d))  # type: ignore[arg-type]


@api(out=False)
def get_device(input: Tensor | None = None) -> Any:
    """The device of new tensors, "cpu" or "gpu:0"."""
    device = torch.get_default_device() if input is None else input.device
    return "cpu" if device.type == "cpu" else f"{'gpu' if device.type == 'cuda' else device.type}:{device.index or 0}"


@api(out=False)
def set_device(device: Any) -> Place:
    """Set the device of new tensors."""
    found = as_device(device)
    torch.set_default_device(found)
    return CPUPlace() if found is None or found.type == "cpu" else CUDAPlace(found.index or 0)


@api("in_dynamic_or_pir_mode", out=False)
def in_dynamic_mode() -> bool:
    """True: there is no other mode."""
    return True


@api(out=False)
def disable_static(place: Any = None) -> None:
    """Nothing to do: execution is always eager."""


@api(out=False)
def is_grad_enabled() -> bool:
    """Whether operations are recorded for gradients."""
    return torch.is_grad_enabled()


@api(out=False)
def is_compiled_with_cuda() -> bool:
    """Whether torch was built for CUDA."""
    return torch.backends.cuda.is_built()


@api(out=False)
def is_compiled_with_rocm() -> bool:
    """Whether torch was built for ROCm."""
    return torch.version.hip is not None


@api(out=False)
def is_compiled_with_xpu() -> bool:
    """Whether torch was built for XPU."""
    return torch.xpu._is_compiled()


@api(out=False)
def is_compiled_with_distribute() -> bool:
    """Whether torch was built with its distributed package."""
    return torch.distributed.is_available()


@api(out=False)
def is_compiled_with_custom_device(device_type: str) -> bool:
    """Whether a plug-in of this name is loaded."""
    return torch._C._get_privateuse1_backend_name() == device_type


@api(out=False)
def is_autocast_enabled(device_type: Any = None) -> bool:
    """Whether autocast is on."""
    return torch.is_autocast_enabled(_kind(device_type))


@api(out=False)
def get_autocast_dtype(device_type: Any = None) -> str:
    """The dtype of autocast by its name."""
    return dtype_name(torch.get_autocast_dtype(_kind(device_type)))


@api(out=False)
def get_autocast_gpu_dtype(device_type: Any = None) -> str:
    """The dtype of autocast on a GPU by its name, where torch gives the dtype."""
    return dtype_name(torch.get_autocast_dtype("cuda"))


@api(out=False)
def get_autocast_cpu_dtype(device_type: Any = None) -> str:
    """The dtype of autocast on the CPU by its name."""
    return dtype_name(torch.get_autocast_dtype("cpu"))


def _kind(device_type: Any) -> str:
    device = as_device(device_type)
    return ("cuda" if torch.cuda.is_available() else "cpu") if device is None else device.type


@api(x="", outputs="", out=False)
def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool = False,
    no_grad_vars: Any = None,
) -> list[Tensor | None]:
    """The gradients of `outputs` with respect to `inputs`; a missing weight of an output is ones."""
    outs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    weights = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs or [None] * len(outs))
    weights = [torch.ones_like(o) if w is None else w for o, w in zip(outs, weights, strict=True)]
    targets = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    return list(torch.autograd.grad(outs, targets, weights, retain_graph, create_graph, allow_unused=allow_unused))


@api(out=False)
def set_printoptions(
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    sci_mode: bool | None = None,
    linewidth: int | None = None,
) -> None:
    """How tensors are printed."""
    torch.set_printoptions(precision, threshold, edgeitems, linewidth, sci_mode=sci_mode)


@api(out=False)
def save(obj: Any, path: Any, protocol: int = 4, **configs: Any) -> None:
    """Write an object with torch's file format."""
    torch.save(obj, path, pickle_protocol=protocol)


@api(out=False)
def load(path: Any, **configs: Any) -> Any:
    """Read what `save` wrote. Files of PaddlePaddle itself are read by `oarlock convert`."""
    return torch.load(path, weights_only=True)
