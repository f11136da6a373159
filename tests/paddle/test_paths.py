"""Names under the paths that Paddle's own files have, and under those of torch."""

import importlib
import inspect

import pytest
import torch

import oarlock.paddle as paddle
from oarlock.paddle.program import as_paddle


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("tensor", "add"),
        ("tensor.math", "multiply"),
        ("tensor.creation", "ones"),
        ("nn.layer", "Layer"),
        ("nn.layer.conv", "Conv2D"),
        ("nn.layer.common", "Linear"),
        ("nn.layer.norm", "LocalResponseNorm"),
        ("nn.layer.transformer", "MultiHeadAttention"),
        ("nn.functional.common", "linear"),
        ("nn.functional.loss", "cross_entropy"),
        ("nn.functional.activation", "relu"),
        ("nn.functional.flash_attention", "flashmask_attention"),
        ("nn.initializer.normal", "Normal"),
        ("nn.modules.container", "ModuleList"),
        ("nn.attention", "sdpa_kernel"),
        ("optimizer.adamw", "AdamW"),
        ("io.dataloader", "Dataset"),
        ("io.dataloader.sampler", "RandomSampler"),
        ("framework", "core"),
        ("base.core", "is_compiled_with_cuda"),
        ("functional", "split"),
        ("library", "custom_op"),
        ("cuda", "manual_seed_all"),
        ("device", "get_device_module"),
        ("autograd", "no_grad"),
    ],
)
def test_a_program_imports_it(path: str, name: str) -> None:
    with as_paddle():
        assert hasattr(importlib.import_module(f"paddle.{path}"), name)
        assert importlib.import_module(f"paddle.{path}") is importlib.import_module(f"oarlock.paddle.{path}")


def test_paths_lead_to_the_same_functions() -> None:
    assert paddle.tensor.math.add is paddle.add  # pyright: ignore[reportFunctionMemberAccess]
    assert paddle.nn.layer.conv.Conv2D is paddle.nn.Conv2D  # pyright: ignore[reportAttributeAccessIssue]
    assert paddle.nn.HuberLoss is paddle.nn.SmoothL1Loss  # pyright: ignore[reportAttributeAccessIssue]
    assert paddle.autograd.grad is paddle.grad
    with pytest.raises(AttributeError, match="has no 'nothing'"):
        paddle.nn.layer.conv.nothing  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_tensor_is_a_function_and_a_namespace() -> None:
    assert paddle.tensor([1, 2], dtype="int32").dtype == torch.int32
    assert next(iter(inspect.signature(paddle.tensor).parameters)) == "data"
    with as_paddle():
        importlib.import_module("paddle.tensor.math")
        assert paddle.tensor([1.0]).item() == 1.0


def test_devices_on_a_machine_without_any() -> None:
    """As real Paddle 3.3.1 built for CPUs answers, where it answers."""
    if torch.accelerator.is_available():
        pytest.skip("has a device")
    assert not paddle.cuda.is_available()
    assert not paddle.cuda.is_initialized()
    assert not paddle.device.is_current_stream_capturing()
    assert (paddle.cuda.device_count(), paddle.device.current_device()) == (0, 0)
    assert paddle.get_default_device() == "cpu"
    with paddle.device.device("cpu"), paddle.device.stream(None):
        assert paddle.ones([1]).device.type == "cpu"
    for refused in ("get_device_name", "get_device_capability", "mem_get_info", "current_stream", "ipc_collect"):
        with pytest.raises(ValueError, match="no device but the CPU"):
            getattr(paddle.cuda, refused)()


def test_seeds() -> None:
    drawn = []
    for seed in (paddle.seed, paddle.device.manual_seed, paddle.cuda.manual_seed, paddle.cuda.manual_seed_all):
        seed(7)
        drawn.append(paddle.rand([3]).tolist())
    assert drawn == [drawn[0]] * 4


def test_autocast_with_the_arguments_of_torch() -> None:
    a = torch.ones(2, 2)
    with paddle.autocast("cuda", dtype="bfloat16"):
        assert (a @ a).dtype == torch.bfloat16
    with paddle.amp.autocast("cpu", dtype="bfloat16", enabled=False):
        assert (a @ a).dtype == torch.float32


def test_the_core() -> None:
    core = paddle.base.core
    assert core.VarDesc.VarType.FP32 is torch.float32
    assert (torch.float16, torch.bfloat16) == (core.DataType.FLOAT16, core.DataType.BFLOAT16)
    assert isinstance(paddle.ones([1]), core.eager.Tensor)
    assert not isinstance(paddle.ones([1]), paddle.base.framework.Variable)
