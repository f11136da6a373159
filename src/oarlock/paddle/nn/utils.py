"""`paddle.nn.utils`: gradients clipped in place, parameters as one vector, weights by direction and length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.nn.layer.layers import Layer
from oarlock.paddle.nn.parameter import Parameter

lists: Any = torch  # its operations on lists of tensors are not in its stubs


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)) with the norm of all of them together.

    Returns:
        the norm before.

    Raises:
        RuntimeError: `error_if_nonfinite` and the norm is not finite.
    """
    grads = _gradients(parameters)
    if not grads:
        return torch.zeros([])
    norm = torch.linalg.vector_norm(torch.stack(lists._foreach_norm(grads, float(norm_type))), float(norm_type))
    if error_if_nonfinite and not bool(norm.isfinite()):
        raise RuntimeError(f"The total norm of order {norm_type} of the gradients is {float(norm)}: it is not clipped")
    lists._foreach_mul_(grads, (float(max_norm) / (norm + 1e-6)).clamp(max=1.0))
    return norm


@torch.no_grad()
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Bring each element of the gradients into [-clip_value, clip_value]."""
    for gradient in _gradients(parameters):
        gradient.clamp_(-float(clip_value), float(clip_value))


def parameters_to_vector(parameters: Iterable[Tensor], name: str | None = None) -> Tensor:
    """All parameters flat, one behind the other."""
    return torch.cat([parameter.flatten() for parameter in parameters])


@torch.no_grad()
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor], name: str | None = None) -> None:
    """Write a vector back into the parameters that it was made of."""
    start = 0
    for parameter in parameters:
        parameter.copy_(vec[start : start + parameter.numel()].view_as(parameter))
        start += parameter.numel()


def weight_norm(layer: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Train a weight as g * v / |v|, by the parameters `<name>_g` and `<name>_v`.

    Args:
        dim: |v| is that of the slices along this dimension; None, or -1: of all of v.

    Raises:
        RuntimeError: the weight has one already.
        ValueError: the weight has no such dimension.

    Source: Salimans and Kingma, 2016.
    """
    return _reparametrise(layer, _WeightNorm(layer, name, dim))


def remove_weight_norm(layer: Any, name: str = "weight") -> Any:
    """Make the weight one parameter again.

    Raises:
        ValueError: it has no weight normalisation.
    """
    found = layer.__dict__.get("_weight_norms", {}).pop(name, None)
    if found is None:
        raise ValueError(f"weight_norm of '{name}' not found in {layer!r}")
    found.hook.remove()
    with torch.no_grad():
        weight = found.weight(layer).detach()
    for part in ("_g", "_v"):
        delattr(layer, name + part)
    layer.__dict__.pop(name, None)
    layer.__dict__["_made_weights"].discard(name)
    setattr(layer, name, Parameter(weight, name=found.full_name))
    return layer


def spectral_norm(
    layer: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Any:
    """Train a weight `<name>_orig` that is divided by its largest singular value, which power iterations find.

    Args:
        dim: the dimension that becomes the rows; 1 for linear layers and transposed convolutions, else 0.

    Source: Miyato et al., 2018.
    """
    if n_power_iterations <= 0:
        raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}")
    if dim is None:
        from oarlock.paddle.nn.layer import weighted

        dim = int(isinstance(layer, (weighted.Linear, weighted._ConvTranspose)))
    return _reparametrise(layer, _SpectralNorm(layer, name, n_power_iterations, eps, dim))


class _WeightNorm:
    """How a layer's weight is made before each forward."""

    def __init__(self, layer: Any, name: str, dim: int | None) -> None:
        if name in layer.__dict__.get("_weight_norms", {}):
            raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
        weight = layer._parameters[name]
        if dim is not None and not -weight.ndim <= dim < weight.ndim:
            raise ValueError(
                f"dim must be in [-{weight.ndim}, {weight.ndim}) for {name} {list(weight.shape)}, got {dim}"
            )
        del layer._parameters[name]
        self.name, self.full_name = name, weight.name
        self.dim = None if dim is None or dim == -1 else dim % weight.ndim
        layer.register_parameter(name + "_v", Parameter(weight.detach().clone(), name=weight.name + "_v"))
        layer.register_parameter(name + "_g", Parameter(self.length(weight.detach()), name=weight.name + "_g"))
        layer.__dict__.setdefault("_weight_norms", {})[name] = self
        self.hook: Any = None

    def length(self, v: Tensor) -> Tensor:
        """|v|, one number a slice."""
        if self.dim is None:
            return torch.linalg.vector_norm(v)
        return torch.linalg.vector_norm(v.movedim(self.dim, 0).flatten(1), dim=1)

    def weight(self, layer: Any) -> Tensor:
        """g * v / |v|."""
        g, v = getattr(layer, self.name + "_g"), getattr(layer, self.name + "_v")
        scale = g / self.length(v)
        if self.dim is not None:
            scale = scale.view([-1 if i == self.dim else 1 for i in range(v.ndim)])
        return v * scale


class _SpectralNorm:
    def __init__(self, layer: Any, name: str, steps: int, eps: float, dim: int) -> None:
        weight = layer._parameters.pop(name)
        self.name, self.steps, self.eps, self.dim = name, steps, eps, dim
        layer.register_parameter(name + "_orig", weight)
        rows, columns = self.matrix(weight.detach()).shape
        for part, size in (("_u", rows), ("_v", columns)):
            drawn = torch.nn.functional.normalize(weight.detach().new_empty(size).normal_(), dim=0, eps=eps)
            layer.register_buffer(name + part, drawn)
        self.hook: Any = None

    def matrix(self, weight: Tensor) -> Tensor:
        """[rows, rest]."""
        return weight.movedim(self.dim, 0).flatten(1)

    def weight(self, layer: Any) -> Tensor:
        """weight / (u^T W v)."""
        weight = getattr(layer, self.name + "_orig")
        u, v = getattr(layer, self.name + "_u"), getattr(layer, self.name + "_v")
        matrix = self.matrix(weight)
        if layer.training:
            with torch.no_grad():
                for _ in range(self.steps):
                    v.copy_(torch.nn.functional.normalize(matrix.t() @ u, dim=0, eps=self.eps))
                    u.copy_(torch.nn.functional.normalize(matrix @ v, dim=0, eps=self.eps))
        return weight / torch.dot(u.clone(), matrix @ v.clone())


def _reparametrise(layer: Layer, kind: Any) -> Layer:
    def make(layer: Any, inputs: Any) -> None:
        layer.__dict__[kind.name] = kind.weight(layer)

    layer.__dict__.setdefault("_made_weights", set()).add(kind.name)
    make(layer, ())
    kind.hook = layer.register_forward_pre_hook(make)
    return layer


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [parameter.grad for parameter in given if parameter.grad is not None]


__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "parameters_to_vector",
    "remove_weight_norm",
    "spectral_norm",
    "vector_to_parameters",
    "weight_norm",
]
