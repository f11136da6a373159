"""The state of the framework: default dtype and device, gradient modes, autocast."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.utils.dlpack
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
    found = as_dtype(d)
    if found is None or not found.is_floating_point:
        raise TypeError(f"set_default_dtype() takes float16, bfloat16, float32 or float64, not {d!r}")
    torch.set_default_dtype(found)


@api(out=False)
def get_device(input: Tensor | None = None) -> Any:
    """The device of new tensors, "cpu" or "gpu:0"."""
    device = torch.get_default_device() if input is None else input.device
    return "cpu" if device.type == "cpu" else f"{'gpu' if device.type == 'cuda' else device.type}:{device.index or 0}"


@api(out=False)
def set_device(device: Any) -> Place:
    """Set the device of new tensors.

    Raises:
        ValueError: there is no such device here.
    """
    found = as_device(device)
    if found is not None and found.type not in ("cpu", "meta"):
        there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        count = torch.accelerator.device_count() if there is not None and there.type == found.type else 0
        if (found.index or 0) >= count:
            raise ValueError(f"set_device({device!r}): there are {count} devices of this kind here")
    torch.set_default_device(found)
    return CPUPlace() if found is None or found.type == "cpu" else CUDAPlace(found.index or 0)


@api("in_dynamic_or_pir_mode", out=False)
def in_dynamic_mode() -> bool:
    """True: there is no other mode."""
    return True


in_dynamic_or_pir_mode = in_dynamic_mode


def in_pir_mode() -> bool:
    """False: there are no static graphs."""
    return False


@api(out=False)
def disable_static(place: Any = None) -> None:
    """Nothing to do: execution is always eager."""


@api(out=False)
def enable_static() -> None:
    """Refused: programs run as they are read. `torch.compile` is the way to a graph."""
    raise NotImplementedError("there is no static mode on torch; torch.compile makes graphs of functions and layers")


@api(out=False)
def disable_signal_handler() -> None:
    """Nothing to do: torch leaves Python's signal handlers alone."""


FLAGS: dict[str, Any] = {}


@api(out=False)
def set_flags(flags: Mapping[str, Any]) -> None:
    """Set switches of the framework.

    `FLAGS_cudnn_deterministic` and `FLAGS_check_nan_inf` (gradients only: torch's anomaly mode) do what they say.
    Others are switches of Paddle's own machinery: they are remembered for `get_flags` and change nothing.
    """
    if unknown := [name for name in flags if not name.startswith("FLAGS_")]:
        raise ValueError(f"{unknown[0]} is no flag; the names of flags begin with FLAGS_")
    FLAGS.update(flags)
    if "FLAGS_cudnn_deterministic" in flags:
        torch.backends.cudnn.deterministic = bool(flags["FLAGS_cudnn_deterministic"])
    if "FLAGS_check_nan_inf" in flags:
        torch.autograd.set_detect_anomaly(bool(flags["FLAGS_check_nan_inf"]))


@api(out=False)
def get_flags(flags: Any) -> dict[str, Any]:
    """The values of switches that were set, False for the others."""
    names = [flags] if isinstance(flags, str) else list(flags)
    if unknown := [name for name in names if not name.startswith("FLAGS_")]:
        raise ValueError(f"{unknown[0]} is no flag; the names of flags begin with FLAGS_")
    return {name: FLAGS.get(name, False) for name in names}


@api(out=False)
def to_dlpack(x: Tensor) -> Any:
    """A capsule that lends the memory of `x` to another library."""
    return torch.utils.dlpack.to_dlpack(x)  # type: ignore[reportPrivateImportUsage]


@api(out=False)
def from_dlpack(dlpack: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor on the memory that another library lends, as a capsule or an object with `__dlpack__`."""
    made = torch.utils.dlpack.from_dlpack(dlpack)
    where = as_device(device)
    made = made if where is None else made.to(where)
    return made.clone() if copy else made


@api(out=False)
def batch(reader: Callable[[], Iterable[Any]], batch_size: int, drop_last: bool = False) -> Callable[[], Iterator[Any]]:
    """A reader of lists of `batch_size` items, from a reader of items."""
    if batch_size <= 0:
        raise ValueError(f"batch_size must be positive, not {batch_size}")

    def batches() -> Iterator[Any]:
        items = iter(reader())
        while len(found := list(itertools.islice(items, batch_size))) == batch_size:
            yield found
        if found and not drop_last:
            yield found

    return batches


@api(out=False)
def is_grad_enabled() -> bool:
    """Whether operations are recorded for gradients."""
    return torch.is_grad_enabled()


@api(out=False)
def is_compiled_with_cuda() -> bool:
    """Whether torch was built for CUDA."""
    return torch.backends.cuda.is_built()


@api(out=False)
def is_compiled_with_cinn() -> bool:
    """False: torch.compile takes the place of CINN."""
    return False


@api(out=False)
def is_compiled_with_ipu() -> bool:
    """False: torch has no backend for IPUs."""
    return False


@api(out=False)
def get_cudnn_version() -> int | None:
    """The version of cuDNN, None without it."""
    return torch.backends.cudnn.version()


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
    """The gradients of `outputs` with respect to `inputs`; a missing weight of an output is ones.

    Args:
        no_grad_vars: tensors through which no gradient flows, one or several; they count as constants.
    """
    outs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    weights = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs or [None] * len(outs))
    weights = [torch.ones_like(o) if w is None else w for o, w in zip(outs, weights, strict=True)]
    targets = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    constants = [no_grad_vars] if isinstance(no_grad_vars, Tensor) else list(no_grad_vars or [])
    handles = [each.register_hook(torch.zeros_like) for each in constants if each.requires_grad]
    try:
        return list(torch.autograd.grad(outs, targets, weights, retain_graph, create_graph, allow_unused=allow_unused))
    finally:
        for handle in handles:
            handle.remove()


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


def __getattr__(name: str) -> Any:
    """`paddle.framework.ParamAttr`, which itself needs this module."""
    if name == "ParamAttr":
        from oarlock.paddle.nn.parameter import ParamAttr

        return ParamAttr
    raise AttributeError(f"paddle.framework has no {name!r} here")
