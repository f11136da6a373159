"""Folders for Paddle: safetensors in Hugging Face's layout, and what FlexCheckpoint wants to know about them."""

from dataclasses import replace

import torch

from oarlock.checkpoint.conversion import Conversion
from oarlock.checkpoint.dtypes import dtype_name
from oarlock.checkpoint.paddle.pickling import pickled
from oarlock.checkpoint.paddle.records import LocalTensorIndex, LocalTensorMetadata, Metadata

METADATA = "flex-ckpt.auto_generated.metadata"
"""The name under which Paddle looks for it, and would write its own, which knows neither int32, int64 nor float8."""

_DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


def for_paddle(conversion: Conversion) -> Conversion:
    """The same, with tied tensors under all of their names: Paddle loads by name, and ties by the model alone.

    Raises:
        ValueError: a dtype that Paddle does not read from safetensors.
    """
    for name, output in conversion.outputs.items():
        if output.dtype not in _DTYPES:
            raise ValueError(f"Paddle does not read {output.dtype} of {name!r} from safetensors; cast it by --aoa")
    ties = {name: conversion.outputs[first] for name, first in conversion.ties.items()}
    return replace(conversion, outputs={**conversion.outputs, **ties}, ties={})


def flex_file(conversion: Conversion, max_bytes: int) -> dict[str, bytes]:
    """The metadata of the folder that `conversion.write` makes with this limit per file: name -> content."""
    parts: dict[str, list[LocalTensorMetadata]] = {}
    homes: dict[LocalTensorIndex, str] = {}
    for file, names in conversion.files(max_bytes).items():
        for name in names:
            output = conversion.outputs[name]
            shape, corner = output.shape, (0,) * len(output.shape)
            parts[name] = [LocalTensorMetadata(corner, shape, dtype_name(output.dtype), shape, False, None)]
            homes[LocalTensorIndex(name, corner, False, None, None, shape)] = file
    return {METADATA: b"".join(part for part in pickled(Metadata(parts, homes, None)) if isinstance(part, bytes))}
