"""`auto_cast`: operations in a smaller dtype where that is safe, as torch.autocast decides."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from oarlock.paddle.amp.lists import CustomLists
from oarlock.paddle.dtypes import as_dtype, dtype_name
from oarlock.paddle.nn.layer.layers import Layer


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def auto_cast(
    enable: bool = True,
    custom_white_list: Any = None,
    custom_black_list: Any = None,
    level: str = "O1",
    dtype: str = "float16",
    use_promote: bool = True,
) -> Iterator[None]:
    """Within the block matrix products and convolutions run in `dtype`, sums and losses in float32.

    Args:
        enable: False, and level O0, change nothing.
        custom_white_list, custom_black_list: names of operations, Paddle's or torch's, that run in `dtype`, or in
            float32, whatever torch's own lists say.
        level: O1 (or OD); O2 casts the same way and expects a model that `decorate` has converted.
        dtype: float16 or bfloat16.

    Raises:
        ValueError: an unknown level or dtype, or a name on both lists.
    """
    if level not in ("O0", "OD", "O1", "O2"):
        raise ValueError(f"level should be O0, OD, O1 or O2, got {level!r}")
    chosen = as_dtype(dtype)
    if chosen not in (torch.float16, torch.bfloat16):
        raise ValueError(f"auto_cast goes to float16 or bfloat16, got {dtype!r}")
    is_on = enable and level != "O0"
    lists: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if custom_white_list or custom_black_list:
        lists = CustomLists(custom_white_list or (), custom_black_list or (), chosen, _device())
    with torch.autocast(_device(), chosen, enabled=is_on), lists if is_on else contextlib.nullcontext():
        yield


amp_guard = auto_cast


def autocast(
    device_type: str | None, dtype: str = "float16", enabled: bool = True, cache_enabled: bool = True
) -> contextlib.AbstractContextManager[None]:
    """`auto_cast` with the arguments of torch.autocast; the kind of device is always the one there is."""
    return auto_cast(enable=enabled, dtype=dtype)


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Whether operations of a kind of device are cast now."""
    return torch.is_autocast_enabled(_kind(device_type))


def get_autocast_dtype(device_type: str | None = None) -> str:
    """The name of the dtype that operations are cast to now, or would be."""
    kind = _kind(device_type)
    return dtype_name(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else "float16"


get_autocast_cpu_dtype = get_autocast_gpu_dtype = get_autocast_dtype


def _kind(device_type: str | None) -> str:
    word = _device() if device_type is None else str(device_type).partition(":")[0]
    return "cuda" if word == "gpu" else word


def decorate(
    models: Any,
    optimizers: Any = None,
    level: str = "O1",
    dtype: str = "float16",
    master_weight: bool | None = None,
    save_dtype: str | None = None,
    master_grad: bool = False,
    excluded_layers: Any = None,
) -> Any:
    """At level O2: parameters in `dtype` (but batch norms and `excluded_layers`), float32 copies in the optimizers.

    Returns:
        the models, or (models, optimizers).

    Raises:
        ValueError: an unknown level.
    """
    if level not in ("O1", "O2"):
        raise ValueError(f"decorate() takes the levels O1 and O2, got {level!r}")
    if level == "O2":
        many = models if isinstance(models, (list, tuple)) else [models]
        half = as_dtype(dtype) == torch.float16
        for model in many:
            assert isinstance(model, Layer)
            model.float16(excluded_layers) if half else model.bfloat16(excluded_layers)
        every = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers] if optimizers is not None else []
        for optimizer in every:
            optimizer._multi_precision = master_weight is not False
    return models if optimizers is None else (models, optimizers)


amp_decorate = decorate


def is_float16_supported(device: Any = None) -> bool:
    """Whether there is a GPU, for which float16 is made."""
    return torch.cuda.is_available()


def is_bfloat16_supported(device: Any = None) -> bool:
    """Whether bfloat16 can be computed with: on every CPU, and on GPUs that say so."""
    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported()
