"""Layers of recurrent cells, which torch's kernels run.

B batch, T steps, I input size, H hidden size, L layers, D directions. Sequences are [B, T, I], or [T, B, I] with
`time_major`; states are [L * D, B, H].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.nn.layer.containers import LayerList
from oarlock.paddle.nn.layer.recurrent import RNN, BiRNN, GRUCell, LSTMCell, SimpleRNNCell

kernels: Any = torch  # the stubs know only some of the forms of rnn_tanh, lstm, gru


class _Network(LayerList):
    """Layers of cells. The weights are those of the cells, and attributes `weight_ih_l0[_reverse]`, ... as well."""

    kind: Any
    num_states = 1

    def _make(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        direction: str,
        time_major: bool,
        dropout: float,
        attrs: Sequence[Any],
        more: dict[str, Any],
    ) -> None:
        if direction not in ("forward", "bidirect", "bidirectional"):
            raise ValueError(f"direction should be forward or bidirect (or bidirectional), received {direction!r}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.num_directions, self.time_major, self.dropout = 1 + (direction != "forward"), time_major, dropout
        self.proj_size = int(more.get("proj_size", 0))
        width = (self.proj_size or hidden_size) * self.num_directions
        names = ("weight_ih_attr", "weight_hh_attr", "bias_ih_attr", "bias_hh_attr")
        options = {**dict(zip(names, attrs, strict=True)), **more}
        for number in range(num_layers):
            size = width if number else input_size
            cells = [self.kind(size, hidden_size, **options) for _ in range(self.num_directions)]
            made = BiRNN(*cells, time_major=time_major) if len(cells) == 2 else RNN(cells[0], False, time_major)
            self.append(made)
            for cell, suffix in zip(cells, ("", "_reverse"), strict=False):
                for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    self.register_parameter(f"{part}_l{number}{suffix}", getattr(cell, part))

    def _cells(self) -> list[Any]:
        return [
            cell
            for layer in self
            for cell in ((layer.cell,) if isinstance(layer, RNN) else (layer.cell_fw, layer.cell_bw))
        ]

    def _run(self, data: Tensor, sizes: Tensor | None, states: list[Tensor], weights: list[Tensor]) -> Any:
        raise NotImplementedError

    def forward(
        self, inputs: Tensor, initial_states: Any = None, sequence_length: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """(outputs [B, T, D * H], the last states [L * D, B, H]).

        Args:
            inputs: [B, T, I].
            initial_states: [L * D, B, H], (h, c) for an LSTM; zeros by default.
            sequence_length: [B], how many steps of each sample count; outputs behind them are 0.
        """
        sequence = inputs if self.time_major else inputs.transpose(0, 1)
        cells = self._cells()
        count, batch = len(cells), sequence.shape[1]
        if initial_states is None:
            widths = (self.proj_size or self.hidden_size, self.hidden_size)
            states = [sequence.new_zeros(count, batch, widths[i]) for i in range(self.num_states)]
        else:
            states = [initial_states] if isinstance(initial_states, Tensor) else list(initial_states)
        weights: list[Tensor] = []
        for cell in cells:
            weights += [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
            if self.proj_size:
                weights.append(cell.weight_ho.t())
        if sequence_length is None:
            output, *last = self._run(sequence, None, states, weights)
        else:
            lengths, order = sequence_length.to("cpu", torch.int64).sort(descending=True, stable=True)
            order = order.to(sequence.device)
            packed = torch.nn.utils.rnn.pack_padded_sequence(sequence[:, order], lengths)
            found, *last = self._run(packed.data, packed.batch_sizes, [s[:, order] for s in states], weights)
            whole = torch.nn.utils.rnn.PackedSequence(found, packed.batch_sizes)
            output, _ = torch.nn.utils.rnn.pad_packed_sequence(whole, total_length=sequence.shape[0])
            back = order.argsort()
            output, last = output[:, back], [s[:, back] for s in last]
        if not self.time_major:
            output = output.transpose(0, 1)
        return output, last[0] if self.num_states == 1 else tuple(last)

    def _common(self) -> tuple[Any, ...]:
        return True, self.num_layers, self.dropout, self.training, self.num_directions == 2

    def extra_repr(self) -> str:
        """For printing."""
        layers = f", num_layers={self.num_layers}" if self.num_layers != 1 else ""
        return f"{self.input_size}, {self.hidden_size}{layers}"


class SimpleRNN(_Network):
    """Layers of `SimpleRNNCell`; `dropout` between layers while training."""

    kind = SimpleRNNCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: float = 0.0,
        activation: str = "tanh",
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation
        attrs = (weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr)
        more = {"activation": activation}
        self._make(input_size, hidden_size, num_layers, direction, time_major, dropout, attrs, more)

    def _run(self, data: Tensor, sizes: Tensor | None, states: list[Tensor], weights: list[Tensor]) -> Any:
        run = kernels.rnn_tanh if self.activation == "tanh" else kernels.rnn_relu
        if sizes is None:
            return run(data, states[0], weights, *self._common(), False)
        return run(data, sizes, states[0], weights, *self._common())


class LSTM(_Network):
    """Layers of `LSTMCell`; `dropout` between layers while training."""

    kind = LSTMCell
    num_states = 2

    def __init__(
        self,
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
        name: str | None = None,
    ) -> None:
        super().__init__()
        attrs = (weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr)
        more = {"proj_size": proj_size}
        self._make(input_size, hidden_size, num_layers, direction, time_major, dropout, attrs, more)

    def _run(self, data: Tensor, sizes: Tensor | None, states: list[Tensor], weights: list[Tensor]) -> Any:
        if sizes is None:
            return kernels.lstm(data, states, weights, *self._common(), False)
        return kernels.lstm(data, sizes, states, weights, *self._common())


class GRU(_Network):
    """Layers of `GRUCell`; `dropout` between layers while training."""

    kind = GRUCell

    def __init__(
        self,
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
        name: str | None = None,
    ) -> None:
        super().__init__()
        attrs = (weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr)
        self._make(input_size, hidden_size, num_layers, direction, time_major, dropout, attrs, {})

    def _run(self, data: Tensor, sizes: Tensor | None, states: list[Tensor], weights: list[Tensor]) -> Any:
        if sizes is None:
            return kernels.gru(data, states[0], weights, *self._common(), False)
        return kernels.gru(data, sizes, states[0], weights, *self._common())
