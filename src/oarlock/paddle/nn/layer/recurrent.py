"""Recurrent cells, and one cell over a sequence.

B batch, T steps, I input size, H hidden size. Sequences are [B, T, I], or [T, B, I] with `time_major`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from oarlock.paddle.dtypes import as_dtype
from oarlock.paddle.nn.initializer import Constant, Uniform
from oarlock.paddle.nn.layer.layers import Layer


class RNNCellBase(Layer):
    """One step of a recurrent layer: `forward(inputs, states)` gives (outputs, new states).

    Subclasses say the sizes of a sample's states in `state_shape`.
    """

    @property
    def state_shape(self) -> Any:
        """The sizes of a sample's states, tuples of tuples where there are several."""
        raise NotImplementedError("Please add implementation for `state_shape` in the used cell.")

    def get_initial_states(
        self, batch_ref: Any, shape: Any = None, dtype: Any = None, init_value: float = 0.0, batch_dim_idx: int = 0
    ) -> Any:
        """States that are `init_value` everywhere, for as many samples as `batch_ref` has."""
        while not isinstance(batch_ref, Tensor):
            batch_ref = batch_ref[0]
        count = batch_ref.shape[batch_dim_idx]
        chosen = as_dtype(dtype) or torch.get_default_dtype()

        def made(sizes: Any) -> Any:
            if sizes and isinstance(sizes[0], (list, tuple)):
                return tuple(made(each) for each in sizes)
            return torch.full([count, *sizes], init_value, dtype=chosen, device=batch_ref.device)

        return made(self.state_shape if shape is None else shape)


class Cell(RNNCellBase):
    """What the three cells have in common: weights [gates * H, ...] and biases [gates * H]."""

    num_gates = 1
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor

    def _make(self, input_size: int, hidden_size: int, state_size: int, attrs: Sequence[Any]) -> None:
        if hidden_size <= 0:
            raise ValueError(
                f"hidden_size of {type(self).__name__} must be greater than 0, but now equals to {hidden_size}"
            )
        self.input_size, self.hidden_size = input_size, hidden_size
        limit = 1.0 / math.sqrt(hidden_size)
        rows = self.num_gates * hidden_size
        sizes = {"weight_ih": [rows, input_size], "weight_hh": [rows, state_size], "bias_ih": [rows], "bias_hh": [rows]}
        for (name, shape), attr in zip(sizes.items(), attrs, strict=True):
            fixed = attr is False  # kept with a neutral value, and not trained
            is_bias = name.startswith("bias")
            made = self.create_parameter(
                shape,
                None if fixed else attr,
                is_bias=is_bias,
                default_initializer=Constant(0.0 if is_bias else 1.0) if fixed else Uniform(-limit, limit),
                requires_grad=not fixed,
            )
            setattr(self, name, made)

    def extra_repr(self) -> str:
        """For printing."""
        return f"{self.input_size}, {self.hidden_size}"


class SimpleRNNCell(Cell):
    """h' = act(W_ih x + b_ih + W_hh h + b_hh), act tanh or relu."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        activation: str = "tanh",
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if activation not in ("tanh", "relu"):
            raise ValueError(f"activation for SimpleRNNCell should be tanh or relu, but get {activation}")
        self.activation = activation
        attrs = (weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr)
        self._make(input_size, hidden_size, hidden_size, attrs)

    def forward(self, inputs: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[B, I], [B, H] -> (h', h')."""
        before = self.get_initial_states(inputs, dtype=inputs.dtype) if states is None else states
        step = torch.rnn_tanh_cell if self.activation == "tanh" else torch.rnn_relu_cell
        new = step(inputs, before, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return new, new

    @property
    def state_shape(self) -> tuple[int, ...]:
        """(H,)."""
        return (self.hidden_size,)


class LSTMCell(Cell):
    """i, f, g, o: the quarters of W_ih x + b_ih + W_hh h + b_hh; c' = s(f) c + s(i) tanh(g); h' = s(o) tanh(c').

    Args:
        proj_size: above 0, h' is times a weight [H, proj_size] further.
    """

    num_gates = 4
    weight_ho: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        proj_size: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= proj_size < max(hidden_size, 1):
            raise ValueError(f"proj_size must be within [0, hidden_size = {hidden_size}), got {proj_size}")
        self.proj_size = proj_size
        attrs = (weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr)
        self._make(input_size, hidden_size, proj_size or hidden_size, attrs)
        if proj_size:
            limit = 1.0 / math.sqrt(hidden_size)
            made = self.create_parameter(
                [hidden_size, proj_size], weight_hh_attr or None, default_initializer=Uniform(-limit, limit)
            )
            assert made is not None
            self.weight_ho = made

    def forward(
        self, inputs: Tensor, states: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[B, I], ([B, H], [B, H]) -> (h', (h', c'))."""
        h, c = self.get_initial_states(inputs, dtype=inputs.dtype) if states is None else states
        linear = torch.nn.functional.linear
        gates = linear(inputs, self.weight_ih, self.bias_ih) + linear(h, self.weight_hh, self.bias_hh)
        i, f, g, o = gates.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        if self.proj_size:
            h = h @ self.weight_ho
        return h, (h, c)

    @property
    def state_shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """((H or proj_size,), (H,))."""
        return (self.proj_size or self.hidden_size,), (self.hidden_size,)


class GRUCell(Cell):
    """r = s(W_ir x + W_hr h), z = s(W_iz x + W_hz h), c = tanh(W_ic x + r * (W_hc h)); h' = z h + (1 - z) c.

    Every product has its bias; the weights hold r, z, c in this order.
    """

    num_gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        attrs = (weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr)
        self._make(input_size, hidden_size, hidden_size, attrs)

    def forward(self, inputs: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[B, I], [B, H] -> (h', h')."""
        before = self.get_initial_states(inputs, dtype=inputs.dtype) if states is None else states
        new = torch.gru_cell(inputs, before, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return new, new

    @property
    def state_shape(self) -> tuple[int, ...]:
        """(H,)."""
        return (self.hidden_size,)


class RNN(Layer):
    """A cell over the steps of a sequence.

    Args:
        cell: a cell.
        is_reverse: from the last step to the first.
        time_major: steps are the first dimension.
    """

    def __init__(self, cell: Any, is_reverse: bool = False, time_major: bool = False) -> None:
        super().__init__()
        self.cell, self.is_reverse, self.time_major = cell, is_reverse, time_major

    def forward(
        self, inputs: Any, initial_states: Any = None, sequence_length: Tensor | None = None, **kwargs: Any
    ) -> tuple[Any, Any]:
        """(outputs of all steps, the last states); behind a sample's length its states stay as they are.

        Args:
            inputs: [B, T, ...] or tensors of it.
            sequence_length: [B], how many steps of each sample count.
            kwargs: for the cell.
        """
        time, batch = (0, 1) if self.time_major else (1, 0)
        first = inputs
        while not isinstance(first, Tensor):
            first = first[0]
        states = initial_states
        if states is None:
            states = self.cell.get_initial_states(inputs, dtype=first.dtype, batch_dim_idx=batch)
        steps = range(first.shape[time])
        outputs: list[Any] = []
        for t in reversed(steps) if self.is_reverse else steps:
            output, new = self.cell(tree_map(lambda x, t=t: x.select(time, t), inputs), states, **kwargs)
            if sequence_length is not None:
                counts = t < sequence_length.to(first.device)
                new = _where(counts, new, states)
            states = new
            outputs.append(output)
        if self.is_reverse:
            outputs.reverse()
        return _stacked(outputs, time), states


class BiRNN(Layer):
    """Two cells over a sequence, one from each end; their outputs side by side."""

    def __init__(self, cell_fw: Any, cell_bw: Any, time_major: bool = False) -> None:
        super().__init__()
        self.cell_fw, self.cell_bw, self.time_major = cell_fw, cell_bw, time_major

    def forward(
        self, inputs: Any, initial_states: Any = None, sequence_length: Tensor | None = None, **kwargs: Any
    ) -> tuple[Any, tuple[Any, Any]]:
        """(outputs [B, T, 2 H], (last states forward, backward))."""
        before = (None, None) if initial_states is None else initial_states
        found = [
            RNN.forward(_Way(cell, is_reverse, self.time_major), inputs, states, sequence_length, **kwargs)  # type: ignore[arg-type]
            for cell, is_reverse, states in zip((self.cell_fw, self.cell_bw), (False, True), before, strict=True)
        ]
        (forward, one), (backward, other) = found
        joined = (
            torch.cat([forward, backward], -1)
            if isinstance(forward, Tensor)
            else tuple(torch.cat(pair, -1) for pair in zip(forward, backward, strict=True))
        )
        return joined, (one, other)


class _Way:
    """What `RNN.forward` reads, without a layer that would own the cell twice."""

    def __init__(self, cell: Any, is_reverse: bool, time_major: bool) -> None:
        self.cell, self.is_reverse, self.time_major = cell, is_reverse, time_major


def _where(counts: Tensor, new: Any, old: Any) -> Any:
    if isinstance(new, Tensor):
        return torch.where(counts.view([-1] + [1] * (new.ndim - 1)), new, old)
    return tuple(_where(counts, one, other) for one, other in zip(new, old, strict=True))


def _stacked(outputs: list[Any], time: int) -> Any:
    if isinstance(outputs[0], Tensor):
        return torch.stack(outputs, time)
    return tuple(_stacked(list(parts), time) for parts in zip(*outputs, strict=True))
