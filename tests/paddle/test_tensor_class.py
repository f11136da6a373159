"""`paddle.Tensor` and `paddle.to_tensor` in all their forms."""

import pickle

import numpy as np
import pytest
import torch

import oarlock.paddle as paddle

X = torch.arange(6.0).reshape(2, 3)


def test_it_is_the_class_of_every_torch_tensor() -> None:
    assert isinstance(X, paddle.Tensor)
    assert isinstance(torch.nn.Parameter(X), paddle.Tensor)
    assert issubclass(torch.Tensor, paddle.Tensor)
    assert not isinstance([1], paddle.Tensor)
    assert isinstance(None, paddle.Tensor | None)
    assert {paddle.Tensor: 1}[type(X)] == 1, "it equals the class that type() gives"
    assert type([]) not in {paddle.Tensor: 1}
    assert pickle.loads(pickle.dumps(paddle.Tensor)) is paddle.Tensor


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: paddle.Tensor(2, 3), torch.zeros(2, 3)),
        (lambda: paddle.Tensor(3), torch.zeros(3)),
        (lambda: paddle.Tensor(), torch.zeros(0)),
        (lambda: paddle.Tensor([1, 2]), torch.tensor([1.0, 2.0])),
        (lambda: paddle.Tensor((2, 3)), torch.tensor([2.0, 3.0])),
        (lambda: paddle.Tensor([1, 2], dtype="int32"), torch.tensor([1, 2], dtype=torch.int32)),
        (lambda: paddle.Tensor(np.ones(2)), torch.ones(2, dtype=torch.float64)),
        (lambda: paddle.Tensor(value=np.ones(2, "int32")), torch.ones(2, dtype=torch.int32)),
        (lambda: paddle.Tensor(data=[1.0], place=paddle.CPUPlace()), torch.ones(1)),
        (lambda: paddle.Tensor(np.ones(1), paddle.CPUPlace(), True, True, "n", True), torch.ones(1).double()),
        (lambda: paddle.Tensor(X), X),
        (lambda: paddle.to_tensor([np.float64(3), 1]), torch.tensor([3.0, 1.0])),
        (lambda: paddle.to_tensor([np.int32(3)]), torch.tensor([3])),
        (lambda: paddle.to_tensor(np.int32(3)), torch.tensor(3, dtype=torch.int32)),
        (lambda: paddle.to_tensor([[torch.tensor(1), 2], [3, torch.tensor(4.5)]]), torch.tensor([[1, 2], [3, 4.5]])),
        (lambda: paddle.to_tensor(np.array([16256], "uint16")), torch.ones(1, dtype=torch.bfloat16)),
        (lambda: paddle.to_tensor([1 + 2j]), torch.tensor([1 + 2j])),
        (lambda: paddle.to_tensor(True), torch.tensor(True)),
        (lambda: paddle.to_tensor([[]]), torch.zeros(1, 0)),
        (lambda: paddle.tensor([1, 2], dtype="float32", device="cpu", pin_memory=False), torch.tensor([1.0, 2.0])),
        (lambda: paddle.to_tensor(data=[1.5], dtype=np.float16, place="cpu"), torch.tensor([1.5]).half()),
    ],
)
def test_what_it_makes(made: object, expected: torch.Tensor) -> None:
    found = made()
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_gradients_from_the_start() -> None:
    assert paddle.Tensor([1.0], stop_gradient=False).requires_grad
    assert paddle.tensor([1.0], requires_grad=True).requires_grad
    assert not paddle.to_tensor(torch.ones(1, requires_grad=True)).requires_grad


@pytest.mark.parametrize("data", [None, "abc", object()])
def test_what_is_no_data_raises(data: object) -> None:
    with pytest.raises(TypeError, match="takes numbers, nested lists"):
        paddle.to_tensor(data)


def test_unbound_methods_mean_what_paddle_means() -> None:
    assert torch.equal(paddle.Tensor.max(X, 1), X.amax(1))
    assert torch.equal(paddle.Tensor.transpose(X, [1, 0]), X.t())
    assert len(paddle.Tensor.split(X, 3, axis=1)) == 3
    assert torch.equal(paddle.Tensor.add(X, X), 2 * X)
    assert paddle.Tensor.equal(X, X).shape == X.shape
    assert paddle.Tensor.astype(X, "int32").dtype == torch.int32
    assert paddle.Tensor.item(X, 4) == 4.0
    assert paddle.Tensor.is_contiguous(X), "what Paddle does not define is torch's"


@pytest.mark.parametrize(
    ("name", "y", "expected"),
    [
        ("__add__", 1, X + 1),
        ("__radd__", 1, X + 1),
        ("__sub__", True, X - 1),
        ("__rsub__", True, 1 - X),
        ("__floordiv__", 2, X // 2),
        ("__rfloordiv__", 2.5, 2.5 // X),
        ("__mod__", 2, X % 2),
        ("__pow__", 2, X**2),
        ("__rpow__", 2, 2**X),
        ("__truediv__", 2, X / 2),
        ("__rtruediv__", 2, 2 / X),
        ("__matmul__", X.t(), X @ X.t()),
        ("__eq__", X, X == X),
        ("__lt__", 2, X < 2),
    ],
)
def test_operators(name: str, y: object, expected: torch.Tensor) -> None:
    found = getattr(paddle.Tensor, name)(X, y)
    assert torch.equal(found, expected)


def test_a_subclass_is_one_of_torchs_and_a_new_method_serves_all() -> None:
    class Mine(paddle.Tensor):
        def twice(self) -> torch.Tensor:
            return self + self

    made = X.as_subclass(Mine)
    assert isinstance(made, torch.Tensor)
    assert torch.equal(made.twice().as_subclass(torch.Tensor), 2 * X)
    paddle.Tensor.thrice = lambda self: 3 * self
    try:
        assert torch.equal(X.thrice(), 3 * X)
    finally:
        del paddle.Tensor.thrice
