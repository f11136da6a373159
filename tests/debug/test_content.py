"""The short way to read a tensor, against digests and largest values computed apart."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from oarlock.debug.content import ALGORITHMS, Algorithm, Reader
from oarlock.digest import digest64, md5, sha1

DIGESTS = {"sha1": sha1, "md5": md5, "digest64": lambda tensor: f"{digest64(tensor):016x}"}
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool, torch.int8, torch.complex64)


def tensors_of(dtype: torch.dtype) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(3)
    whole = (torch.randn(6, 10, generator=generator) * 5).to(dtype)
    yield from (whole, whole.t(), whole[1:, ::3], whole[2], whole[2, 3], whole[:0], whole.expand(3, 6, 10))
    yield nn.Parameter(whole.clone(), requires_grad=dtype in FLOATS)
    yield torch.zeros(300, 1000, dtype=dtype)  # longer than what is read at once, for float64
    if dtype == torch.complex64:
        yield from (whole.conj(), whole.conj().imag)
    if dtype in FLOATS:
        for value in (-0.0, math.nan, math.inf, -math.inf):
            yield torch.cat([whole, torch.full((1, 10), value, dtype=dtype)])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_content_is_what_is_there(algorithm: Algorithm, dtype: torch.dtype) -> None:
    read = Reader(algorithm)
    for tensor in tensors_of(dtype):
        content = read(tensor)
        assert content["digest"] == DIGESTS[algorithm](tensor)
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) or not tensor.numel():
            assert set(content) == {"digest"}
            continue
        tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.dtype.is_complex else tensor
        values = [abs(value) for value in tensor.detach().double().flatten().tolist()]
        assert content["max_abs"] == max(value for value in values if math.isfinite(value))
        if all(map(math.isfinite, values)):
            assert set(content) == {"digest", "max_abs"}
        else:
            assert (content["nan"], content["inf"]) == (sum(map(math.isnan, values)), sum(map(math.isinf, values)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_probes_and_rounding_go_the_long_way(algorithm: Algorithm) -> None:
    tensor = torch.tensor([1.00001, -2.0, 3.0])
    assert Reader(algorithm, probes=True)(tensor)["norm"] == pytest.approx(math.sqrt(14), rel=1e-4)
    rounded = Reader(algorithm, decimals=3)
    assert (
        rounded(tensor)["digest"] == rounded(tensor.round(decimals=3))["digest"] == DIGESTS[algorithm](tensor.round())
    )
    assert Reader(algorithm)(tensor)["digest"] != rounded(tensor)["digest"]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.tensor(100000.0001, dtype=torch.float64), torch.tensor(100000.0021, dtype=torch.float64), False),
        (torch.tensor(100000.0001, dtype=torch.float64), torch.tensor(100000.0002, dtype=torch.float64), True),
        (torch.tensor(1e300, dtype=torch.float64), torch.tensor(2e300, dtype=torch.float64), False),
        (torch.tensor(5e37), torch.tensor(9e37), False),
        (torch.tensor(5e37), torch.tensor(math.inf), False),
        (torch.tensor(math.nan), torch.tensor(math.nan), True),
        (torch.tensor(1 + 0j), torch.tensor(1 + 1e-6j), True),
        (torch.tensor(1 + 0j), torch.tensor(1 + 1e-2j), False),
        (torch.tensor(-1e-6), torch.tensor(1e-6), True),
    ],
)
def test_rounding_keeps_what_differs_by_more(a: Tensor, b: Tensor, same: bool) -> None:
    read = Reader(decimals=3)
    assert (read(a)["digest"] == read(b)["digest"]) is same
