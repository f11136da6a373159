"""Routing, dispatch, grouped matmul, combine: equal to the sum over experts, also where experts get no token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from oarlock import ops


def moe(x, weight, logits, num_chosen):
    routing = ops.route(logits, num_chosen, renormalise=True)
    plan = ops.plan_dispatch(routing.experts_NK, weight.shape[0])
    return ops.combine(ops.grouped_matmul(ops.dispatch(x, plan), weight, plan.counts), routing.weights_NK, plan)


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(0, 9), experts=st.integers(1, 6), data=st.data())
def test_equals_the_sum_over_experts(tokens, experts, data):
    chosen = data.draw(st.integers(1, experts))
    x = torch.randn(tokens, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(experts, 3, 4, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(tokens, experts, dtype=torch.float64, requires_grad=True)
    ours = moe(x, weight, logits, chosen)
    routing = ops.route(logits, chosen, renormalise=True)
    theirs = ops.experts_reference(x, weight, routing.experts_NK, routing.weights_NK)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad(ours, (x, weight, logits), upstream),
        torch.autograd.grad(theirs, (x, weight, logits), upstream, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_gradients_match_finite_differences():
    x, weight, logits = (torch.randn(*s, dtype=torch.float64).requires_grad_() for s in ((5, 4), (3, 2, 4), (5, 3)))
    assert gradcheck(lambda *a: moe(*a, 2), [x, weight, logits])


def test_a_bias_and_transposed_weights():
    plan = ops.plan_dispatch(torch.tensor([[1], [3], [1]]), 4)
    shapes = (3, 2), (4, 2, 5), (4, 5)
    x, weight, bias = (torch.randn(*s, dtype=torch.float64).requires_grad_() for s in shapes)

    def ours(x, weight, bias):
        return ops.grouped_matmul(ops.dispatch(x, plan), weight.mT, plan.counts, bias)

    expert = [1, 1, 3]
    expected = torch.stack([x[t] @ weight[e] + bias[e] for t, e in zip(plan.token_M.tolist(), expert, strict=True)])
    torch.testing.assert_close(ours(x, weight, bias), expected)
    assert gradcheck(ours, [x, weight, bias])


def test_an_expert_without_tokens_has_a_zero_gradient():
    weight = torch.randn(4, 3, 2, requires_grad=True)
    plan = ops.plan_dispatch(torch.tensor([[1], [3], [1]]), 4)
    assert plan.counts == (0, 2, 0, 1)
    ops.grouped_matmul(ops.dispatch(torch.randn(3, 2), plan), weight, plan.counts).sum().backward()
    assert weight.grad is not None
    assert [bool(g.any()) for g in weight.grad] == [False, True, False, True]


def test_dispatch_sorts_by_expert_and_keeps_the_token_order():
    plan = ops.plan_dispatch(torch.tensor([[2, 0], [0, 1], [2, 1]]), 3)
    assert plan.token_M.tolist() == [0, 1, 1, 2, 0, 2]
    assert plan.counts == (2, 2, 2)
    x = torch.arange(3.0).unsqueeze(1)
    assert ops.dispatch(x, plan).flatten().tolist() == [0, 1, 1, 2, 0, 2]
    assert torch.equal(ops.combine(ops.dispatch(x, plan), torch.full((3, 2), 0.5), plan), x)


def test_counts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="counts must be 2 numbers that sum to 3 rows; got 2 that sum to 4"):
        ops.grouped_matmul(torch.randn(3, 2), torch.randn(2, 5, 2), (1, 3))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_route_weights_are_scores_of_the_largest(scoring):
    logits = torch.randn(50, 8)
    routing = ops.route(logits, 3, scoring=scoring)
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    values, indices = scores.topk(3)
    assert torch.equal(routing.experts_NK, indices)
    assert torch.equal(routing.weights_NK, values)
    scaled = ops.route(logits, 3, scoring=scoring, renormalise=True, scale=2.5).weights_NK
    torch.testing.assert_close(scaled.sum(-1), torch.full((50,), 2.5))


def test_selection_bias_moves_the_choice_but_not_the_weights():
    logits = torch.randn(50, 8)
    bias = torch.zeros(8)
    bias[5] = 10.0
    routing = ops.route(logits, 2, scoring="sigmoid", selection_bias=bias)
    assert (routing.experts_NK == 5).any(dim=1).all()
    torch.testing.assert_close(routing.weights_NK, logits.sigmoid().gather(1, routing.experts_NK))


def test_bias_updates_balance_a_skewed_router():
    """With a fixed skew of the logits, sign updates bring every expert near its share and keep it there."""
    skew = torch.linspace(-2, 2, 8)
    bias = torch.zeros(8)
    loads = []
    for _ in range(400):
        routing = ops.route(torch.randn(256, 8) + skew, 2, scoring="sigmoid", selection_bias=bias)
        loads.append(routing.load().float())
        bias = ops.balanced_bias(bias, loads[-1], 0.005)
    share = 256 * 2 / 8
    assert loads[0].max() > 2 * share
    assert torch.stack(loads[-50:]).mean(0).sub(share).abs().max() < 0.1 * share


def test_balance_loss_is_k_at_balance_and_matches_transformers():
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    logits = torch.randn(64, 8)
    ours = ops.balance_loss(ops.route(logits, 2))
    torch.testing.assert_close(ours, load_balancing_loss_func((logits,), 8, 2))
    even = torch.eye(8).repeat(4, 1) * 1e-4
    torch.testing.assert_close(ops.balance_loss(ops.route(even, 1)), torch.tensor(1.0))


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="between 1 and 4 experts; got 5"):
        ops.route(torch.randn(2, 4), 5)
    with pytest.raises(ValueError, match="got 'relu'"):
        ops.route(torch.randn(2, 4), 1, scoring="relu")


@settings(max_examples=40, deadline=None)
@given(groups=st.integers(1, 4), size=st.integers(2, 4), seed=st.integers(0, 2**16), data=st.data())
def test_experts_come_from_the_best_groups(groups, size, seed, data):
    chosen_groups = data.draw(st.integers(1, groups))
    chosen = data.draw(st.integers(1, chosen_groups * size))
    generator = torch.Generator().manual_seed(seed)
    logits, bias = torch.randn(6, groups * size, generator=generator), torch.randn(groups * size, generator=generator)
    routing = ops.route(
        logits, chosen, scoring="sigmoid", selection_bias=bias, num_groups=groups, num_chosen_groups=chosen_groups
    )
    for token in range(6):
        numbers = (logits[token].sigmoid() + bias).tolist()
        of_group = [sorted(numbers[g * size : (g + 1) * size])[-2:] for g in range(groups)]
        best = sorted(range(groups), key=lambda g: sum(of_group[g]))[-chosen_groups:]
        allowed = [x for x in range(groups * size) if x // size in best]
        expected = sorted(allowed, key=lambda x: numbers[x])[-chosen:]
        assert set(routing.experts_NK[token].tolist()) == set(expected)
        torch.testing.assert_close(routing.weights_NK[token], logits[token].sigmoid()[routing.experts_NK[token]])


def test_groups_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="6 experts do not form 4 equal groups"):
        ops.route(torch.randn(2, 6), 2, num_groups=4)
    with pytest.raises(ValueError, match="3 experts of a token cannot come from 1 of 3 groups of 2"):
        ops.route(torch.randn(2, 6), 3, num_groups=3)
