import pytest

from oarlock.attention.request import OP
from oarlock.providers import providers

CPU_BACKENDS = [p.name for p in providers(OP) if p.name not in ("reference", "decode")]


@pytest.fixture(params=["reference", *CPU_BACKENDS])
def backend(request, device):
    """Every backend for any number of rows."""
    if request.param != "reference" and device.type != "cpu":
        pytest.skip(f"the {request.param} backend runs on the CPU")
    return request.param
