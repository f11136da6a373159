"""`paddle.amp.GradScaler` against the rule of its documentation: real Paddle disables it on a CPU."""

import pytest
import torch

import oarlock.paddle as paddle
from oarlock.paddle import nn


def linear() -> nn.Linear:
    layer = nn.Linear(3, 1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(0.5)
    return layer


def test_the_scale_follows_what_happens() -> None:
    """Doubled after two good steps in a row, halved by each infinity, whose step is left out."""
    layer = linear()
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0, incr_every_n_steps=2, decr_every_n_nan_or_inf=1)
    scales, moved = [], []
    for is_broken in (False, False, True, False, True, False, False):
        before = layer.weight.detach().clone()
        loss = layer(torch.ones(2, 3)).mean() * (float("inf") if is_broken else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        scales.append(scaler.state_dict()["scale"].item())
        moved.append(not torch.equal(before, layer.weight))
    assert scales == [1024, 2048, 1024, 1024, 512, 512, 1024]
    assert moved == [True, True, False, True, False, True, True]


def test_a_step_is_that_of_the_unscaled_loss() -> None:
    weights = []
    for enabled in (True, False):
        layer = linear()
        optimizer = paddle.optimizer.SGD(1.0, parameters=layer.parameters(), grad_clip=nn.ClipGradByGlobalNorm(0.01))
        scaler = paddle.amp.GradScaler(enabled, init_loss_scaling=64.0)
        scaler.scale(layer(torch.ones(2, 3)).sum()).backward()
        scaler.unscale_(optimizer)  # before the clipping, which so sees gradients of the loss itself
        scaler.step(optimizer)
        scaler.update()
        weights.append(layer.weight.detach())
    torch.testing.assert_close(*weights)


def test_unscaling_twice_is_refused() -> None:
    layer = linear()
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    scaler = paddle.amp.GradScaler()
    scaler.scale(layer(torch.ones(1, 3)).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)


def test_it_goes_on_where_it_stood() -> None:
    one = paddle.amp.GradScaler(init_loss_scaling=8.0, incr_ratio=4.0, decr_ratio=0.25)
    one.set_incr_every_n_steps(7)
    one.set_decr_every_n_nan_or_inf(3)
    two = paddle.amp.GradScaler()
    two.load_state_dict(one.state_dict())
    assert two.state_dict() == one.state_dict()
    assert (two.get_incr_ratio(), two.get_decr_ratio()) == (4.0, 0.25)
    assert (two.get_incr_every_n_steps(), two.get_decr_every_n_nan_or_inf()) == (7, 3)
    with pytest.raises(RuntimeError, match="empty"):
        two.load_state_dict({})
