"""A cell along the time of a sequence: `RNN` in one direction, `BiRNN` in both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from oarlock.paddle.nn.layer.layers import Layer


class RNN(Layer):
    """A cell along the time of its inputs.

    Args:
        cell: `(x_t, states) -> (output, new states)`; RNNCellBase makes the first states.
        is_reverse: from the last step to the first one.
        time_major: inputs and outputs are [T, N, ...] in place of [N, T, ...].
    """

    def __init__(self, cell: Any, is_reverse: bool = False, time_major: bool = False) -> None:
        super().__init__()
        self.cell = cell
        self.is_reverse, self.time_major = is_reverse, time_major

    def forward(
        self, inputs: Any, initial_states: Any = None, sequence_length: Tensor | None = None, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Outputs of all steps, and the states behind the last one.

        Args:
            inputs: [N, T, ...], or a structure of such.
            initial_states: of the cell; its own by default.
            sequence_length: [N]; states stand still in steps from there on (what is computed there is not masked).
            kwargs: for the cell.
        """
        time = 0 if self.time_major else 1
        steps = tree_leaves(inputs)[0].shape[time]
        states = initial_states
        if states is None:
            states = self.cell.get_initial_states(inputs, batch_dim_idx=1 - time)
        outputs: list[Any] = [None] * steps
        for step in reversed(range(steps)) if self.is_reverse else range(steps):
            x = tree_map(lambda each, at=step: each.select(time, at), inputs)
            outputs[step], new = self.cell(x, states, **kwargs)
            states = new if sequence_length is None else _kept(states, new, sequence_length > step)
        return tree_map(lambda *each: torch.stack(each, time), outputs[0], *outputs[1:]), states


def _kept(states: Any, new: Any, going: Tensor) -> Any:
    """The new states of those sequences [N] that go on, the former ones of the others."""

    def chosen(old: Tensor, now: Tensor) -> Tensor:
        return torch.where(going.view(-1, *[1] * (now.ndim - 1)), now, old)

    return tree_map(chosen, states, new)


class BiRNN(Layer):
    """A cell forward and another one backward in time; their outputs are joined along the last dimension.

    Args:
        cell_fw: of the forward direction.
        cell_bw: of the backward direction.
        time_major: inputs and outputs are [T, N, ...] in place of [N, T, ...].

    Raises:
        ValueError: cells of different input sizes.
    """

    def __init__(self, cell_fw: Any, cell_bw: Any, time_major: bool = False) -> None:
        super().__init__()
        sizes = getattr(cell_fw, "input_size", None), getattr(cell_bw, "input_size", None)
        if sizes[0] != sizes[1]:
            raise ValueError(f"the forward cell's input size {sizes[0]} is not that of the backward cell, {sizes[1]}")
        self.cell_fw, self.cell_bw, self.time_major = cell_fw, cell_bw, time_major

    def forward(
        self, inputs: Any, initial_states: Any = None, sequence_length: Tensor | None = None, **kwargs: Any
    ) -> tuple[Any, tuple[Any, Any]]:
        """Outputs of all steps, and (the forward cell's last states, the backward cell's)."""
        first = (None, None) if initial_states is None else initial_states
        sides = [
            _along(cell, inputs, states, sequence_length, reverse, self.time_major, kwargs)
            for cell, states, reverse in ((self.cell_fw, first[0], False), (self.cell_bw, first[1], True))
        ]
        (ahead, ahead_states), (back, back_states) = sides
        return tree_map(lambda a, b: torch.cat([a, b], -1), ahead, back), (ahead_states, back_states)


def _along(cell: Any, inputs: Any, states: Any, lengths: Any, reverse: bool, time_major: bool, more: Any) -> Any:
    runner = RNN(cell, reverse, time_major)
    return runner.forward(inputs, states, lengths, **more)
