"""Options and fixtures shared by all tests."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported

import pytest
import torch
from hypothesis import settings

settings.register_profile("oarlock", deadline=None)  # a busy machine is no fault
settings.load_profile("oarlock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device that device-dependent tests run on (cpu, cuda, ...)")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
