"""Recurrent networks: the kernels against the cells along time, state dicts that come back, training, errors."""

from typing import Any

import pytest
import torch
from torch import Tensor

import oarlock.paddle as paddle
from oarlock.paddle import nn


def by_cells(network: Any, x_NTC: Tensor, states: Any, lengths: list[int]) -> tuple[Tensor, list[list[Tensor]]]:
    """Sequence by sequence, step by step, in the definition's order; the oracle of lengths."""
    two = network.num_directions
    outputs, last = [], []
    for n, length in enumerate(lengths):
        x, found = x_NTC[n : n + 1], []
        for number, layer in enumerate(network):
            sides = []
            for side, cell in enumerate(layer.children()):
                own = [state[number * two + side, n : n + 1] for state in states]
                h: Any = tuple(own) if len(own) == 2 else own[0]
                steps: dict[int, Tensor] = {}
                for t in reversed(range(length)) if side else range(length):
                    steps[t], h = cell(x[:, t], h)
                rest = x.new_zeros(1, network.hidden_size)
                sides.append(torch.stack([steps.get(t, rest) for t in range(x.shape[1])], 1))
                found.append(list(h) if isinstance(h, tuple) else [h])
            x = torch.cat(sides, -1)
        outputs.append(x)
        last.append(found)
    joined = [
        [torch.cat([last[n][k][part] for n in range(len(lengths))]) for k in range(len(last[0]))]
        for part in range(len(states))
    ]
    return torch.cat(outputs), joined


@pytest.mark.parametrize("lengths", [[4, 4, 4], [2, 4, 1], [0, 3, 4]])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("direction", ["forward", "bidirect"])
@pytest.mark.parametrize("kind", [nn.SimpleRNN, nn.LSTM, nn.GRU])
def test_lengths_and_states_as_by_cells(kind: Any, direction: str, layers: int, lengths: list[int]) -> None:
    """float64: outputs, last states and all gradients, those of the initial states included."""
    torch.manual_seed(0)
    network = kind(3, 5, layers, direction).to(dtype="float64")
    x = torch.randn(3, 4, 3, dtype=torch.float64, requires_grad=True)
    states = [
        torch.randn(layers * network.num_directions, 3, 5, dtype=torch.float64, requires_grad=True)
        for _ in range(network.state_components)
    ]
    given = tuple(states) if len(states) == 2 else states[0]
    outputs, last = network(x, given, torch.tensor(lengths))
    last = last if isinstance(last, tuple) else (last,)
    expected, expected_last = by_cells(network, x, states, lengths)
    torch.testing.assert_close(outputs, expected)
    for mine, theirs in zip(last, expected_last, strict=True):
        torch.testing.assert_close(mine, torch.stack(theirs))
    wanted = [x, *states, *network.parameters()]
    loss = outputs.square().sum() + sum(part.sin().sum() for part in last)
    also = expected.square().sum() + sum(torch.stack(part).sin().sum() for part in expected_last)
    for mine, theirs in zip(torch.autograd.grad(loss, wanted), torch.autograd.grad(also, wanted), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", [nn.SimpleRNN, nn.LSTM, nn.GRU])
def test_a_network_is_torchs(kind: Any) -> None:
    """The same weights in torch's module give the same outputs."""
    mine = kind(3, 5, 2, "bidirect")
    theirs: Any = {"SimpleRNN": torch.nn.RNN, "LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}[kind.__name__]
    theirs = theirs(3, 5, 2, bidirectional=True, batch_first=True)
    theirs.load_state_dict({name: value for name, value in mine.state_dict().items() if "cell" not in name})
    x = torch.randn(2, 6, 3)
    torch.testing.assert_close(mine(x)[0], theirs(x)[0])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_without_biases_as_torch_without_biases(kind: str) -> None:
    """Paddle's kernel ends the process there."""
    mine = getattr(nn, kind)(3, 5, bias_ih_attr=False, bias_hh_attr=False)
    theirs = getattr(torch.nn, kind)(3, 5, bias=False, batch_first=True)
    theirs.load_state_dict({name: value for name, value in mine.state_dict().items() if "cell" not in name})
    x = torch.randn(2, 6, 3)
    torch.testing.assert_close(mine(x)[0], theirs(x)[0])


def test_both_names_are_one_parameter() -> None:
    """Of the network and of its cell, and stay so when converted."""
    network = nn.GRU(3, 4, 2, "bidirect").to(dtype="float64")
    assert network.weight_hh_l1_reverse is network[1].cell_bw.weight_hh
    assert network.bias_ih_l0.dtype == torch.float64
    assert len(network.parameters()) == 16 == len(network.state_dict()) // 2


def test_saved_and_loaded(tmp_path: Any) -> None:
    """A state dict in a file gives another network the same function, with no name left over."""
    torch.manual_seed(0)
    first, second = nn.LSTM(3, 4, 2, proj_size=2), nn.LSTM(3, 4, 2, proj_size=2)
    x = torch.randn(2, 5, 3)
    assert not torch.equal(first(x)[0], second(x)[0])
    paddle.save(first.state_dict(), str(tmp_path / "lstm.pdparams"))
    assert second.set_state_dict(paddle.load(str(tmp_path / "lstm.pdparams"))) == ([], [])
    assert torch.equal(first(x)[0], second(x)[0])


def test_half_precision_follows_the_parameters() -> None:
    """First states have the dtype of the cell's parameters."""
    cell = nn.LSTMCell(3, 4).bfloat16()
    outputs, (h, c) = nn.RNN(cell)(torch.randn(2, 5, 3).bfloat16())
    assert {outputs.dtype, h.dtype, c.dtype} == {torch.bfloat16}


def test_dropout_between_layers_only_in_training() -> None:
    """One layer has none; two layers have it in training."""
    x = torch.randn(2, 5, 3)
    for layers, changes in ((1, False), (2, True)):
        network = nn.GRU(3, 64, layers, dropout=0.5)
        drawn = network(x)[0]
        network.eval()
        assert torch.allclose(drawn, network(x)[0]) is not changes


def test_learns_to_count() -> None:
    """The parity of bits: an LSTM comes down from log 2."""
    torch.manual_seed(0)

    class Parity(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(1, 16), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0])

    model = Parity()
    optimizer = paddle.optimizer.Adam(0.02, parameters=model.parameters())
    bits = torch.randint(0, 2, (64, 6, 1))
    loss = torch.tensor(0.0)
    for _ in range(200):
        loss = nn.functional.cross_entropy(model(bits.float()), bits.cumsum(1) % 2)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    assert float(loss.detach()) < 0.1


def test_errors_name_the_fault() -> None:
    """Sizes, directions, activations, states."""
    x = torch.randn(2, 5, 3)
    faults: list[tuple[Any, str]] = [
        (lambda: nn.GRU(3, 4, direction="backward"), "direction"),
        (lambda: nn.SimpleRNN(3, 4, activation="gelu"), "gelu"),
        (lambda: nn.SimpleRNNCell(3, 4, "gelu"), "gelu"),
        (lambda: nn.GRUCell(3, 0), "hidden_size"),
        (lambda: nn.LSTM(3, 4, proj_size=4), "proj_size"),
        (lambda: nn.LSTM(3, 4, proj_size=-1), "proj_size"),
        (lambda: nn.GRU(3, 4)(torch.randn(2, 5, 2)), r"\[2, 5, 2\]"),
        (lambda: nn.GRU(3, 4)(torch.randn(2, 3)), r"\[2, 3\]"),
        (lambda: nn.GRU(3, 4)(x, torch.zeros(2, 2, 4)), r"\[2, 2, 4\]"),
        (lambda: nn.LSTM(3, 4)(x, torch.zeros(1, 2, 4)), "initial states"),
        (lambda: nn.GRUCell(3, 4)(torch.randn(2, 3), torch.randn(2, 5)), r"states \[2, 5\]"),
        (lambda: nn.BiRNN(nn.GRUCell(3, 4), nn.GRUCell(5, 4)), "input size"),
    ]
    for call, text in faults:
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(NotImplementedError):
        _ = nn.RNNCellBase().state_shape


def test_a_cell_of_ones_own_with_structures() -> None:
    """Inputs, states and outputs may be structures."""

    class Sum(nn.RNNCellBase):
        def forward(self, inputs: Any, states: Any, factor: float = 1.0) -> Any:
            new = {"total": states["total"] + factor * (inputs[0] + inputs[1])}
            return [new["total"]], new

        @property
        def state_shape(self) -> Any:
            return {"total": [3]}

    a, b = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    (outputs,), last = nn.RNN(Sum())((a, b), factor=2.0)
    torch.testing.assert_close(outputs, 2 * (a + b).cumsum(1))
    torch.testing.assert_close(last["total"], outputs[:, -1])
