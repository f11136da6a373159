from collections.abc import Iterator

import pytest
import torch

from attention.kernel import Kernel, refusal
from oarlock.attention.request import OP
from oarlock.providers import providers

# The shared tests compare in float64; those of a kernel in the most exact dtype that it takes.
DTYPES = {"backend": [torch.float64], "kernel": [torch.float64, torch.float32]}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that asks for a backend runs for all that apply on the device."""
    device = torch.device(metafunc.config.getoption("--device"))
    named_by_the_test = {mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")}
    for fixture, dtypes in DTYPES.items():
        if fixture in metafunc.fixturenames and fixture not in named_by_the_test:
            names = [p.name for p in providers(OP) if any(_takes(p.name, device, dtype) for dtype in dtypes)]
            if fixture == "backend":
                names = [name for name in names if name != "decode"]
            metafunc.parametrize(fixture, names, indirect=True)


def _takes(name: str, device: torch.device, dtype: torch.dtype) -> bool:
    return refusal(name, device, dtype, is_decoding=True) is None


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """Every backend for any number of rows that has float64."""
    return request.param


@pytest.fixture
def kernel(request: pytest.FixtureRequest, device: torch.device) -> Iterator[Kernel]:
    """Every backend; tensors are made on its device."""
    dtype = next(dtype for dtype in DTYPES["kernel"] if _takes(request.param, device, dtype))
    if device.type == "cpu":
        yield Kernel(request.param, device, dtype)
        return
    torch.set_default_device(device)
    yield Kernel(request.param, device, dtype)
    torch.set_default_device(None)
