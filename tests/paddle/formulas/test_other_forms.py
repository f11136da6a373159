"""Forms of calls that the industry has and Paddle 3.3.1 has not: the same results as the forms that it has."""

from typing import Any

import pytest
import torch

import oarlock.paddle as paddle
from oarlock.paddle import nn
from oarlock.paddle.nn import functional

X = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
ROWS, KERNEL = torch.rand(1, 2, 6), torch.rand(2, 2, 3)
PLANE, KERNEL2 = torch.rand(1, 4, 6, 6), torch.rand(4, 2, 3, 3)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize(
    ("form", "known"),
    [
        (lambda: paddle.heaviside(input=X, values=X), lambda: paddle.heaviside(X, X)),
        (lambda: paddle.broadcast_tensors(X, X[0]), lambda: paddle.broadcast_tensors([X, X[0]])),
        (lambda: paddle.cartesian_prod(X[0], X[1]), lambda: paddle.cartesian_prod([X[0], X[1]])),
        (lambda: paddle.renorm(X, p=1.0, dim=1, maxnorm=0.5), lambda: paddle.renorm(X, 1.0, 1, 0.5)),
        (lambda: paddle.iinfo(type="int32").max, lambda: paddle.iinfo("int32").max),
        (lambda: paddle.finfo(type="float32").max, lambda: paddle.finfo("float32").max),
        (lambda: paddle.randint(10, [3, 4]).shape, lambda: paddle.randint(0, 10, [3, 4]).shape),
        (lambda: paddle.kthvalue(X, 2, 1).values, lambda: paddle.kthvalue(X, 2, 1)[0]),
        (lambda: paddle.cummax(X, 1).indices, lambda: paddle.cummax(X, 1)[1]),
        (lambda: paddle.cummin(X, 1).values, lambda: paddle.cummin(X, 1)[0]),
        (lambda: paddle.mode(X, 1).indices, lambda: paddle.mode(X, 1)[1]),
        (
            lambda: functional.conv_transpose1d(ROWS, KERNEL, None, 2),
            lambda: functional.conv1d_transpose(ROWS, KERNEL, stride=2),
        ),
        (
            lambda: functional.conv_transpose2d(PLANE, KERNEL2, None, 1, 0, 0, 2, 1),
            lambda: functional.conv2d_transpose(PLANE, KERNEL2, groups=2),
        ),
    ],
)
def test_a_form_of_the_industry(form: Any, known: Any) -> None:
    assert same(form(), known())


def test_conditions_are_asserted() -> None:
    check: Any = vars(paddle)["_assert"]
    check(condition=torch.tensor([True]), message="no")
    with pytest.raises(AssertionError, match=r"^no$"):
        check(torch.tensor([False]), "no")


def test_layers_move_like_a_tensor_and_copy() -> None:
    like = torch.ones(1, dtype=torch.float64)
    for layer in (nn.Linear(2, 2).to(like), nn.Linear(2, 2).to(tensor=like), nn.Linear(2, 2).to(other=like)):
        assert layer.weight.dtype == torch.float64
    layer: Any = nn.Linear(2, 2)
    address, value = layer.weight.data_ptr(), layer.weight.detach().clone()
    assert layer.to("float32").weight.data_ptr() == address
    assert layer.to("float32", copy=True).weight.data_ptr() != address
    assert torch.equal(layer.weight, value)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolutions_without_a_bias(dims: int) -> None:
    assert getattr(nn, f"Conv{dims}DTranspose")(2, 2, 3, bias=False).bias is None
    assert getattr(nn, f"Conv{dims}DTranspose")(2, 2, 3).bias is not None
