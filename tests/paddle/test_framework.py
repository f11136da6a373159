"""The state of the framework: default dtype, flags, other libraries' memory, readers."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import oarlock.paddle as paddle


@pytest.fixture
def default_dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("default_dtype")
@pytest.mark.parametrize("dtype", ["float64", paddle.float64, np.float64, np.dtype("float64")])
def test_new_tensors_have_the_default_dtype(dtype: object) -> None:
    paddle.set_default_dtype(dtype)
    assert paddle.get_default_dtype() == "float64"
    assert paddle.ones([1]).dtype == paddle.to_tensor(1.5).dtype == torch.float64


def test_an_integer_is_no_default_dtype() -> None:
    with pytest.raises(TypeError, match="takes float16, bfloat16, float32 or float64, not 'int32'"):
        paddle.set_default_dtype("int32")


def test_flags_are_kept_and_two_of_them_act() -> None:
    paddle.set_flags({"FLAGS_cudnn_deterministic": True, "FLAGS_of_another_machine": 3})
    try:
        assert torch.backends.cudnn.deterministic
        assert paddle.get_flags(["FLAGS_of_another_machine", "FLAGS_never_set"]) == {
            "FLAGS_of_another_machine": 3,
            "FLAGS_never_set": False,
        }
        paddle.set_flags({"FLAGS_check_nan_inf": True})
        assert torch.is_anomaly_enabled()
    finally:
        paddle.set_flags({"FLAGS_check_nan_inf": False, "FLAGS_cudnn_deterministic": False})
    with pytest.raises(ValueError, match="nonsense is no flag"):
        paddle.get_flags("nonsense")


def test_memory_is_lent_and_borrowed() -> None:
    x = paddle.arange(3)
    lent = paddle.from_dlpack(paddle.to_dlpack(x))
    lent[0] = 7
    assert x.tolist() == [7, 1, 2]
    assert paddle.from_dlpack(np.arange(3.0), copy=True).tolist() == [0, 1, 2]


def test_batches_of_a_reader() -> None:
    assert list(paddle.batch(lambda: range(5), 2)()) == [[0, 1], [2, 3], [4]]
    assert list(paddle.batch(lambda: range(5), 2, drop_last=True)()) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="must be positive"):
        paddle.batch(lambda: range(5), 0)


def test_there_is_no_static_mode() -> None:
    paddle.disable_static()
    assert paddle.in_dynamic_mode()
    with pytest.raises(NotImplementedError, match=r"torch\.compile"):
        paddle.enable_static()


def test_the_version_is_that_of_the_api() -> None:
    assert paddle.__version__ == paddle.version.full_version == "3.3.1"


def test_a_device_that_is_not_there_is_refused_at_once() -> None:
    before = torch.get_default_device()
    with pytest.raises(ValueError, match=r"set_device\('gpu:99'\): there are \d+ devices of this kind here"):
        paddle.set_device("gpu:99")
    assert torch.get_default_device() == before


def test_an_absent_name_is_told_with_its_neighbour() -> None:
    with pytest.raises(
        AttributeError, match=r"paddle has no 'concatt' here; did you mean 'concat'\? `oarlock paddle check"
    ):
        paddle.concatt  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match=r"paddle has no 'xyzzy' here; `oarlock paddle check"):
        paddle.xyzzy  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
