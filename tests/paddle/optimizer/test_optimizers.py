"""What recorded steps cannot say of optimizers: sparse rows, states of groups, closures, averages of batches."""

import pytest
import torch

import oarlock.paddle as paddle
from oarlock.paddle import nn, optimizer


def test_groups_have_moments_and_states_of_their_own() -> None:
    def run(stop: int) -> tuple[list[float], optimizer.Adam]:
        weights = [nn.Parameter(torch.ones(3), name="a"), nn.Parameter(torch.ones(3), name="b")]
        groups = [{"params": weights[:1], "beta1": 0.5}, {"params": weights[1:]}]
        made = optimizer.Adam(0.1, parameters=groups)
        for step in range(4):
            if step == stop:  # go on from the states, as after a crash
                state = made.state_dict()
                made = optimizer.Adam(0.1, parameters=groups)
                made.set_state_dict(state)
            for weight in weights:
                weight.grad = torch.full([3], float(step + 1)) * weight.detach()
            made.step()
        return [float(weight.detach()[0]) for weight in weights], made

    plain, made = run(-1)
    assert plain[0] != plain[1]
    assert run(2)[0] == pytest.approx(plain)
    state = made.state_dict()
    assert float(state["a_beta1_pow_acc_0"]) == pytest.approx(0.5**5)
    assert float(state["b_beta1_pow_acc_0"]) == pytest.approx(0.9**5)


@pytest.mark.parametrize("lazy", [False, True])
def test_rows_of_sparse_gradients(lazy: bool) -> None:
    """Lazily only rows with gradients move; else the others go on by their moments, as with dense gradients."""
    table = torch.arange(10.0).view(5, 2)
    made = [nn.Embedding(5, 2, sparse=sparse, _weight=table) for sparse in (True, False)]
    optimizers = [optimizer.Adam(0.1, parameters=each.parameters(), lazy_mode=lazy) for each in made]
    for rows in ([[1, 2], [1, 4]], [[2, 2], [0, 2]]):
        for layer, steps in zip(made, optimizers, strict=True):
            layer(torch.tensor(rows)).square().sum().backward()
            steps.step()
            steps.clear_grad()
    sparse, dense = (each.weight for each in made)
    assert torch.equal(sparse[3], table[3])
    assert torch.equal(sparse[1], dense[1]) is not lazy
    torch.testing.assert_close(sparse[0], dense[0])


def test_clips_and_regularisers_take_sparse_gradients() -> None:
    layer = nn.Embedding(5, 2, sparse=True)
    made = optimizer.Momentum(0.1, parameters=layer.parameters(), weight_decay=0.1, grad_clip=nn.ClipGradByNorm(0.1))
    layer(torch.tensor([1])).sum().backward()
    before = layer.weight.detach().clone()
    made.step()
    expected = before - 0.1 * (0.1 * before)
    expected[1] -= 0.1 * 0.1 / 2**0.5
    torch.testing.assert_close(layer.weight.detach(), expected)


def test_radam_is_its_formula() -> None:
    """Against the closed form in float64; the running sum in float32 loses a few digits to cancellation."""
    weight, value = nn.Parameter(torch.tensor([1.0])), 1.0
    made = optimizer.RAdam(0.05, parameters=[weight])
    m = v = 0.0
    for t in range(1, 30):
        weight.grad = weight.detach().clone()
        made.step()
        m, v = 0.9 * m + 0.1 * value, 0.999 * v + 0.001 * value * value
        most = 2 / (1 - 0.999) - 1
        length = most - 2 * t * 0.999**t / (1 - 0.999**t)
        move = m / (1 - 0.9**t)
        if length > 5:
            ratio = ((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)) ** 0.5
            move *= ratio * (1 - 0.999**t) ** 0.5 / (v**0.5 + 1e-8)
        value -= 0.05 * move
        assert float(weight.detach()) == pytest.approx(value, rel=2e-3)


def test_lbfgs_minimises_and_goes_on_from_its_state() -> None:
    weight = nn.Parameter(torch.tensor([3.0, -2.0]))
    target = torch.tensor([1.0, 2.0])

    def closure() -> torch.Tensor:
        made.clear_grad()
        loss = ((weight - target) ** 2 * torch.tensor([1.0, 10.0])).sum()
        loss.backward()
        return loss

    made = optimizer.LBFGS(parameters=[weight], line_search_fn="strong_wolfe", max_iter=3)
    first = float(made.step(closure).detach())
    state = made.state_dict()
    assert set(state["state"]) >= {"d", "alpha", "old_yk", "old_sk", "ro", "H_diag"}
    made = optimizer.LBFGS(parameters=[weight], line_search_fn="strong_wolfe")
    made.set_state_dict(state)
    made.step(closure)
    torch.testing.assert_close(weight.detach(), target)
    assert first == pytest.approx(164.0)
    with pytest.raises(TypeError, match="closure"):
        made.step()


def test_bad_values_are_refused() -> None:
    parameters = nn.Linear(2, 2).parameters()
    with pytest.raises(ValueError, match="batch_num"):
        optimizer.ASGD(0.1, 0, parameters=parameters)
    with pytest.raises(ValueError, match="beta1"):
        optimizer.NAdam(0.1, beta1=1.0, parameters=parameters)
    with pytest.raises(ValueError, match="etas"):
        optimizer.Rprop(0.1, etas=(1.5, 1.2), parameters=parameters)
    with pytest.raises(ValueError, match="learning_rate_range"):
        optimizer.Rprop(0.1, (0.2, 1.0), parameters=parameters)


def test_a_norm_that_is_not_finite_is_refused_where_asked() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([float("inf"), 1.0])
    with pytest.raises(RuntimeError, match="inf"):
        paddle.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)
    assert float(paddle.nn.utils.clip_grad_norm_([nn.Parameter(torch.ones(2))], 1.0)) == 0.0
