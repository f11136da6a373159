"""Content hashes of tensors and files: a fast position-weighted 64-bit one, and sha1/md5 for people and other tools.

Every hash covers dtype, shape and bits, so `0.0` and `-0.0`, two NaN payloads, `[2, 3]` and `[3, 2]`, or a permuted
tensor all differ. None of them is a signature: digest64 and md5 do not resist somebody who wants a collision.
"""

import ctypes
import functools
import hashlib
import math
import warnings
from os import PathLike
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from oarlock import _native

Algorithm = Literal["digest64", "sha1", "md5"]

CHUNK_WORDS = 4096  # 32 KiB: a block of chunks and the weights stay in a core's second-level cache
_CHUNK_BYTES = 8 * CHUNK_WORDS
BLOCK_BYTES = 1 << 20
"""What `block_digests` hashes apart."""
_BLOCK_CHUNKS = 8
_READ_BYTES = 1 << 20
_MULTIPLIER = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _splitmix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _splitmix_all(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


_WEIGHTS = np.array([_splitmix((j + 1) * _MULTIPLIER & _MASK) | 1 for j in range(CHUNK_WORDS)], dtype=np.uint64)


def _chunk_sums(data: np.ndarray) -> np.ndarray:
    """Weighted sums S, uint64, of the consecutive chunks of `data` (uint8 [n], contiguous; the last may be short)."""
    if not _has_core():
        return _numpy_chunk_sums(data)
    sums = np.empty(-(-len(data) // _CHUNK_BYTES), dtype=np.uint64)
    pointers = data.ctypes.data, len(data), _WEIGHTS.ctypes.data, sums.ctypes.data
    _native.call("oarlock_digest_chunk_sums", *pointers, torch.get_num_threads())
    return sums


@functools.cache
def _has_core() -> bool:
    try:
        _native.library()
    except ImportError as error:
        warnings.warn(f"oarlock.digest hashes with numpy, which is slower: {error}", RuntimeWarning, stacklevel=4)
        return False
    return True


def _numpy_chunk_sums(data: np.ndarray) -> np.ndarray:
    if len(data) % 8:
        data = np.concatenate([data, np.zeros(-len(data) % 8, dtype=np.uint8)])
    words = data.view("<u8").astype(np.uint64, copy=False)
    num_full, rest = divmod(len(words), CHUNK_WORDS)
    sums = np.empty(num_full + (rest > 0), dtype=np.uint64)
    full = words[: num_full * CHUNK_WORDS].reshape(num_full, CHUNK_WORDS)
    for start in range(0, num_full, _BLOCK_CHUNKS):
        block = full[start : start + _BLOCK_CHUNKS]
        np.matmul(_mix(block), _WEIGHTS, out=sums[start : start + len(block)])
    if rest:
        sums[-1] = np.matmul(_mix(words[num_full * CHUNK_WORDS :]), _WEIGHTS[:rest])
    return sums


def _mix(words: np.ndarray) -> np.ndarray:
    mixed = words * np.uint64(_MULTIPLIER)
    mixed ^= mixed >> np.uint64(32)
    return mixed


def _finish(sums: np.ndarray, header: str) -> int:
    while len(sums) > 1:
        sums = _chunk_sums(sums.astype("<u8", copy=False).view(np.uint8))
    root = sums if len(sums) else np.zeros(1, dtype=np.uint64)
    tail = np.frombuffer(root.astype("<u8", copy=False).tobytes() + header.encode(), dtype=np.uint8)
    return _splitmix(int(_chunk_sums(tail)[0]))


def _finish_blocks(sums: np.ndarray, num_bytes: int) -> np.ndarray:
    digests = np.empty(-(-num_bytes // BLOCK_BYTES), dtype=np.uint64)
    per_block = BLOCK_BYTES // _CHUNK_BYTES
    num_full = num_bytes // BLOCK_BYTES
    if num_full:
        # One chunk sum over a block's 32 sums, then one over that and the header's words, of all blocks at once.
        roots = _mix(sums[: num_full * per_block].reshape(num_full, per_block)) @ _WEIGHTS[:per_block]
        header = f"uint8[{BLOCK_BYTES}]".encode()
        of_header = _chunk_sums(np.frombuffer(bytes(8) + header, dtype=np.uint8))[0]
        digests[:num_full] = _splitmix_all(_mix(roots) * _WEIGHTS[0] + of_header)
    if num_full < len(digests):
        digests[-1] = _finish(sums[num_full * per_block :], f"uint8[{num_bytes - num_full * BLOCK_BYTES}]")
    return digests


def block_digests(data: Any) -> np.ndarray:
    """digest64 of each consecutive 1 MiB of `data` (any contiguous buffer) and of the rest, uint64 [blocks]."""
    view = np.frombuffer(memoryview(data).cast("B"), dtype=np.uint8)
    return _finish_blocks(_chunk_sums(view), len(view))


class Digest64:
    """Streaming digest64 of bytes: `Digest64().update(a).update(b).value` is digest64 of the uint8 vector a + b."""

    def __init__(self) -> None:
        self._sums: list[np.ndarray] = []
        self._pending = b""
        self._num_bytes = 0

    def update(self, data: Any) -> Self:
        """Append `data` (bytes, memoryview, uint8 array: anything with a contiguous buffer). Returns self."""
        view = memoryview(data).cast("B")
        self._num_bytes += len(view)
        if self._pending:
            missing = _CHUNK_BYTES - len(self._pending)
            self._pending += view[:missing]
            view = view[missing:]
            if len(self._pending) < _CHUNK_BYTES:
                return self
            self._sums.append(_chunk_sums(np.frombuffer(self._pending, dtype=np.uint8)))
        whole = len(view) // _CHUNK_BYTES * _CHUNK_BYTES
        if whole:
            self._sums.append(_chunk_sums(np.frombuffer(view[:whole], dtype=np.uint8)))
        self._pending = bytes(view[whole:])
        return self

    @property
    def value(self) -> int:
        """The digest of everything so far, 0 <= value < 2**64."""
        sums = [*self._sums, _chunk_sums(np.frombuffer(self._pending, dtype=np.uint8))]
        return _finish(np.concatenate(sums), f"uint8[{self._num_bytes}]")

    def hexdigest(self) -> str:
        """`value` as 16 hexadecimal digits."""
        return f"{self.value:016x}"

    def block_digests(self) -> np.ndarray:
        """digest64 of each consecutive 1 MiB of everything so far (the last may be shorter), uint64 [blocks].

        They come from the same sums, so a part of a file can be verified without the rest at no further cost.
        """
        sums = np.concatenate([*self._sums, _chunk_sums(np.frombuffer(self._pending, dtype=np.uint8))])
        return _finish_blocks(sums, self._num_bytes)


def check_has_bytes(tensor: Tensor) -> None:
    """Refuse a tensor whose bytes cannot be hashed or written.

    Raises:
        TypeError: it is sparse, quantized or distributed; ValueError: it has no data (meta device).
    """
    if hasattr(tensor, "to_local"):
        raise TypeError("a distributed tensor has no single sequence of bytes here; pass tensor.to_local()")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"only dense tensors have bytes to hash or write, got layout {tensor.layout}, {tensor.dtype}")
    if tensor.device.type == "meta":
        raise ValueError(f"a meta tensor has no data (dtype {tensor.dtype}, shape {tuple(tensor.shape)})")


def tensor_bytes(tensor: Tensor) -> np.ndarray:
    """The bytes of `tensor` in C order, as a numpy uint8 vector.

    Args:
        tensor: any dtype, shape and strides; on another device than the CPU it is copied.

    Returns:
        uint8 [num_elements * element_size]; shares memory with a contiguous CPU tensor.

    Raises:
        TypeError: the tensor is sparse, quantized or distributed; ValueError: it has no data (meta device).
    """
    check_has_bytes(tensor)
    contiguous = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    # as_strided, because reshape(-1) of one element may keep a stride that view(uint8) refuses
    return contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8).numpy()


def _header(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"


def digest64(tensor: Tensor) -> int:
    """Position-weighted 64-bit hash of dtype, shape and bits; arithmetic is modulo 2**64.

    Definition, with M = 0x9E3779B97F4A7C15 and splitmix(z) the finaliser of SplitMix64
    (z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31):

    * weights    k_j = splitmix((j + 1) * M) | 1                        for j = 0 .. 4095
    * mixing     mix(w) = x ^ (x >> 32)  with  x = w * M                (a bijection)
    * chunk sum  S(w_0 .. w_{n-1}) = sum_j mix(w_j) * k_j               for n <= 4096
    * words      the tensor's bytes in C order, zero-padded to a multiple of 8, as little-endian 64-bit words
    * tree       replace the words by the chunk sums of each 4096 consecutive words, at least once, until at most
                 one is left: the root (0 for an empty tensor)
    * result     splitmix(S(root, words of the ASCII header)), header = dtype name + shape, such as `bfloat16[2,3]`

    Any change confined to one 64-bit word of the data is always detected (mix is a bijection and every weight is odd);
    a change of two words goes unseen with a chance of at most 2**-32 over the weights, whatever the bits. The chunk
    sums are independent of each other, so they can be computed in any order, in parallel, or while streaming.

    Args:
        tensor: any dense tensor, any dtype and strides; a CUDA tensor is copied to the CPU.

    Returns:
        int, 0 <= digest < 2**64.

    Source: multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is fast"); SplitMix64 (Steele).
    """
    return _finish(_chunk_sums(tensor_bytes(tensor)), _header(tensor))


class _Content(ctypes.Structure):
    """`oarlock_content` of the C header."""

    _fields_ = [("digest", ctypes.c_uint64), ("largest", ctypes.c_double)]


_VALUES = {torch.float64: 1, torch.float32: 2, torch.bfloat16: 3, torch.float16: 4}
_WEIGHTS_AT = _WEIGHTS.ctypes.data


def digest64_and_largest(tensor: Tensor) -> tuple[int, float]:
    """`digest64(tensor)` and max |x| over its values, in one call of the core and on one thread.

    Args:
        tensor: any dense tensor on the CPU; meant for some kilobytes, where calls are dearer than arithmetic.

    Returns:
        the digest, and the largest magnitude: 0 of no values and of dtypes other than float64, float32, bfloat16 and
        float16; infinite or NaN if any value is.

    Raises:
        TypeError: the tensor is sparse, quantized or distributed; ValueError: it is not on the CPU.
    """
    check_has_bytes(tensor)
    if not tensor.is_cpu:
        raise ValueError(f"only a tensor on the CPU is read in one call, got one on {tensor.device}")
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return content_of_contiguous(tensor)


def content_of_contiguous(tensor: Tensor) -> tuple[int, float]:
    """`digest64_and_largest`, unchecked: of a contiguous CPU tensor, no conjugate or negative view."""
    if not _has_core():
        return _numpy_content(tensor)
    content = _Content()
    function, values, header_sum = _prepared(tensor.dtype, tensor.shape)
    status = function(tensor.data_ptr(), tensor.nbytes, values, header_sum, _WEIGHTS_AT, ctypes.addressof(content))
    if status:
        raise RuntimeError(f"oarlock_digest_content failed with status {status}")
    return content.digest, content.largest


def _numpy_content(tensor: Tensor) -> tuple[int, float]:
    if tensor.dtype not in _VALUES or not tensor.numel():
        return digest64(tensor), 0.0
    return digest64(tensor), torch.linalg.vector_norm(tensor.detach().double(), math.inf).item()


@functools.lru_cache(4096)
def _prepared(dtype: torch.dtype, shape: torch.Size) -> tuple[Any, int, int]:
    """The core's function, what the values are to it, and the terms of the header in the last sum of the definition."""
    header = f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"
    # The sum beside a root of 0, whose term is 0.
    header_sum = int(_chunk_sums(np.frombuffer(bytes(8) + header.encode(), dtype=np.uint8))[0])
    return _native.library().oarlock_digest_content, _VALUES.get(dtype, 0), header_sum


def sha1(tensor: Tensor) -> str:
    """SHA-1, 40 hexadecimal digits, of the line `dtype[shape]\\n` followed by the tensor's bytes in C order."""
    return _with_header(hashlib.sha1(usedforsecurity=False), tensor)


def md5(tensor: Tensor) -> str:
    """MD5, 32 hexadecimal digits, of the line `dtype[shape]\\n` followed by the tensor's bytes in C order."""
    return _with_header(hashlib.md5(usedforsecurity=False), tensor)


def _with_header(hasher: Any, tensor: Tensor) -> str:
    hasher.update(f"{_header(tensor)}\n".encode())
    hasher.update(tensor_bytes(tensor).data)
    return hasher.hexdigest()


def file_digest(path: str | PathLike[str], algorithm: Algorithm = "digest64") -> str:
    """Hash of a file's bytes in hexadecimal, read in blocks of 1 MiB.

    `digest64` treats the file as the uint8 vector of its bytes; `sha1` and `md5` equal `sha1sum` and `md5sum`.

    Raises:
        ValueError: unknown algorithm; OSError: the file cannot be read.
    """
    if algorithm == "digest64":
        hasher: Any = Digest64()
    elif algorithm in ("sha1", "md5"):
        hasher = hashlib.new(algorithm, usedforsecurity=False)
    else:
        raise ValueError(f"unknown algorithm {algorithm!r}; choose digest64, sha1 or md5")
    buffer = bytearray(_READ_BYTES)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(memoryview(buffer)[:count])
    return hasher.hexdigest()
