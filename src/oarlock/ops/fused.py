"""The C++ kernels of a decoder layer, on tensors: each does in one sweep what ATen does in several.

They take plain float32 CPU tensors; the functions of this package ask `applies` and take their torch path otherwise.
Autograd stays with the callers. N rows (tokens), E model width, F width of the gated MLP.
"""

import functools
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from oarlock import _native


def applies(*tensors: Tensor) -> bool:
    """Whether the kernels can take these tensors: plain float32 tensors on the CPU, outside of torch.compile."""
    return not torch.compiler.is_compiling() and all(map(_is_plain, tensors)) and _is_built()


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.is_neg()
        and tensor.dim() > 0
        # Subclasses (fake, distributed, functional tensors) have no memory of their own to point at.
        and (type(tensor) is Tensor or type(tensor) is torch.nn.Parameter)
    )


@functools.cache
def _is_built() -> bool:
    try:
        _native.library()
    except ImportError as error:
        warnings.warn(f"oarlock.ops runs on its slower torch path: {error}", RuntimeWarning, stacklevel=3)
        return False
    return True


def rms_norm(x: Tensor, weight: Tensor, eps: float, update: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(t, y, 1 / rms) with t = x + update (x itself without an update) and y = weight · t / rms(t).

    Args:
        x: [..., E].
        weight: [E].
        eps: added to the mean square.
        update: x's shape.

    Returns:
        t and y in x's shape, contiguous; 1 / rms [N].
    """
    x, weight = _dense(x, "x"), _dense(weight, "weight", x.shape[-1:])
    update = None if update is None else _dense(update, "update", x.shape)
    y = torch.empty_like(x)
    total = None if update is None else torch.empty_like(x)
    inverse_rms = x.new_empty(x.shape[:-1].numel())
    if x.numel():
        _native.call(
            "oarlock_rms_norm",
            *(x.data_ptr(), _pointer(update), weight.data_ptr(), eps, _pointer(total), y.data_ptr()),
            *(inverse_rms.data_ptr(), inverse_rms.numel(), x.shape[-1], torch.get_num_threads()),
        )
    return x if total is None else total, y, inverse_rms


def rms_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, inverse_rms: Tensor, dtotal: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(dx, dweight) of y = weight · x / rms(x); dtotal, a gradient that reaches x on another way, is added to dx."""
    x, weight = _dense(x, "x"), _dense(weight, "weight", x.shape[-1:])
    dy = _dense(dy, "dy", x.shape)
    dtotal = None if dtotal is None else _dense(dtotal, "dtotal", x.shape)
    inverse_rms = _dense(inverse_rms, "inverse_rms", (x.shape[:-1].numel(),))
    if not x.numel():
        return torch.empty_like(x), torch.zeros_like(weight)
    dx, dweight = torch.empty_like(x), torch.empty_like(weight)
    _native.call(
        "oarlock_rms_norm_backward",
        *(dy.data_ptr(), _pointer(dtotal), x.data_ptr(), weight.data_ptr(), inverse_rms.data_ptr()),
        *(dx.data_ptr(), dweight.data_ptr(), inverse_rms.numel(), x.shape[-1], torch.get_num_threads()),
    )
    return dx, dweight


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up. The operands may be column ranges of a wider matrix: nothing is copied.

    Args:
        gate: [..., F].
        up: same shape.

    Returns:
        contiguous, same shape.
    """
    gate, up = _as_rows(gate, "gate", gate.shape), _as_rows(up, "up", gate.shape)
    y = gate.new_empty(gate.shape)
    if y.numel():
        _native.call("oarlock_swiglu", *_rows(gate), *_rows(up), *_rows(y), *_extent(gate), torch.get_num_threads())
    return y


def swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """(dgate, dup), contiguous."""
    dy, gate, up = (_as_rows(t, n, gate.shape) for t, n in ((dy, "dy"), (gate, "gate"), (up, "up")))
    dgate, dup = gate.new_empty(gate.shape), gate.new_empty(gate.shape)
    if dy.numel():
        _native.call(
            "oarlock_swiglu_backward",
            *(*_rows(dy), *_rows(gate), *_rows(up), *_rows(dgate), *_rows(dup)),
            *(*_extent(gate), torch.get_num_threads()),
        )
    return dgate, dup


def softmax_cross_entropy_(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    scale: float | Tensor = 1.0,
    with_gradient: bool = True,
) -> Tensor:
    """loss_n = logsumexp(z_n) - z_n[target_n]; the logits become (softmax(z) - onehot(target)) · scale in place.

    Args:
        logits: [N, V], contiguous.
        targets: int64 [N], in [0, V) or ignore_index.
        ignore_index: target of rows whose loss and gradient are 0.
        scale: of the gradient: a number, or [N] one per row.
        with_gradient: False leaves the logits alone.

    Returns:
        losses [N].

    Raises:
        RuntimeError: a target outside of [0, V).
    """
    num_rows, vocabulary = logits.shape
    _native.check_tensor(logits, "logits", dtype=torch.float32, shape=(None, None))
    targets = targets.contiguous()
    _native.check_tensor(targets, "targets", dtype=torch.int64, shape=(num_rows,))
    scales = _dense(scale, "scale", (num_rows,)) if isinstance(scale, Tensor) else None
    losses = logits.new_empty(num_rows)
    if num_rows:
        _native.call(
            "oarlock_softmax_cross_entropy",
            *(logits.data_ptr(), targets.data_ptr(), ignore_index, 1.0 if isinstance(scale, Tensor) else scale),
            *(_pointer(scales), with_gradient, losses.data_ptr(), num_rows, vocabulary, torch.get_num_threads()),
        )
    return losses


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, inverse: bool = False) -> Tensor:
    """Rotates the pairs of each head's vector; x may be a view of a wider projection.

    Args:
        x: [B, S, H, D].
        cos: [B or 1, S, D / 2].
        sin: same shape.
        interleaved: pairs are (x[2i], x[2i + 1]); else (x[i], x[i + D / 2]).
        inverse: rotate by the negative angle, which is the backward pass.

    Returns:
        contiguous [B, S, H, D].
    """
    x = _as_tokens(x, "x", x.shape)
    y = x.new_empty(x.shape)
    cos, sin = _angles(x, cos, sin)
    if y.numel():
        _native.call(
            "oarlock_rope",
            *(_rotation(x, cos, sin), _heads(x), _heads(y)),
            *(inverse, interleaved, torch.get_num_threads()),
        )
    return y


def norm_rope(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """(rope(rms_norm(x, weight, eps), cos, sin), 1 / rms): the norm is over each head's vector.

    Args:
        x: [B, S, H, D].
        weight: [D].
        eps: added to the mean square.
        cos: [B or 1, S, D / 2].
        sin: same shape.

    Returns:
        contiguous [B, S, H, D] and [B, S, H].
    """
    x, weight = _as_tokens(x, "x", x.shape), _dense(weight, "weight", x.shape[-1:])
    y, inverse_rms = x.new_empty(x.shape), x.new_empty(x.shape[:-1])
    cos, sin = _angles(x, cos, sin)
    if y.numel():
        _native.call(
            "oarlock_norm_rope",
            *(
                _rotation(x, cos, sin),
                _heads(x),
                weight.data_ptr(),
                eps,
                inverse_rms.data_ptr(),
            ),
            *(_heads(y), torch.get_num_threads()),
        )
    return y, inverse_rms


def norm_rope_backward(
    dy: Tensor, x: Tensor, weight: Tensor, inverse_rms: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """(dx, dweight) of `norm_rope`."""
    x, weight = _as_tokens(x, "x", x.shape), _dense(weight, "weight", x.shape[-1:])
    dy, inverse_rms = _as_tokens(dy, "dy", x.shape), _dense(inverse_rms, "inverse_rms", x.shape[:-1])
    cos, sin = _angles(x, cos, sin)
    dx, dweight = x.new_empty(x.shape), torch.zeros_like(weight)
    if dx.numel():
        _native.call(
            "oarlock_norm_rope_backward",
            *(
                _rotation(x, cos, sin),
                _heads(dy),
                _heads(x),
                weight.data_ptr(),
            ),
            *(inverse_rms.data_ptr(), _heads(dx), dweight.data_ptr(), torch.get_num_threads()),
        )
    return dx, dweight


def _checked(tensor: Tensor, name: str, shape: Sequence[int] | None) -> Tensor:
    if not _is_plain(tensor):
        raise TypeError(f"{name} must be a float32 tensor on the CPU, got {tensor.dtype} on {tensor.device}")
    if shape is not None and tensor.shape != torch.Size(shape):
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
    return tensor


def _dense(tensor: Tensor, name: str, shape: Sequence[int] | None = None) -> Tensor:
    return _checked(tensor, name, shape).contiguous()


def _as_rows(tensor: Tensor, name: str, shape: Sequence[int]) -> Tensor:
    """The tensor itself if its rows are dense and evenly spaced, else a contiguous copy."""
    _checked(tensor, name, shape)
    sizes, strides = tensor.shape, tensor.stride()
    are_even = all(strides[dim] == sizes[dim + 1] * strides[dim + 1] for dim in range(tensor.dim() - 2))
    return tensor if strides[-1] == 1 and are_even else tensor.contiguous()


def _rows(tensor: Tensor) -> tuple[int, int]:
    """(address, row stride)."""
    # A contiguous tensor may have any stride in a dim of size 1.
    return tensor.data_ptr(), tensor.shape[-1] if tensor.is_contiguous() else tensor.stride(-2)


def _extent(tensor: Tensor) -> tuple[int, int]:
    """(number of rows, their width)."""
    return tensor.shape[:-1].numel(), tensor.shape[-1]


def _as_tokens(tensor: Tensor, name: str, shape: Sequence[int]) -> Tensor:
    """The [B, S, H, D] tensor itself if its vectors are dense and its tokens evenly spaced, else a contiguous copy."""
    _checked(tensor, name, shape)
    batch_stride, token_stride, _, stride = tensor.stride()
    is_even = tensor.shape[0] == 1 or batch_stride == tensor.shape[1] * token_stride
    return tensor if stride == 1 and is_even else tensor.contiguous()


def _heads(tensor: Tensor) -> _native.Heads:
    _, _, num_heads, head_dim = tensor.shape
    strides = (num_heads * head_dim, head_dim) if tensor.is_contiguous() else (tensor.stride(1), tensor.stride(2))
    return _native.Heads(tensor.data_ptr(), *strides)


def _angles(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    batch, seqlen, _, head_dim = x.shape
    if head_dim % 2 or cos.shape[0] not in (1, batch):
        raise ValueError(f"cannot rotate x {list(x.shape)} by tables {list(cos.shape)}")
    shape = (cos.shape[0], seqlen, head_dim // 2)
    return _dense(cos, "cos", shape), _dense(sin, "sin", shape)


def _rotation(x: Tensor, cos: Tensor, sin: Tensor) -> _native.Rotation:
    batch, seqlen, num_heads, head_dim = x.shape
    num_angles = cos.shape[0] * seqlen
    return _native.Rotation(cos.data_ptr(), sin.data_ptr(), num_angles, batch * seqlen, num_heads, head_dim)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
