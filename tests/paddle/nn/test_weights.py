"""Weights that are made of others before each forward: copies, errors."""

import copy
from typing import Any

import pytest
import torch

from oarlock.paddle import nn


@pytest.mark.parametrize("make", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_a_copy_is_the_same_function_of_parameters_of_its_own(make: Any) -> None:
    """Behind a forward, whose weight is part of a graph."""
    layer = make(nn.Sequential(nn.Linear(3, 4))[0])
    x = torch.randn(2, 3)
    layer(x)
    twin = copy.deepcopy(layer)
    layer.eval(), twin.eval()
    assert torch.equal(twin.weight, layer.weight)
    assert torch.equal(twin(x), layer(x))
    twin(x).sum().backward()
    assert all(p.grad is None for p in layer.parameters())
    assert all(p.grad is not None for p in twin.parameters())
    before = layer(x)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(layer(x), before)
    assert not torch.equal(twin(x), before)


def test_the_norm_of_a_copy_is_taken_off_the_copy_alone() -> None:
    """The keys of both state dicts."""
    layer = nn.utils.weight_norm(nn.Linear(3, 4))
    twin = nn.utils.remove_weight_norm(copy.deepcopy(layer))
    assert sorted(twin.state_dict()) == ["bias", "weight"]
    assert sorted(layer.state_dict()) == ["bias", "weight_g", "weight_v"]
    x = torch.randn(2, 3)
    torch.testing.assert_close(twin(x), layer(x))
    with torch.no_grad():
        twin.weight.zero_()
    assert torch.equal(twin(x), twin.bias.expand(2, 4))


def test_errors_of_weight_norm() -> None:
    """No such dimension; one already; none; and what failed leaves the layer as it was."""
    layer = nn.Linear(3, 4)
    with pytest.raises(ValueError, match=r"dim must be in \[-2, 2\)"):
        nn.utils.weight_norm(layer, dim=2)
    with pytest.raises(KeyError):
        nn.utils.weight_norm(layer, "scale")
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    nn.utils.weight_norm(layer)
    with pytest.raises(RuntimeError, match="two weight_norm"):
        nn.utils.weight_norm(layer)
    with pytest.raises(ValueError, match="not found"):
        nn.utils.remove_weight_norm(nn.Linear(3, 4))


def test_cached_keys_are_those_of_the_layer() -> None:
    """`compute_kv` by hand and a static cache give the attention of the whole."""
    torch.manual_seed(0)
    attention = nn.MultiHeadAttention(8, 2, kdim=3, vdim=5)
    q, k, v = torch.randn(2, 4, 8), torch.randn(2, 6, 3), torch.randn(2, 6, 5)
    cache = attention.StaticCache(*attention.compute_kv(k, v))
    assert cache.k.shape == (2, 2, 6, 4)
    torch.testing.assert_close(attention(q, None, None, None, cache)[0], attention(q, k, v))
