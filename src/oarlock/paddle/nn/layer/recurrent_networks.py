"""SimpleRNN, LSTM and GRU: layers of recurrent cells, run by torch's kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from oarlock.paddle.nn import functional
from oarlock.paddle.nn.layer.containers import LayerList
from oarlock.paddle.nn.layer.recurrent import RNN, BiRNN
from oarlock.paddle.nn.layer.recurrent_cells import ACTIVATIONS, GRUCell, LSTMCell, RNNCellBase, SimpleRNNCell

kernels: Any = torch._VF  # rnn_tanh, rnn_relu, lstm, gru
BOTH = ("bidirectional", "bidirect")


class RNNBase(LayerList):
    """Layers of cells; layer l takes the outputs of layer l - 1. See SimpleRNN, LSTM and GRU.

    Each parameter has two names in the state dict, as in Paddle: `weight_ih_l0` (`_reverse`) and `0.cell.weight_ih`
    (`0.cell_fw.weight_ih`, `0.cell_bw.weight_ih`).
    """

    mode: str

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: float = 0.0,
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        proj_size: int = 0,
    ) -> None:
        super().__init__()
        if direction not in (*BOTH, "forward"):
            raise ValueError(f"direction should be forward or bidirect (or bidirectional), received {direction!r}")
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.dropout, self.time_major, self.proj_size = dropout, time_major, proj_size
        self.num_directions = 2 if direction in BOTH else 1
        self.state_components = 2 if mode == "LSTM" else 1
        attrs = {"weight_ih_attr": weight_ih_attr, "weight_hh_attr": weight_hh_attr}
        attrs |= {"bias_ih_attr": bias_ih_attr, "bias_hh_attr": bias_hh_attr}

        def cell(size: int) -> RNNCellBase:
            if mode == "LSTM":
                return LSTMCell(size, hidden_size, **attrs, proj_size=proj_size)
            if mode == "GRU":
                return GRUCell(size, hidden_size, **attrs)
            return SimpleRNNCell(size, hidden_size, mode.removeprefix("RNN_").lower(), **attrs)

        for layer in range(num_layers):
            size = input_size if layer == 0 else (proj_size or hidden_size) * self.num_directions
            if self.num_directions == 2:
                self.append(BiRNN(cell(size), cell(size), time_major))
            else:
                self.append(RNN(cell(size), False, time_major))
        self._name_parameters({kind for kind in ("bias_ih", "bias_hh") if attrs[f"{kind}_attr"] is False})

    def _name_parameters(self, absent: set[str]) -> None:
        """Give the cells' parameters names in this layer.

        As in Paddle, names go to parameters in their order: with a projection, those behind the first layer shift.
        """
        kinds = [kind for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if kind not in absent]
        sides = ("", "_reverse")[: self.num_directions]
        names = [f"{kind}_l{layer}{side}" for layer in range(self.num_layers) for side in sides for kind in kinds]
        for name, parameter in zip(names, self.parameters(), strict=False):
            self.add_parameter(name, parameter)

    def _cells(self) -> list[Any]:
        """The cell of each layer and direction."""
        return [cell for layer in self for cell in layer.children()]

    def flatten_parameters(self) -> None:
        """Nothing to do: torch's kernels take the parameters where they lie."""

    def forward(
        self, inputs: Tensor, initial_states: Any = None, sequence_length: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Outputs of the last layer at all steps, and the last states of all layers.

        Args:
            inputs: [N, T, in], or [T, N, in] where `time_major`.
            initial_states: [layers * directions, N, hidden], two of them for an LSTM; zeros by default.
            sequence_length: [N]; outputs from there on are zero, and states are those at that step. A length of
                zero gives the initial states.

        Returns:
            [N, T, directions * hidden] (or time first), states in the form of `initial_states`.

        Raises:
            ValueError: inputs or states of another shape.
        """
        time, batch = (0, 1) if self.time_major else (1, 0)
        if inputs.ndim != 3 or inputs.shape[2] != self.input_size:
            raise ValueError(f"inputs must have 3 dimensions, the last of {self.input_size}, got {list(inputs.shape)}")
        states = self._states(inputs, inputs.shape[batch], initial_states)
        if self.proj_size:
            return self._stepwise(inputs, states, sequence_length)
        x = inputs if self.time_major else inputs.transpose(0, 1)
        outputs, last = self._fused(x, states, sequence_length)
        outputs = outputs if self.time_major else outputs.transpose(0, time)
        return outputs, tuple(last) if len(last) > 1 else last[0]

    def _states(self, inputs: Tensor, batch: int, given: Any) -> list[Tensor]:
        layers = self.num_layers * self.num_directions
        sizes = [self.proj_size or self.hidden_size, self.hidden_size][: self.state_components]
        if given is None:
            return [inputs.new_zeros(layers, batch, size) for size in sizes]
        states = [given] if isinstance(given, Tensor) else list(given)
        shapes = [[layers, batch, size] for size in sizes]
        if [list(state.shape) for state in states] != shapes:
            raise ValueError(f"initial states must be {shapes}, got {[list(state.shape) for state in states]}")
        return states

    def _fused(self, x_TNC: Tensor, states: list[Tensor], lengths: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Time first through torch's kernel of all layers."""
        weights = []
        for cell in self._cells():
            weights += [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
        kernel = getattr(kernels, self.mode.lower())
        start: Any = states if self.mode == "LSTM" else states[0]
        options = (weights, True, self.num_layers, float(self.dropout), self.training, self.num_directions == 2)
        if lengths is None:
            outputs, *last = kernel(x_TNC, start, *options, False)
            return outputs, last
        steps = x_TNC.shape[0]
        # The kernel takes no empty sequence: one step of it, which is then dropped.
        packed = pack_padded_sequence(x_TNC, lengths.clamp(1, steps).cpu().long(), enforce_sorted=False)
        order, back = packed.sorted_indices, packed.unsorted_indices
        assert order is not None
        assert back is not None
        start = [state.index_select(1, order) for state in states]
        start = start if self.mode == "LSTM" else start[0]
        data, *last = kernel(packed.data, packed.batch_sizes, start, *options)
        outputs, _ = pad_packed_sequence(packed._replace(data=data), total_length=steps)
        last = [state.index_select(1, back) for state in last]
        empty = (lengths == 0).to(x_TNC.device)
        last = [torch.where(empty[:, None], old, new) for old, new in zip(states, last, strict=True)]
        return outputs.masked_fill(empty[:, None], 0.0), last

    def _stepwise(self, inputs: Tensor, states: list[Tensor], lengths: Tensor | None) -> tuple[Tensor, Any]:
        """Cell by cell, with a projection: the kernel on the CPU has none, and Paddle does not mask outputs then."""
        last: list[list[Tensor]] = [[] for _ in states]
        for number, layer in enumerate(self):
            if number:
                inputs = functional.dropout(inputs, self.dropout, training=self.training)
            first = number * self.num_directions
            own = [tuple(state[first + side] for state in states) for side in range(self.num_directions)]
            inputs, new = layer(inputs, own if self.num_directions == 2 else own[0], lengths)
            for pair in new if self.num_directions == 2 else [new]:
                for found, state in zip(last, pair, strict=True):
                    found.append(state)
        return inputs, tuple(torch.stack(found) for found in last)

    def extra_repr(self) -> str:
        """For printing."""
        parts = [f"{self.input_size}, {self.hidden_size}"]
        parts += [f"num_layers={self.num_layers}"] if self.num_layers != 1 else []
        parts += [f"time_major={self.time_major}"] if self.time_major is not False else []
        parts += [f"dropout={self.dropout}"] if self.dropout else []
        return ", ".join(parts)


class SimpleRNN(RNNBase):
    """Layers of SimpleRNNCell.

    Args:
        input_size: of the inputs.
        hidden_size: of the states.
        num_layers: one on the other.
        direction: "forward" or "bidirect" ("bidirectional").
        time_major: [T, N, ...] in place of [N, T, ...].
        dropout: between the layers, in training.
        activation: "tanh" or "relu".
        weight_ih_attr: and those of the other parameters: see SimpleRNNCell.

    Raises:
        ValueError: another direction or activation.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, direction: str = "forward",
        time_major: bool = False, dropout: float = 0.0, activation: str = "tanh", weight_ih_attr: Any = None,
        weight_hh_attr: Any = None, bias_ih_attr: Any = None, bias_hh_attr: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        if activation not in ACTIVATIONS:
            raise ValueError(f"Unknown activation {activation!r}: tanh or relu")
        self.__dict__["activation"] = activation
        super().__init__(
            f"RNN_{activation.upper()}", input_size, hidden_size, num_layers, direction, time_major, dropout,
            weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr,
        )  # fmt: skip


class LSTM(RNNBase):
    """Layers of LSTMCell; the states are (h, c). See SimpleRNN for the arguments, LSTMCell for `proj_size`."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, direction: str = "forward",
        time_major: bool = False, dropout: float = 0.0, weight_ih_attr: Any = None, weight_hh_attr: Any = None,
        bias_ih_attr: Any = None, bias_hh_attr: Any = None, proj_size: int = 0, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, direction, time_major, dropout, weight_ih_attr,
            weight_hh_attr, bias_ih_attr, bias_hh_attr, proj_size,
        )  # fmt: skip


class GRU(RNNBase):
    """Layers of GRUCell. See SimpleRNN for the arguments."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, direction: str = "forward",
        time_major: bool = False, dropout: float = 0.0, weight_ih_attr: Any = None, weight_hh_attr: Any = None,
        bias_ih_attr: Any = None, bias_hh_attr: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, direction, time_major, dropout, weight_ih_attr,
            weight_hh_attr, bias_ih_attr, bias_hh_attr,
        )  # fmt: skip
