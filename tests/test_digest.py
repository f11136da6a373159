"""digest64 against a plain-Python transcription of its definition, and the properties people rely on."""

import hashlib
import itertools
import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oarlock import digest
from oarlock.digest import CHUNK_WORDS, Digest64, digest64, digest64_and_largest, file_digest, md5, sha1, tensor_bytes

M = 0x9E3779B97F4A7C15
U64 = (1 << 64) - 1
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


def splitmix(z: int) -> int:
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & U64
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & U64
    return z ^ z >> 31


def chunk_sum(words: list[int]) -> int:
    total = 0
    for j, word in enumerate(words):
        x = word * M & U64
        total += (x ^ x >> 32) * (splitmix((j + 1) * M & U64) | 1)
    return total & U64


def oracle(data: bytes, header: str) -> int:
    def to_words(raw: bytes) -> list[int]:
        raw += bytes(-len(raw) % 8)
        return list(struct.unpack(f"<{len(raw) // 8}Q", raw))

    words = to_words(data)
    while True:
        words = [chunk_sum(words[i : i + 4096]) for i in range(0, len(words), 4096)]
        if len(words) <= 1:
            break
    return splitmix(chunk_sum([words[0] if words else 0, *to_words(header.encode())]))


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random bits; bool gets random truth values, because other bit patterns are not valid bools."""
    rng = np.random.default_rng(seed)
    if dtype == torch.bool:
        return torch.from_numpy(rng.integers(0, 2, shape).astype(bool))
    raw = rng.integers(0, 256, math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).reshape(shape) if len(raw) else torch.empty(shape, dtype=dtype)


@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=200))
def test_equals_the_definition_on_short_vectors(data: bytes) -> None:
    tensor = torch.tensor(list(data), dtype=torch.uint8)
    assert digest64(tensor) == oracle(data, f"uint8[{len(data)}]")


@pytest.mark.parametrize("num_words", [4095, 4096, 4097, 3 * 4096, 9 * 4096 + 5])
def test_equals_the_definition_across_chunks(num_words: int) -> None:
    tensor = random_tensor((num_words,), torch.int64, seed=num_words)
    assert digest64(tensor) == oracle(tensor.numpy().tobytes(), f"int64[{num_words}]")


def test_equals_the_definition_on_three_levels() -> None:
    """More than 4096 chunks would take the plain-Python oracle minutes, so only its upper two levels are plain."""
    data = np.random.default_rng(1).integers(0, 256, 8 * CHUNK_WORDS * 4099 + 3, dtype=np.uint8)
    raw = data.tobytes()
    raw += bytes(-len(raw) % 8)
    words = np.frombuffer(raw, dtype=np.uint64)
    weights = np.array([splitmix((j + 1) * M & U64) | 1 for j in range(4096)], dtype=np.uint64)
    first = []
    for start in range(0, len(words), 4096):
        x = words[start : start + 4096] * np.uint64(M)
        x ^= x >> np.uint64(32)
        first.append(int((x * weights[: len(x)]).sum(dtype=np.uint64)))
    root = chunk_sum([chunk_sum(first[:4096]), chunk_sum(first[4096:])])
    header = f"uint8[{len(data)}]".encode()
    header += bytes(-len(header) % 8)
    expected = splitmix(chunk_sum([root, *struct.unpack(f"<{len(header) // 8}Q", header)]))
    assert digest64(torch.from_numpy(data)) == expected


def test_value_is_frozen() -> None:
    """A changed value would make every checkpoint already written look damaged."""
    assert digest64(torch.arange(6, dtype=torch.float32).reshape(2, 3)) == 0x39049E37FDBD8A54
    assert digest64(torch.empty(0)) == 0x3F575A2916692266


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7, 5)], ids=str)
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    tensor = random_tensor(shape, dtype)
    raw = bytes(tensor.contiguous().untyped_storage().tolist())
    header = f"{str(dtype)[6:]}[{','.join(map(str, shape))}]"
    moved = tensor.to(device)
    assert digest64(moved) == oracle(raw, header)
    assert sha1(moved) == hashlib.sha1(header.encode() + b"\n" + raw).hexdigest()
    assert md5(moved) == hashlib.md5(header.encode() + b"\n" + raw).hexdigest()


HASHES = pytest.mark.parametrize("function", [digest64, sha1, md5])


@HASHES
def test_shape_and_dtype_count(function) -> None:
    zeros = torch.zeros(12)
    variants = [
        zeros,
        torch.zeros(13),
        zeros.reshape(3, 4),
        zeros.reshape(4, 3),
        zeros.reshape(12, 1),
        zeros.view(torch.int32),
        torch.zeros(12, dtype=torch.bfloat16),
        torch.zeros(6, dtype=torch.float64),
        torch.zeros(0),
        torch.zeros(0, 3),
        torch.zeros(3, 0),
        torch.zeros(()),
    ]
    assert len({function(tensor) for tensor in variants}) == len(variants)


@HASHES
def test_strides_do_not_count(function) -> None:
    tensor = random_tensor((6, 8), torch.bfloat16)
    some = [tensor.t(), tensor[::2, 1::3], tensor[2:].flip(0), tensor[:1].expand(5, 8), tensor[:1, 3], tensor[:0, ::2]]
    for view in some:
        assert function(view) == function(view.clone(memory_format=torch.contiguous_format))
    value = torch.view_as_complex(torch.randn(4, 2))
    assert function(value.conj()) == function(value.conj().resolve_conj())
    assert function(value.conj().imag) == function(value.conj().imag.clone())
    assert function(tensor.float().requires_grad_()) == function(tensor.float())


@settings(max_examples=150, deadline=None)
@given(
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.float8_e4m3fn]),
    size=st.integers(1, 5000),
    data=st.data(),
)
def test_one_flipped_bit_changes_it(dtype: torch.dtype, size: int, data: st.DataObject) -> None:
    tensor = random_tensor((size,), dtype, seed=size)
    before = digest64(tensor)
    bit = data.draw(st.integers(0, size * dtype.itemsize * 8 - 1))
    tensor.view(torch.uint8)[bit // 8] ^= 1 << bit % 8
    assert digest64(tensor) != before


@settings(max_examples=150, deadline=None)
@given(
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.float16]),
    signs=st.lists(st.integers(0, 299), min_size=1, max_size=6, unique=True),
    seed=st.integers(0, 99),
)
def test_negating_any_elements_changes_it(dtype: torch.dtype, signs: list[int], seed: int) -> None:
    """Plain weighted sums lose pairs of sign flips: 2**63 times any odd weight is 2**63."""
    tensor = torch.randn(300, generator=torch.Generator().manual_seed(seed)).to(dtype)
    flipped = tensor.clone()
    flipped[signs] = -flipped[signs]
    assert digest64(flipped) != digest64(tensor)
    assert digest64(-tensor) != digest64(tensor)


def test_every_swap_of_two_elements_changes_it() -> None:
    """All 4950 swaps of 100 values; ones and twos in bf16 are the hard case: their words have few significant bits."""
    for tensor in (torch.randn(100), torch.randint(0, 3, (100,)), torch.randint(1, 3, (100,)).bfloat16()):
        before = digest64(tensor)
        for i in range(100):
            for j in range(i + 1, 100):
                if tensor[i] == tensor[j]:
                    continue
                swapped = tensor.clone()
                swapped[[i, j]] = swapped[[j, i]]
                assert digest64(swapped) != before, (tensor.dtype, i, j)


def test_moving_rows_and_chunks_changes_it() -> None:
    tensor = torch.randn(4, 2 * CHUNK_WORDS)
    permutations = [torch.tensor(p) for p in ([0, 1, 2, 3], [1, 0, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1], [0, 1, 3, 2])]
    assert len({digest64(tensor[p]) for p in permutations}) == len(permutations)
    constant = torch.ones(2, 2 * CHUNK_WORDS) * torch.tensor([[1.0], [2.0]])
    assert digest64(constant) != digest64(constant.flip(0))


def test_no_collision_among_sparse_patterns() -> None:
    """One or two elements set in 2000: 20 000 tensors that differ in few bits, 2e8 pairs, none equal."""
    seen = set()
    for i in range(200):
        for j in range(i, 200, 2):
            tensor = torch.zeros(2000)
            tensor[i * 10] = 1.0
            tensor[j * 10] += -1.0 if i != j else 0.0
            seen.add(digest64(tensor))
    assert len(seen) == sum(len(range(i, 200, 2)) for i in range(200))


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 200_000), max_size=6), size=st.integers(0, 200_000))
def test_streaming_in_any_pieces(cuts: list[int], size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    hasher = Digest64()
    edges = [0, *sorted(min(c, size) for c in cuts), size]
    for start, stop in itertools.pairwise(edges):
        hasher.update(data[start:stop])
        hasher.value  # noqa: B018  reading it in between must not disturb it
    assert hasher.value == digest64(torch.from_numpy(data))
    assert hasher.hexdigest() == f"{hasher.value:016x}"


def test_files(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, (4 << 20) + 12345, dtype=np.uint8)
    path = tmp_path / "weights.bin"
    path.write_bytes(data.tobytes())
    assert file_digest(path) == f"{digest64(torch.from_numpy(data)):016x}"
    assert file_digest(path, "sha1") == hashlib.sha1(data).hexdigest()
    assert file_digest(path, "md5") == hashlib.md5(data).hexdigest()
    (tmp_path / "empty").touch()
    assert file_digest(tmp_path / "empty") == f"{digest64(torch.empty(0, dtype=torch.uint8)):016x}"
    with pytest.raises(ValueError, match=r"crc32"):
        file_digest(path, "crc32")  # type: ignore[arg-type]


def test_bytes_share_memory_with_a_contiguous_tensor() -> None:
    tensor = torch.zeros(4, 4)
    tensor_bytes(tensor)[0] = 1
    assert tensor.view(torch.int32)[0, 0] == 1


def test_refuses_what_has_no_bytes() -> None:
    with pytest.raises(TypeError, match=r"sparse"):
        digest64(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match=r"meta"):
        sha1(torch.empty(3, device="meta"))


@pytest.mark.parametrize("num_bytes", [0, 1, 7, 8, 31, 32, 33, 8 * CHUNK_WORDS, 8 * CHUNK_WORDS + 1, 300_001])
def test_the_core_and_numpy_agree(num_bytes: int) -> None:
    """Also from an address that is no multiple of 8."""
    data = np.random.default_rng(num_bytes).integers(0, 256, num_bytes + 1, dtype=np.uint8)[1:]
    assert digest._has_core()
    assert digest._chunk_sums(data).tolist() == digest._numpy_chunk_sums(data).tolist()


@pytest.mark.parametrize("num_bytes", [0, 5, 1 << 20, (1 << 20) + 1, 3 << 20, (2 << 20) + 70_000])
def test_digests_of_blocks(num_bytes: int) -> None:
    data = np.random.default_rng(num_bytes).integers(0, 256, num_bytes, dtype=np.uint8)
    expected = [Digest64().update(data[i : i + (1 << 20)]).value for i in range(0, num_bytes, 1 << 20)]
    hasher = Digest64()
    for start in range(0, num_bytes, 77_777):
        hasher.update(data[start : start + 77_777])
    assert hasher.block_digests().tolist() == expected
    assert digest.block_digests(data).tolist() == expected


# ------------------------------------------------------------------------------------------ digest and largest value

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def same_number(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7, 5), (64, 65), (3, 20_001)], ids=str)
def test_digest_and_largest_of_random_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Random bits hold NaN, infinities, zeros of both signs and denormal numbers; the last shape has several chunks."""
    tensor = random_tensor(shape, dtype, seed=len(shape))
    found, largest = digest64_and_largest(tensor)
    assert found == digest64(tensor)
    values = [abs(value) for value in tensor.flatten().double().tolist()] if dtype in FLOATS else []
    expected = math.nan if any(map(math.isnan, values)) else max(values, default=0.0)
    assert same_number(largest, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1.0, -3.5, "tiny", "smallest", "max", "min", math.inf, -math.inf, math.nan]
)
def test_largest_is_exact(dtype: torch.dtype, value: float | str) -> None:
    limits = torch.finfo(dtype)
    named = {"tiny": limits.tiny, "smallest": limits.smallest_normal * limits.eps, "max": limits.max, "min": limits.min}
    tensor = torch.zeros(5, dtype=dtype)
    tensor[3] = named[value] if isinstance(value, str) else value
    assert same_number(digest64_and_largest(tensor)[1], abs(tensor[3].double().item()))
    tensor[4] = -0.0
    assert same_number(digest64_and_largest(tensor)[1], abs(tensor[3].double().item()))


def test_digest_and_largest_of_views() -> None:
    whole = random_tensor((6, 8), torch.int32).float()
    imaginary = torch.randn(4, 3, dtype=torch.complex64).conj()
    for tensor in (whole.t(), whole[1:, ::2], whole.expand(3, 6, 8), whole[2], imaginary, imaginary.imag):
        largest = 0.0 if tensor.is_complex() else tensor.abs().max().item()
        assert digest64_and_largest(tensor) == (digest64(tensor), largest)


def test_digest_and_largest_without_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [random_tensor((9, 7), dtype) for dtype in (*FLOATS, torch.int16)]
    tensors += [torch.full((3,), 2.5), torch.empty(0)]
    with_core = [digest64_and_largest(tensor) for tensor in tensors]
    monkeypatch.setattr(digest, "_has_core", lambda: False)
    for tensor, (value, largest) in zip(tensors, with_core, strict=True):
        found = digest64_and_largest(tensor)
        assert found[0] == value
        assert same_number(found[1], largest)


def test_digest_and_largest_refuses_what_has_no_bytes() -> None:
    with pytest.raises(TypeError, match=r"sparse"):
        digest64_and_largest(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match=r"meta"):
        digest64_and_largest(torch.empty(3, device="meta"))
