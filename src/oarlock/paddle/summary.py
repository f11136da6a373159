"""`paddle.summary`: the layers of a network in a table, with shapes, parameters and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oarlock.paddle.dtypes import as_dtype, as_ints
from oarlock.paddle.nn.layer.containers import LayerList, Sequential
from oarlock.paddle.nn.layer.layers import Layer
from oarlock.paddle.nn.layer.recurrent_networks import RNNBase
from oarlock.paddle.static import InputSpec

_HEADINGS = ("Layer (type)", "Input Shape", "Output Shape", "Param #")
_LEAST_WIDTHS = (15, 20, 20, 15)
_MB = 1024.0**2
_BYTES = 4.0  # of an element, as the table counts


@dataclass
class _Row:
    name: str
    input_shape: Any
    output_shape: Any
    num_params: int
    num_trainable: int

    @property
    def cells(self) -> tuple[str, str, str, str]:
        return self.name, str(self.input_shape), str(self.output_shape), f"{self.num_params:,}"


def summary(net: nn.Module, input_size: Any = None, dtypes: Any = None, input: Any = None) -> dict[str, int]:
    """Print a table of the layers that one forward pass calls, with their shapes, parameters and memory.

    Sizes in the table are of float32: 4 bytes an element; outputs count twice, for their gradients.

    Args:
        net: runs once, in evaluation mode, without gradients.
        input_size: the shape of its input, or a list of shapes (or InputSpecs) of several; None or -1 stands for 1.
        dtypes: of the inputs that are made; float32 by default.
        input: real inputs in their place: a tensor, or what the network takes as its one argument.

    Returns:
        {"total_params": ..., "trainable_params": ...}.

    Raises:
        ValueError: neither `input_size` nor `input`, or a size that is not positive.
    """
    if input_size is None and input is None:
        raise ValueError("input_size and input cannot be None at the same time")
    if input is not None:
        inputs, shapes = [input], _shapes_of(input)
    else:
        shapes = _shapes(input_size)
        kinds = list(dtypes) if isinstance(dtypes, (list, tuple)) else [dtypes] * len(shapes)
        inputs = [
            torch.rand(shape).to(as_dtype(kind) or torch.float32) for shape, kind in zip(shapes, kinds, strict=True)
        ]
    rows = _rows(net, inputs)
    total = sum(row.num_params for row in rows)
    trainable = sum(row.num_trainable for row in rows)
    input_mb = sum(math.prod(shape) for shape in shapes) * _BYTES / _MB
    output_mb = 2.0 * sum(_num_elements(row.output_shape) for row in rows) * _BYTES / _MB
    params_mb = total * _BYTES / _MB
    print(_text(rows, total, trainable, input_mb, output_mb, params_mb))
    return {"total_params": total, "trainable_params": trainable}


def _shapes(given: Any) -> list[tuple[int, ...]]:
    several = isinstance(given, list) and any(isinstance(each, (tuple, list, InputSpec)) for each in given)
    found = []
    for each in given if several else [given]:
        shape = each.shape if isinstance(each, InputSpec) else [each] if isinstance(each, int) else each
        sizes = tuple(1 if size in (None, -1) else int(size) for size in shape)
        if any(size <= 0 for size in sizes):
            raise ValueError(f"Expected element in input size greater than zero, but got {list(shape)}")
        found.append(sizes)
    return found


def _shapes_of(value: Any) -> list[tuple[int, ...]]:
    if isinstance(value, Tensor):
        return [tuple(as_ints(value.shape))]
    parts = value.values() if isinstance(value, Mapping) else value
    return [shape for part in parts for shape in _shapes_of(part)]


def _rows(net: nn.Module, inputs: list[Any]) -> list[_Row]:
    rows: dict[str, _Row] = {}
    holders = (Sequential, LayerList, nn.Sequential)
    layers = [layer for layer in net.modules() if isinstance(layer, RNNBase) or not isinstance(layer, holders)]
    if not isinstance(net, RNNBase) and list(net.children()):
        layers = [layer for layer in layers if layer is not net]

    def note(layer: nn.Module, given: Any, output: Any) -> None:
        number = layer.full_name().rpartition("_")[2] if isinstance(layer, Layer) else ""
        name = f"{type(layer).__name__}-{int(number) + 1 if number.isdecimal() else len(rows) + 1}"
        own = list(layer.parameters(recurse=False))
        trainable = sum(parameter.numel() for parameter in own if parameter.requires_grad)
        count = sum(parameter.numel() for parameter in own)
        rows[name] = _Row(name, _shape(given), _shape(output), count, trainable)

    was_training = net.training
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        net.eval()
        with torch.no_grad():
            net(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
        net.train(was_training)
    return list(rows.values())


def _shape(value: Any) -> Any:
    if isinstance(value, Tensor):
        return as_ints(value.shape)
    return [_shape(part) for part in value] if isinstance(value, (list, tuple)) else None


def _num_elements(shape: Any) -> int:
    if shape is None:
        return 0
    is_nested = any(isinstance(part, list) or part is None for part in shape)
    return sum(_num_elements(part) for part in shape) if is_nested else math.prod(shape)


def _text(rows: Sequence[_Row], total: int, trainable: int, input_mb: float, output_mb: float, params_mb: float) -> str:
    widths = [max(least, *(len(row.cells[i]) for row in rows), 0) for i, least in enumerate(_LEAST_WIDTHS)]
    width = max(75, sum(widths) + 5)
    table = [
        " ".join(f"{cell:^{size}}" for cell, size in zip(cells, widths, strict=True))
        for cells in (_HEADINGS, *(row.cells for row in rows))
    ]
    return "\n".join([
        "-" * width,
        table[0],
        "=" * width,
        *table[1:],
        "=" * width,
        f"Total params: {total:,}",
        f"Trainable params: {trainable:,}",
        f"Non-trainable params: {total - trainable:,}",
        "-" * width,
        f"Input size (MB): {input_mb:0.2f}",
        f"Forward/backward pass size (MB): {output_mb:0.2f}",
        f"Params size (MB): {params_mb:0.2f}",
        f"Estimated Total Size (MB): {input_mb + output_mb + params_mb:0.2f}",
        "-" * width,
        "",
    ])  # fmt: skip
