"""Products with derivatives against explicit matrices."""

import torch

import oarlock.paddle as paddle
from oarlock.paddle.incubate.autograd import Hessian, Jacobian, jvp, vjp


def mixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.unsqueeze(0) * y.unsqueeze(1)).sum(1) ** 2


def explicit(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    both = torch.autograd.functional.jacobian(mixed, (x, y))
    return torch.cat(list(both), -1)


def test_products_are_those_with_the_matrix() -> None:
    x, y, v = paddle.randn([3]), paddle.randn([2]), paddle.randn([2])
    matrix = explicit(x, y)
    value, (gx, gy) = vjp(mixed, (x, y), v)
    torch.testing.assert_close(value, mixed(x, y))
    torch.testing.assert_close(torch.cat([gx, gy]), v @ matrix)
    directions = (paddle.randn([3]), paddle.randn([2]))
    _, along = jvp(mixed, (x, y), directions)
    torch.testing.assert_close(along, matrix @ torch.cat(directions))


def test_matrices() -> None:
    x, y = paddle.randn([3]), paddle.randn([2])
    matrix = Jacobian(mixed, (x, y))
    assert matrix.shape == [2, 5]
    torch.testing.assert_close(matrix[:], explicit(x, y))
    torch.testing.assert_close(matrix[1, :2], explicit(x, y)[1, :2])
    second = Hessian(lambda a: (a**3).sum(), x)
    torch.testing.assert_close(second[:], torch.diag(6 * x))


def test_of_each_sample() -> None:
    x = paddle.randn([4, 3])
    matrix = Jacobian(lambda a: (a**2).sum(1, keepdim=True), x, is_batched=True)
    torch.testing.assert_close(matrix[:], (2 * x).unsqueeze(1))
    second = Hessian(lambda a: (a**3).sum(1, keepdim=True), x, is_batched=True)
    torch.testing.assert_close(second[:], torch.diag_embed(6 * x))
