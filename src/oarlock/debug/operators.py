"""Checks of a custom operator, in words: schema, fake implementation, autograd, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map


def check_op(op: Any, samples: Iterable[Sequence[Any]], *, gradients: bool = True) -> list[str]:
    """What is wrong with a custom operator (`torch.library`, C++), one sentence each; empty if nothing is.

    * schema: it writes what its schema says and nothing else, and returns no alias that it does not say;
    * fake: the fake implementation gives dtypes, shapes, strides and devices of the real one;
    * autograd: it has a formula for its backward, which does not go around the dispatcher;
    * gradients: the formula agrees with finite differences, for float64 inputs.

    Args:
        op: an `OpOverload` (`torch.ops.space.name.default`), or what `torch.library.custom_op` returns.
        samples: tuples of arguments, which are not changed.
        gradients: also compare the formula with finite differences.

    Raises:
        ValueError: there are no samples; the operator itself raises for one.
    """
    overload = getattr(op, "_opoverload", op)
    overload = getattr(overload, "default", overload)
    samples = list(samples)
    if not samples:
        raise ValueError("check_op needs at least one tuple of arguments")
    found: list[str] = []
    for number, sample in enumerate(samples):
        try:
            overload(*_copies(sample))
        except Exception as error:
            raise ValueError(f"{overload} fails on sample {number}: {error}") from error
        checks: list[Callable[[Any, Sequence[Any]], str]] = [_schema, _fake, _autograd]
        checks += [_gradients] if gradients else []
        found += [f"sample {number}: {words}" for check in checks if (words := check(overload, sample))]
    return found


def _copies(sample: Sequence[Any]) -> tuple[Any, ...]:
    def copy(value: Any) -> Any:
        return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value

    return tuple(tree_map(copy, list(sample)))


def _schema(op: Any, sample: Sequence[Any]) -> str:
    try:
        torch.library.opcheck(op, tuple(_copies(sample)), test_utils="test_schema")
    except Exception as error:
        return f"schema: {_first_line(error)}"
    return ""


def _fake(op: Any, sample: Sequence[Any]) -> str:
    real = [leaf for leaf in tree_leaves(op(*_copies(sample))) if isinstance(leaf, Tensor)]
    try:
        copies = list(_copies(sample))
        with FakeTensorMode() as mode, torch.no_grad():
            args = tree_map(lambda v: mode.from_tensor(v) if isinstance(v, Tensor) else v, copies)
            fake = [leaf for leaf in tree_leaves(op(*args)) if isinstance(leaf, Tensor)]
    except Exception as error:
        return f"fake: there is no implementation for tensors without data, or it fails: {_first_line(error)}"
    if len(real) != len(fake):
        return f"fake: gives {len(fake)} tensors where the operator gives {len(real)}"
    for i, (a, b) in enumerate(zip(real, fake, strict=True)):
        for what, x, y in (
            ("shape", tuple(a.shape), tuple(b.shape)),
            ("dtype", a.dtype, b.dtype),
            ("strides", a.stride(), b.stride()),
            ("device", a.device, b.device),
        ):
            if x != y:
                return f"fake: output {i} has {what} {y} where the operator gives {x}"
    return ""


def _autograd(op: Any, sample: Sequence[Any]) -> str:
    args = _differentiable(sample, None)
    if args is None:
        return ""
    try:
        results = tree_leaves(op(*args))
    except Exception as error:
        return f"autograd: it fails when its inputs need gradients: {_first_line(error)}"
    outputs = [leaf for leaf in results if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point]
    missing = "autograd: its outputs have no backward although an input needs one; register_autograd gives it"
    if not any(output.grad_fn is not None and "NotImplemented" not in output.grad_fn.name() for output in outputs):
        return missing
    if error := _backward_error(outputs):
        is_missing = "no autograd formula was registered" in str(error)
        return missing if is_missing else f"autograd: its backward fails: {_first_line(error)}"
    try:
        torch.library.opcheck(op, tuple(_copies(sample)), test_utils="test_autograd_registration")
    except Exception as error:
        return f"autograd: {_first_line(error)}"
    return ""


def _gradients(op: Any, sample: Sequence[Any]) -> str:
    args = _differentiable(sample, torch.float64)
    if args is None:
        return ""
    try:
        output = op(*args)
    except Exception:
        return ""  # float64 is not one of its dtypes
    nodes = [leaf.grad_fn for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    if not any(node is not None and "NotImplemented" not in node.name() for node in nodes):
        return ""  # said by the check of autograd
    tensors = [leaf for leaf in tree_leaves(op(*args)) if isinstance(leaf, Tensor)]
    if _backward_error([tensor for tensor in tensors if tensor.dtype.is_floating_point]):
        return ""  # likewise
    try:
        torch.autograd.gradcheck(op, tuple(args))
    except Exception as error:
        return f"gradients: the backward differs from finite differences: {_first_line(error)}"
    return ""


def _backward_error(outputs: Sequence[Tensor]) -> Exception | None:
    """What their backward raises."""
    try:
        torch.autograd.backward([output.sum() for output in outputs if output.requires_grad])
    except Exception as error:
        return error
    return None


def _differentiable(sample: Sequence[Any], dtype: torch.dtype | None) -> list[Any] | None:
    """Copies whose floating tensors need gradients; None if there is none."""
    found = False

    def prepare(value: Any) -> Any:
        nonlocal found
        if isinstance(value, Tensor) and value.dtype.is_floating_point:
            found = True
            return value.detach().clone().to(dtype or value.dtype).requires_grad_()
        return value

    args = tree_map(prepare, list(sample))
    return args if found else None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:400] if lines else type(error).__name__
