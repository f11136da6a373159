"""linear_cross_entropy equals the unfused loss, skips ignored tokens and never holds all logits."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.utils.flop_counter import FlopCounterMode

from oarlock import ops

REDUCTIONS = ["sum", "mean", "none"]


def problem(num_tokens=13, width=6, vocabulary=11, dtype=torch.float64, ignored=(2, 3, 12)):
    hidden = torch.randn(num_tokens, width, dtype=dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, dtype=dtype).requires_grad_()
    targets = torch.randint(0, vocabulary, (num_tokens,))
    targets[list(ignored)] = -100
    return hidden, weight, targets


@pytest.mark.parametrize("ignored", [(), (2, 3, 12)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradients_match_finite_differences(reduction, ignored):
    hidden, weight, targets = problem(ignored=ignored)
    assert gradcheck(
        lambda h, w: ops.linear_cross_entropy(h, w, targets, reduction=reduction, chunk=4), [hidden, weight]
    )


@pytest.mark.parametrize("chunk", [1, 4, 13, 100])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_equals_the_unfused_loss_for_any_chunk(reduction, chunk):
    hidden, weight, targets = problem()
    ours = ops.linear_cross_entropy(hidden, weight, targets, reduction=reduction, chunk=chunk)
    theirs = ops.linear_cross_entropy_reference(hidden, weight, targets, reduction=reduction)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad(ours, (hidden, weight), upstream),
        torch.autograd.grad(theirs, (hidden, weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_one_of_the_gradients_alone_and_none_at_all(reduction):
    hidden, weight, targets = problem()
    expected = torch.autograd.grad(
        ops.linear_cross_entropy_reference(hidden, weight, targets, reduction="sum"), (hidden, weight)
    )
    only_hidden = ops.linear_cross_entropy(hidden, weight.detach(), targets, reduction=reduction).sum()
    torch.testing.assert_close(torch.autograd.grad(only_hidden, hidden)[0], expected[0])
    only_weight = ops.linear_cross_entropy(hidden.detach(), weight, targets, reduction=reduction).sum()
    torch.testing.assert_close(torch.autograd.grad(only_weight, weight)[0], expected[1])
    assert not ops.linear_cross_entropy(hidden.detach(), weight.detach(), targets).requires_grad


def test_evaluation_runs_one_matmul_per_chunk_not_three():
    hidden, weight, targets = problem(dtype=torch.float32, ignored=())

    def matmuls() -> int:
        with FlopCounterMode(display=False) as counter:
            ops.linear_cross_entropy(hidden, weight, targets, chunk=4)
        return counter.get_total_flops()

    training = matmuls()
    with torch.no_grad():
        assert 0 < matmuls() < 0.6 * training


def test_a_token_with_zero_or_negative_upstream_gradient():
    hidden, weight, targets = problem(ignored=())
    upstream = torch.linspace(-1, 1, 13, dtype=torch.float64)  # contains an exact 0
    ours = torch.autograd.grad(
        ops.linear_cross_entropy(hidden, weight, targets, reduction="none", chunk=4), (hidden, weight), upstream
    )
    theirs = torch.autograd.grad(
        ops.linear_cross_entropy_reference(hidden, weight, targets, reduction="none"), (hidden, weight), upstream
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_inputs_accumulate_in_float32(dtype):
    """1000 tokens: a bfloat16 accumulator would stall; ours equals the float32 loss of the same rounded inputs."""
    hidden, weight, targets = problem(1000, 16, 50, dtype, ignored=())
    loss = ops.linear_cross_entropy(hidden, weight, targets, reduction="sum", chunk=64)
    exact_hidden, exact_weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    exact = ops.linear_cross_entropy_reference(exact_hidden, exact_weight, targets, reduction="sum")
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
    dhidden, dweight = torch.autograd.grad(loss, (hidden, weight))
    for ours, theirs in zip((dhidden, dweight), torch.autograd.grad(exact, (exact_hidden, exact_weight)), strict=True):
        assert ours.dtype == dtype
        step = torch.finfo(dtype).eps  # one rounding, at the end
        torch.testing.assert_close(ours.double(), theirs, rtol=step, atol=step * 1e-2)


def test_under_autocast_the_loss_stays_float32():
    hidden, weight, targets = problem(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = ops.linear_cross_entropy(hidden, weight, targets)
    rounded = ops.linear_cross_entropy_reference(hidden.bfloat16().float(), weight.bfloat16().float(), targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, rounded)  # inputs are rounded, nothing after them
    loss.backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.float32


def test_extreme_logits_stay_finite():
    hidden = torch.tensor([[1e4, 0.0], [-1e4, 0.0]], requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    loss = ops.linear_cross_entropy(hidden, weight, torch.tensor([0, 0]), reduction="none")
    torch.testing.assert_close(loss, torch.tensor([0.0, 2e4]))
    loss.sum().backward()
    assert torch.isfinite(hidden.grad).all()
    assert torch.isfinite(weight.grad).all()


def test_all_tokens_ignored():
    hidden, weight, targets = problem(ignored=range(13))
    assert ops.linear_cross_entropy(hidden, weight, targets, reduction="mean").isnan()
    loss = ops.linear_cross_entropy(hidden, weight, targets, reduction="sum")
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_wrong_arguments_are_named():
    hidden, weight, targets = problem()
    with pytest.raises(ValueError, match="target 11 is outside the vocabulary"):
        ops.linear_cross_entropy(hidden, weight, torch.full_like(targets, 11))
    with pytest.raises(ValueError, match="got 'total'"):
        ops.linear_cross_entropy(hidden, weight, targets, reduction="total")
    with pytest.raises(ValueError, match=r"got \(13, 6\) and \(11, 5\)"):
        ops.linear_cross_entropy(hidden, weight[:, :5], targets)
    with pytest.raises(ValueError, match=r"targets must be int64 \[13\]"):
        ops.linear_cross_entropy(hidden, weight, targets[:5])
    with pytest.raises(ValueError, match="cast one of them"):
        ops.linear_cross_entropy(hidden.float(), weight, targets)
