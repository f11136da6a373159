"""`paddle.amp.auto_cast` on a CPU, where real Paddle leaves it off: by the dtypes of results."""

import pytest
import torch
from torch import Tensor

import oarlock.paddle as paddle
from oarlock.paddle import nn


def dtypes(**options: object) -> list[torch.dtype]:
    """Of a product, a layer, a sum of two tensors, and a softmax."""
    x, layer = torch.ones(2, 2), nn.Linear(2, 2)
    with paddle.amp.auto_cast(dtype="bfloat16", **options):
        made: list[Tensor] = [paddle.matmul(x, x), layer(x), x + x, nn.functional.softmax(x)]
    return [each.dtype for each in made]


HALF, FULL = torch.bfloat16, torch.float32


def test_levels() -> None:
    assert dtypes() == dtypes(level="O2") == [HALF, HALF, FULL, FULL]
    assert dtypes(level="O0") == dtypes(enable=False) == [FULL] * 4


def test_custom_lists_come_first() -> None:
    assert dtypes(custom_black_list={"matmul_v2"}) == [FULL] * 4
    assert dtypes(custom_white_list=["elementwise_add"]) == [HALF, HALF, HALF, FULL]
    assert dtypes(custom_white_list={"softmax"}, custom_black_list={"linear"}) == [HALF, FULL, FULL, HALF]
    assert dtypes(custom_black_list={"matmul"}, enable=False) == [FULL] * 4
    with pytest.raises(ValueError, match="softmax: on the white list and on the black list"):
        dtypes(custom_white_list={"softmax"}, custom_black_list={"softmax"})
    assert (torch.ones(2) + torch.ones(2)).dtype == FULL  # and nothing is left behind


def test_black_operations_take_what_was_cast_before() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    with paddle.amp.auto_cast(dtype="bfloat16", custom_black_list={"elementwise_mul"}):
        y = (x @ x) * 2
    assert y.dtype == FULL
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == FULL


def test_decorated_models_and_their_optimizers() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm(3))
    optimizer = paddle.optimizer.AdamW(0.1, parameters=model.parameters())
    model, optimizer = paddle.amp.decorate(model, optimizer, level="O2", dtype="bfloat16")
    assert [p.dtype for p in model[0].parameters()] == [HALF, HALF]
    assert {p.dtype for p in model[1].parameters()} == {FULL}
    model[0](torch.ones(1, 3, dtype=HALF)).sum().backward()
    optimizer.step()
    assert {each.dtype for each in optimizer.state_dict()["master_weights"].values()} == {FULL}
