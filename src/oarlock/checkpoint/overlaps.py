"""Destinations that share some of their memory, such as a weight and its transpose, or a fused weight and a part of it.

Both are filled; where they meet, they must be filled with the same bits.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.shards import find_ties
from oarlock.checkpoint.ties import Filling

_MOST_WORK = 10_000  # steps of numpy's exact search; beyond it two tensors are compared in any case


@dataclass(frozen=True)
class Overlap:
    """Two destinations whose memory is neither the same nor apart."""

    first: str
    second: str
    fillings: tuple[Filling, Filling]

    def check(self) -> None:
        """Raise CheckpointError unless both would fill what they share with the same bits.

        Both are put into a stand-in for the memory that they span.
        """
        spans = [_span(filling.shard.tensor) for filling in self.fillings]
        start = min(first for first, _ in spans)
        memory = torch.zeros(max(stop for _, stop in spans) - start, dtype=torch.uint8, device="cpu")
        filled = torch.zeros_like(memory, dtype=torch.bool)
        for filling in self.fillings:
            for box, view in filling.shard.views():
                value = torch.empty(box.size, dtype=view.dtype, device="cpu")
                for transfer in filling.fill(box, value):
                    transfer.run()
                data = _stored_bits(value, view)
                strides = (*(stride * view.itemsize for stride in view.stride()), 1)
                place, marks = (
                    whole.as_strided(data.shape, strides, view.data_ptr() - start) for whole in (memory, filled)
                )
                if not torch.equal(place[marks], data[marks]):
                    raise CheckpointError(
                        f"{self.first} and {self.second} share some of their memory, but the checkpoint has different "
                        f"values for it; leave one out, or choose one: prefer=({self.first!r},)"
                    )
                place.copy_(data)
                marks.fill_(True)


def find_overlaps(fillings: Mapping[str, Filling], prefer: Collection[str]) -> list[Overlap]:
    """The pairs that share some memory, but not those of which one is preferred, and not ties."""
    ties = find_ties({name: filling.shard for name, filling in fillings.items()})
    names = [name for name in fillings if name not in ties and name not in prefer]
    return [
        Overlap(a, b, (fillings[a], fillings[b]))
        for a, b in _pairs({name: fillings[name].shard.tensor for name in names})
    ]


def _pairs(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Pairs whose memory meets: a sweep over the addresses."""
    spans = sorted((str(t.device), *_span(t), name) for name, t in tensors.items() if t.numel())
    open_spans: list[tuple[str, int, str]] = []
    for device, start, stop, name in spans:
        open_spans = [(d, end, other) for d, end, other in open_spans if d == device and end > start]
        for _, _, other in open_spans:
            if _share(tensors[other], tensors[name]):
                yield other, name
        open_spans.append((device, stop, name))


def _span(tensor: Tensor) -> tuple[int, int]:
    """Addresses of the first byte, and of the one after the last."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.itemsize


def _share(a: Tensor, b: Tensor) -> bool:
    try:
        layouts = np.asarray(_Layout(a)), np.asarray(_Layout(b))
        return np.shares_memory(*layouts, max_work=_MOST_WORK)  # type: ignore[call-overload]  (stubs know only -1 and 0)
    except np.exceptions.TooHardError:
        return True


class _Layout:
    """What numpy must know of a tensor, whatever its device: nobody looks at its elements."""

    def __init__(self, tensor: Tensor) -> None:
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * tensor.itemsize for stride in tensor.stride()),
            "typestr": f"|V{tensor.itemsize}",
            "version": 3,
        }


def _stored_bits(value: Tensor, view: Tensor) -> Tensor:
    """The bytes, in a further dim, that the memory of `view` holds when it shows `value`."""
    value = value.conj().resolve_conj() if view.is_conj() else value
    value = -value if view.is_neg() else value
    return value.reshape(-1, 1).view(torch.uint8).view(*view.shape, view.itemsize)
