"""What is in a tensor, in a few numbers: a digest of all its bits, the largest value, how many are not finite."""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from oarlock.digest import content_of_contiguous, digest64, md5, sha1

Algorithm = Literal["sha1", "md5", "digest64"]
ALGORITHMS = ("sha1", "md5", "digest64")
_SHORT_BYTES = {"sha1": 1 << 16, "md5": 1 << 16, "digest64": 1 << 20}  # calls cost more than hashing, or one is enough


class Reader:
    """Makes the `content` of records.

    Args:
        algorithm: of the digest; all of them cover dtype, shape and every bit. sha1 and md5 are those of
            `oarlock.digest`, digest64 is the fastest.
        decimals: round to so many decimals first, so that runs that differ by less have equal digests. A value that
            lies on the boundary between two roundings still differs.
            Of complex numbers both parts are rounded.
        probes: also the 2-norm and the product with fixed random weights, for `oarlock debug diff --tolerance`. Of
            complex numbers both parts count.

    Raises:
        ValueError: unknown algorithm.
    """

    def __init__(self, algorithm: Algorithm = "sha1", *, decimals: int | None = None, probes: bool = False) -> None:
        if algorithm not in ALGORITHMS:
            raise ValueError(f"digests = {algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
        self._algorithm, self._decimals, self._probes = algorithm, decimals, probes
        self._hash = _HASHES.get(algorithm)
        self._short_bytes = _SHORT_BYTES[algorithm] if decimals is None else -1
        self._short_dtypes = _NUMPY if self._hash is not None else _NUMBERS

    def __call__(self, tensor: Tensor) -> dict[str, Any]:
        """Content of a tensor; of a DTensor, of the part that is here."""
        if type(tensor) in _PLAIN and tensor.layout is _STRIDED and tensor.is_cpu and not is_wrapped(tensor):
            dtype = tensor.dtype
            if (
                dtype in self._short_dtypes
                and tensor.nbytes <= self._short_bytes
                and not (tensor.is_neg() or tensor.is_nested)
            ):
                return self._short(tensor, dtype)
        local = readable(tensor)
        if local is None:
            return {}
        content: dict[str, Any] = {"digest": self._digest(local)}
        if (local.dtype.is_floating_point or local.dtype.is_complex) and local.numel():
            content |= self._numbers(local)
        return content

    def _short(self, tensor: Tensor, dtype: torch.dtype) -> dict[str, Any]:
        """The same as for any tensor, with fewer calls: most of the cost of a short one."""
        if self._hash is None:
            number, largest = content_of_contiguous(tensor if tensor.is_contiguous() else tensor.detach().contiguous())
            digest = f"{number:016x}"
            if dtype not in _FLOATS or not tensor.nbytes:
                return {"digest": digest}
        else:
            values = tensor.detach().numpy()
            hasher = self._hash(_header(dtype, tensor.shape), usedforsecurity=False)
            hasher.update(values.data if values.flags.c_contiguous else values.tobytes())
            digest = hasher.hexdigest()
            if dtype not in _FLOATS or not values.size:
                return {"digest": digest}
            largest = float(_largest(_absolute(values), None))
        if self._probes or not math.isfinite(largest):
            return {"digest": digest} | self._numbers(tensor.detach())
        return {"digest": digest, "max_abs": largest}

    def _digest(self, tensor: Tensor) -> str:
        if self._decimals is not None and tensor.dtype.is_floating_point:
            tensor = _rounded(tensor, self._decimals)
        elif self._decimals is not None and tensor.dtype.is_complex:
            tensor = torch.view_as_complex(_rounded(torch.view_as_real(tensor.resolve_conj()), self._decimals))
        if self._algorithm == "digest64":
            return f"{digest64(tensor):016x}"
        return (sha1 if self._algorithm == "sha1" else md5)(tensor)

    def _numbers(self, tensor: Tensor) -> dict[str, Any]:
        tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.dtype.is_complex else tensor
        values = tensor.float() if tensor.dtype.itemsize < 4 else tensor
        largest = torch.linalg.vector_norm(values, math.inf).item()
        numbers: dict[str, Any] = {"max_abs": largest}
        if not math.isfinite(largest):
            nan, inf = int(values.isnan().sum()), int(values.isinf().sum())
            finite = values.nan_to_num(0.0, 0.0, 0.0)
            numbers = {"max_abs": torch.linalg.vector_norm(finite, math.inf).item(), "nan": nan, "inf": inf}
            values = finite
        if self._probes:
            flat = values.reshape(-1).double()
            numbers["norm"] = torch.linalg.vector_norm(flat).item()
            numbers["probe"] = torch.dot(flat, _weights(flat.numel(), flat.device)).item()
        return numbers


def _rounded(tensor: Tensor, decimals: int) -> Tensor:
    """To so many decimals; numbers too large to have any stay, which torch.round makes infinite. 0 for -0."""
    wide = tensor.float() if tensor.dtype.itemsize < 4 else tensor
    rounded = torch.round(wide, decimals=decimals)
    return (torch.where(rounded.isfinite(), rounded, wide) + 0.0).to(tensor.dtype)


def readable(tensor: Tensor) -> Tensor | None:
    """The values of a tensor that are here, in one plain dense tensor (of a DTensor, its part); None if there is none.

    None: sparse, quantized and nested tensors, those without memory (meta, fake), lazy parameters, those that stand for
    others (within `vmap` or `torch.func.grad`), and subclasses with operators of their own.
    """
    if is_wrapped(tensor) or is_lazy(tensor):
        return None
    local = tensor.detach()
    to_local = getattr(local, "to_local", None)
    if to_local is not None:
        local = to_local()
    if isinstance(local, FakeTensor) or getattr(type(local), _DISPATCH) is not getattr(Tensor, _DISPATCH):
        return None
    if local.layout != torch.strided or local.is_quantized or local.is_nested or local.device.type == "meta":
        return None
    return local


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written; 0 for those of `torch.inference_mode`, which do not count."""
    return 0 if tensor.is_inference() else tensor._version


_DISPATCH = "__torch_dispatch__"
is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]
_HASHES = {"sha1": hashlib.sha1, "md5": hashlib.md5}
_absolute, _largest = np.abs, np.maximum.reduce
_FLOATS = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
_INTEGERS = {torch.int64, torch.int32, torch.bool, torch.uint8}
_NUMPY = {torch.float32, torch.float64} | _INTEGERS  # what numpy computes as fast as torch does
_NUMBERS = _FLOATS | _INTEGERS
_PLAIN = {Tensor, nn.Parameter}
_STRIDED = torch.strided


@functools.lru_cache(4096)
def _header(dtype: torch.dtype, shape: torch.Size) -> bytes:
    return f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]\n".encode()


@functools.lru_cache(64)
def _weights(count: int, device: torch.device) -> Tensor:
    """Between -1 and 1: signs alone would not tell two elements of equal sign apart that have changed places."""
    generator = torch.Generator().manual_seed(count)
    return (torch.rand(count, generator=generator, dtype=torch.float64) * 2 - 1).to(device)
