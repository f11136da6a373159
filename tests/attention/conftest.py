import pytest


@pytest.fixture(params=["reference", "aten"])
def backend(request, device):
    if request.param == "aten" and device.type != "cpu":
        pytest.skip("the aten backend runs on the CPU")
    return request.param
