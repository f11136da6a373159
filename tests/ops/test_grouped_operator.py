"""The grouped matmul as one operator of a graph: torch's own checks, and the sum over experts written densely."""

import pytest
import torch
from torch import Tensor

from oarlock.ops.dispatch import _backward_operator, grouped_matmul_operator

CASES = {
    "an empty expert": (6, (2, 0, 4), torch.float32, True, False),
    "no bias": (6, (2, 0, 4), torch.float32, False, False),
    "no tokens": (0, (0, 0, 0), torch.float32, True, False),
    "strided": (6, (1, 5, 0), torch.float32, True, True),
    "double": (6, (3, 3, 0), torch.float64, True, False),
    "bfloat16": (6, (2, 0, 4), torch.bfloat16, True, False),
}


def inputs(name: str) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    rows, counts, dtype, with_bias, strided = CASES[name]
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    x_ME = normal(4, rows).T if strided else normal(rows, 4)
    weight_XFE = normal(3, 4, 5).mT if strided else normal(3, 5, 4)
    bias_XF = normal(3, 5).requires_grad_() if with_bias else None
    return x_ME.requires_grad_(), weight_XFE.requires_grad_(), bias_XF, torch.tensor(counts)


def dense(x_ME: Tensor, weight_XFE: Tensor, bias_XF: Tensor | None, counts_X: Tensor) -> Tensor:
    expert_M = torch.repeat_interleave(torch.arange(len(counts_X)), counts_X)
    y_MF = torch.einsum("me,mfe->mf", x_ME, weight_XFE[expert_M])
    return y_MF if bias_XF is None else y_MF + bias_XF[expert_M]


@pytest.mark.filterwarnings("ignore")  # of tracing
@pytest.mark.parametrize("name", CASES)
def test_torch_finds_no_fault_with_the_operators(name: str) -> None:
    given = inputs(name)
    torch.library.opcheck(grouped_matmul_operator, given)
    x, weight, _, counts = (None if each is None else each.detach().contiguous() for each in given)
    assert x is not None
    torch.library.opcheck(_backward_operator, (torch.ones(len(x), 5, dtype=x.dtype), x, weight, counts, True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_dense_sum(name: str, compiled: bool) -> None:
    operator = lambda *given: grouped_matmul_operator(*given)  # noqa: E731
    if compiled:
        operator = torch.compile(operator, backend="aot_eager", fullgraph=True)
    given = inputs(name)
    leaves = [each for each in given[:3] if each is not None]
    found, wanted = operator(*given), dense(*given)
    # Sums of at most six products; in bfloat16 the dense form rounds products and sums otherwise (2^-8 each).
    tolerance = {"atol": 8e-2, "rtol": 2e-2} if name == "bfloat16" else {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(found, wanted, **tolerance)
    gradient = torch.linspace(-1, 1, found.numel()).reshape(found.shape).to(found.dtype)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, gradient), torch.autograd.grad(wanted, leaves, gradient), **tolerance
    )


def test_a_second_derivative_is_refused_in_words() -> None:
    x, *others = inputs("double")
    (gradient,) = torch.autograd.grad((grouped_matmul_operator(x, *others) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"grouped_matmul_backward.* no autograd formula"):
        gradient.sum().backward()
