"""Layers as containers of their parts, and what recorded calls cannot say of recurrent and attention layers."""

import copy
from collections.abc import Iterator

import pytest
import torch

import oarlock.paddle as paddle
from oarlock.paddle import nn


@pytest.fixture(autouse=True)
def _patched() -> Iterator[None]:
    paddle.patch_tensor()
    yield
    paddle.unpatch_tensor()


def test_an_assigned_tensor_is_a_buffer_that_is_not_saved() -> None:
    layer = nn.Layer()
    layer.table = torch.ones(2)
    assert [name for name, _ in layer.named_buffers()] == ["table"]
    assert list(layer.state_dict()) == []
    layer.to(dtype="bfloat16")
    assert layer.table.dtype == torch.bfloat16
    layer.later = None
    layer.later = torch.zeros(3)
    assert layer.later.shape == (3,)
    layer.table = torch.zeros(4)
    assert layer.table.shape == (4,)


def test_a_property_keeps_its_setter() -> None:
    class Doubled(nn.Layer):
        @property
        def value(self) -> torch.Tensor:
            return self.kept

        @value.setter
        def value(self, tensor: torch.Tensor) -> None:
            self.kept = 2 * tensor

    layer = Doubled()
    layer.value = torch.ones(2)
    assert layer.value.tolist() == [2, 2]


def test_parameters_have_the_default_dtype() -> None:
    paddle.set_default_dtype("float64")
    try:
        assert nn.Linear(2, 3).weight.dtype == torch.float64
    finally:
        paddle.set_default_dtype("float32")


def test_sublayers_by_name() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    assert isinstance(network.get_sublayer("1.0"), nn.ReLU)
    network.set_sublayer("1.0", nn.Tanh())
    assert isinstance(network[1][0], nn.Tanh)
    with pytest.raises(ValueError, match="backward"):
        network.backward()


def test_hooks_on_the_state_dict() -> None:
    layer = nn.Linear(2, 2)
    hook = layer.register_state_dict_hook(lambda state: state.pop("bias"))
    assert list(layer.state_dict()) == ["weight"]
    hook.remove()
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_lists_of_layers() -> None:
    layers = nn.LayerList([nn.ReLU(), nn.Tanh()])
    assert isinstance(layers.pop(0), nn.ReLU)
    assert [name for name, _ in layers.named_children()] == ["0"]


def test_a_copy_of_a_recurrent_layer_keeps_one_weight_under_two_names() -> None:
    made = copy.deepcopy(nn.GRU(3, 4, 2))
    assert made.weight_ih_l1 is made[1].cell.weight_ih
    assert len(made.parameters()) == 8


def test_cells_that_see_no_bias_do_not_train_one() -> None:
    made = nn.LSTM(3, 4, bias_ih_attr=False, bias_hh_attr=False)
    assert [p.stop_gradient for p in made.parameters()] == [False, False, True, True]
    output, (h, c) = made(torch.ones(2, 5, 3))
    assert output.shape == (2, 5, 4)
    assert h.shape == c.shape == (1, 2, 4)


def test_one_cell_step_by_step_is_the_layer() -> None:
    for layer in (nn.SimpleRNN(3, 4), nn.LSTM(3, 4), nn.GRU(3, 4)):
        inputs = torch.randn(2, 6, 3)
        lengths = torch.tensor([6, 3])
        output, _ = layer(inputs, sequence_length=lengths)
        stepped, _ = layer[0](inputs, sequence_length=lengths)
        stepped = torch.where(torch.arange(6)[None, :, None] < lengths[:, None, None], stepped, 0.0)
        torch.testing.assert_close(output, stepped)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_has_the_gradients_of_its_definition(masked: bool) -> None:
    """A row that may attend to nothing is uniform, and its gradients are those of a softmax of equal scores."""
    layer, twin = nn.MultiHeadAttention(4, 2), nn.MultiHeadAttention(4, 2, need_weights=True)
    twin.set_state_dict(layer.state_dict())
    mask = torch.tensor([[False, False, False], [True, False, True], [True, True, True]]) if masked else None
    gradients = []
    for one in (layer, twin):
        x = torch.linspace(-1, 1, 24).view(2, 3, 4).requires_grad_()
        result = one(x, attn_mask=mask)
        (result if one is layer else result[0]).square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_the_weights_of_all_clusters_are_trained() -> None:
    layer = nn.AdaptiveLogSoftmaxWithLoss(4, 10, [3, 6], div_value=2.0, head_bias=True)
    inputs, labels = torch.randn(5, 4), torch.tensor([0, 4, 7, 9, 2])
    found, loss = layer(inputs, labels)
    every = layer.log_prob(inputs)
    torch.testing.assert_close(every.exp().sum(1), torch.ones(5))
    torch.testing.assert_close(found, every[torch.arange(5), labels])
    loss.backward()
    assert all(p.grad is not None for p in layer.parameters())
    assert len(layer.parameters()) == 6
    assert torch.equal(layer.predict(inputs), every.argmax(1))


def test_gradients_stop_at_results_and_views() -> None:
    x = torch.ones(4, requires_grad=True)
    for y in (x * 2, (x * 2).reshape(2, 2)):
        y.stop_gradient = True
        assert y.stop_gradient
        assert not y.requires_grad
    used = (x * 2)[1:]
    later = (used * used).sum()
    with pytest.raises(RuntimeError, match="detach"):
        used.stop_gradient = True
    assert later.requires_grad
