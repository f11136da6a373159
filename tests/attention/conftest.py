import pytest

from oarlock.attention.request import OP
from oarlock.providers import providers

# The fused backend has no float64, in which the shared tests compare; test_fused.py does the same for it.
CPU_BACKENDS = [p.name for p in providers(OP) if p.name not in ("reference", "decode", "fused")]


@pytest.fixture(params=["reference", *CPU_BACKENDS])
def backend(request, device):
    """Every backend for any number of rows."""
    if request.param != "reference" and device.type != "cpu":
        pytest.skip(f"the {request.param} backend runs on the CPU")
    return request.param
