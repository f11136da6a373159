"""The attributes of Paddle's tensors that are values: `stop_gradient`, `place`, ..."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.dtypes import place_of
from oarlock.paddle.methods import is_dist
from oarlock.paddle.utils.unique_name import generate


class Flag(int):
    """A truth value of torch that can be called, for Paddle's answer."""

    called: bool

    @classmethod
    def of(cls, value: bool, called: bool) -> "Flag":
        """Torch's value, and that of the call."""
        made = cls(value)
        made.called = called
        return made

    def __call__(self) -> bool:
        return self.called

    def __repr__(self) -> str:
        return repr(bool(self))


def _is_sparse(x: Tensor) -> int:
    if torch.compiler.is_compiling():  # a graph knows torch's value only
        return x.layout == torch.sparse_coo
    return Flag.of(x.layout == torch.sparse_coo, x.layout in (torch.sparse_coo, torch.sparse_csr))


def _is_sparse_csr(x: Tensor) -> int:
    if torch.compiler.is_compiling():
        return x.layout == torch.sparse_csr
    return Flag.of(x.layout == torch.sparse_csr, x.layout == torch.sparse_csr)


def _stop_gradient(x: Tensor) -> bool:
    return not x.requires_grad and x.__dict__.get("_stop_gradient", True)


def set_stop_gradient(x: Tensor, stop: bool) -> None:
    """Gradients stop at `x`, or flow. Integers have none: for them, only what was said last is kept."""
    if x.is_floating_point() or x.is_complex():
        if stop and x.grad_fn is not None:
            _detach(x)  # a result: what is computed from it from now on takes it as a constant
        else:
            x.requires_grad_(not stop)
    else:
        vars(x)["_stop_gradient"] = stop


def _detach(x: Tensor) -> None:
    try:
        x.detach_()
    except RuntimeError:  # a view
        try:
            torch.utils.swap_tensors(x, x.detach())
        except RuntimeError as error:
            raise RuntimeError("gradients are wanted through this view already; write x = x.detach()") from error


def _placements(x: Tensor) -> Any:
    raise AttributeError("only a distributed tensor has placements")  # hasattr() tells them apart by this


def _name(x: Tensor) -> str:
    given = vars(x)
    if not given.get("_name"):
        given["_name"] = generate("generated_tensor")
    return given["_name"]


def _set_name(x: Tensor, name: str) -> None:
    vars(x)["_name"] = name


PROPERTIES: dict[str, property] = {
    "name": property(_name, _set_name, doc="A name, made up unless it was set; torch's own is None always."),
    "is_sparse": property(_is_sparse, doc="Whether the layout is COO; called, whether it is COO or CSR."),
    "is_sparse_csr": property(_is_sparse_csr, doc="Whether the layout is CSR; it may be called."),
    "stop_gradient": property(_stop_gradient, set_stop_gradient, doc="Whether gradients stop here."),
    "place": property(place_of, doc="Where the tensor lives."),
    "persistable": property(
        lambda x: x.__dict__.get("_persistable", isinstance(x, torch.nn.Parameter)),
        lambda x, value: x.__dict__.__setitem__("_persistable", value),
        doc="Whether it outlives a step: True for parameters.",
    ),
    "inplace_version": property(lambda x: x._version, doc="How often it was changed in place."),
    "strides": property(lambda x: list(x.stride()), doc="The strides, in elements."),
    "offset": property(lambda x: x.storage_offset() * x.element_size(), doc="Where it starts in its memory, in bytes."),
    "grad_": property(lambda x: x.grad, doc="The gradient."),
    "placements": property(_placements, doc="How a distributed tensor is laid out."),
    "process_mesh": property(lambda x: x.device_mesh if is_dist(x) else None, doc="Of a distributed tensor: its mesh."),
    "num_shard": property(
        lambda x: x.device_mesh.size() if is_dist(x) else None, doc="Of a distributed tensor: the number of ranks."
    ),
    "block": property(lambda x: None, doc="The block of a static program: there is none."),
}
