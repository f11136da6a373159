"""One step of a recurrent network: `cell(x_t, states) -> (output, new states)`.

Weights are [gates * hidden, in] as in torch; the gates of an LSTM are i, f, g, o and those of a GRU r, z, n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from oarlock.paddle.dtypes import as_dtype
from oarlock.paddle.nn.initializer import Constant, Uniform
from oarlock.paddle.nn.layer.layers import Layer
from oarlock.paddle.nn.parameter import Parameter

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu}


def _is_shape(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(size, int) for size in value)


class RNNCellBase(Layer):
    """What a cell is derived from: it says what its states look like."""

    def get_initial_states(
        self, batch_ref: Any, shape: Any = None, dtype: Any = None, init_value: float = 0.0, batch_dim_idx: int = 0
    ) -> Any:
        """States of [batch, *shape] that are filled with a value.

        Args:
            batch_ref: a tensor, or a structure of tensors whose first one tells the batch and the device.
            shape: sizes behind the batch (a leading -1 is that), or a structure of them; `state_shape` by default.
            dtype: one, or a structure like `shape`; `state_dtype`, else that of the cell's parameters by default.
            init_value: what the states are filled with.
            batch_dim_idx: dimension of the batch in `batch_ref`.

        Returns:
            A tensor, or tensors in the structure of `shape`.
        """
        reference: Tensor = tree_flatten(batch_ref)[0][0]
        batch = reference.shape[batch_dim_idx]
        shapes = self.state_shape if shape is None else shape
        if dtype is None:
            try:
                dtype = self.state_dtype
            except NotImplementedError:
                dtype = next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())

        def made(size: Any, kind: Any) -> Tensor:
            own = list(size[1:]) if size and size[0] == -1 else list(size)
            return torch.full((batch, *own), init_value, dtype=as_dtype(kind), device=reference.device)

        if isinstance(dtype, (list, tuple)) and not _is_shape(shapes):
            kinds, spec = tree_flatten(dtype)
            return tree_map(made, _as_structure(shapes, spec), spec.unflatten(kinds), is_leaf=_is_shape)
        return tree_map(lambda size: made(size, dtype), shapes, is_leaf=_is_shape)

    @property
    def state_shape(self) -> Any:
        """Sizes of the states without the batch: a tuple, or a tuple of tuples.

        Raises:
            NotImplementedError: the cell does not say.
        """
        raise NotImplementedError("the cell must give `state_shape`, or the states must be given")

    @property
    def state_dtype(self) -> Any:
        """Dtypes of the states.

        Raises:
            NotImplementedError: the cell does not say.
        """
        raise NotImplementedError("the cell does not give `state_dtype`")


def _as_structure(shapes: Any, spec: Any) -> Any:
    """The shapes in the containers of the dtypes."""
    return spec.unflatten(tree_flatten(shapes, is_leaf=_is_shape)[0])


class _Cell(RNNCellBase):
    """The parameters of a cell: uniform on [-1/sqrt(hidden), 1/sqrt(hidden)) by default.

    A parameter whose attribute is False stays and is not trained: weights are 1, biases 0.
    """

    gates = 1
    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter
    bias_hh: Parameter

    def _make(self, input_size: int, hidden_size: int, attrs: tuple[Any, Any, Any, Any], recurrent: int = 0) -> None:
        if hidden_size <= 0:
            raise ValueError(f"hidden_size of {type(self).__name__} must be greater than 0, got {hidden_size}")
        self.input_size, self.hidden_size = input_size, hidden_size
        rows = self.gates * hidden_size
        weight_ih, weight_hh, bias_ih, bias_hh = attrs
        self.weight_ih = self._filled([rows, input_size], weight_ih)
        self.weight_hh = self._filled([rows, recurrent or hidden_size], weight_hh)
        self.bias_ih = self._filled([rows], bias_ih, is_bias=True)
        self.bias_hh = self._filled([rows], bias_hh, is_bias=True)

    def _filled(self, shape: list[int], attr: Any, *, is_bias: bool = False) -> Parameter:
        limit = 1.0 / math.sqrt(self.hidden_size)
        absent = attr is False
        made = self.create_parameter(
            shape,
            None if absent else attr,
            is_bias=is_bias,
            default_initializer=Constant(0.0 if is_bias else 1.0) if absent else Uniform(-limit, limit),
            requires_grad=not absent,
        )
        assert made is not None
        return made

    def _both(self, inputs: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of all gates from the input and from the state.

        Raises:
            ValueError: sizes that do not fit the weights.
        """
        for name, given, weight in (("inputs", inputs, self.weight_ih), ("states", hidden, self.weight_hh)):
            if given.shape[-1] != weight.shape[1]:
                raise ValueError(f"the last dimension of {name} {list(given.shape)} must be {weight.shape[1]}")
        linear = torch.nn.functional.linear
        return linear(inputs, self.weight_ih, self.bias_ih), linear(hidden, self.weight_hh, self.bias_hh)

    def extra_repr(self) -> str:
        """For printing."""
        return f"{self.input_size}, {self.hidden_size}"


class SimpleRNNCell(_Cell):
    """h' = act(W_ih x + b_ih + W_hh h + b_hh).

    Args:
        input_size: of x.
        hidden_size: of h.
        activation: "tanh" or "relu".
        weight_ih_attr: of W_ih [hidden, in].
        weight_hh_attr: of W_hh [hidden, hidden].
        bias_ih_attr: of b_ih [hidden].
        bias_hh_attr: of b_hh [hidden].

    Raises:
        ValueError: another activation, or no hidden size.
    """

    def __init__(
        self, input_size: int, hidden_size: int, activation: str = "tanh", weight_ih_attr: Any = None,
        weight_hh_attr: Any = None, bias_ih_attr: Any = None, bias_hh_attr: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._make(input_size, hidden_size, (weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr))
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation for SimpleRNNCell should be tanh or relu, but get {activation}")
        self.activation = activation

    def forward(self, inputs: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[N, in], [N, hidden] (zeros by default) -> h', h'."""
        h = self.get_initial_states(inputs, self.state_shape) if states is None else states
        from_input, from_state = self._both(inputs, h)
        h = ACTIVATIONS[self.activation](from_input + from_state)
        return h, h

    @property
    def state_shape(self) -> tuple[int]:
        """(hidden,)."""
        return (self.hidden_size,)

    def extra_repr(self) -> str:
        """For printing."""
        return super().extra_repr() + ("" if self.activation == "tanh" else f", activation={self.activation}")


class LSTMCell(_Cell):
    """c' = s(f) c + s(i) tanh(g); h' = s(o) tanh(c'), with (i, f, g, o) = W_ih x + b_ih + W_hh h + b_hh.

    Args:
        input_size: of x.
        hidden_size: of c.
        weight_ih_attr: of W_ih [4 hidden, in].
        weight_hh_attr: of W_hh [4 hidden, size of h].
        bias_ih_attr: of b_ih [4 hidden].
        bias_hh_attr: of b_hh [4 hidden].
        proj_size: where it is not 0, h' is multiplied by `weight_ho` [hidden, proj].

    Raises:
        ValueError: no hidden size, or a projection that is not smaller.
    """

    gates = 4
    weight_ho: Parameter

    def __init__(
        self, input_size: int, hidden_size: int, weight_ih_attr: Any = None, weight_hh_attr: Any = None,
        bias_ih_attr: Any = None, bias_hh_attr: Any = None, proj_size: int = 0, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if proj_size < 0:
            raise ValueError(f"proj_size of LSTMCell must not be negative, got {proj_size}")
        if proj_size >= hidden_size > 0:
            raise ValueError(f"proj_size must be smaller than hidden_size: {proj_size} and {hidden_size}")
        attrs = weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr
        self._make(input_size, hidden_size, attrs, proj_size)
        self.proj_size = proj_size
        if proj_size:
            self.weight_ho = self._filled([hidden_size, proj_size], weight_hh_attr)

    def forward(self, inputs: Tensor, states: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[N, in], (h, c) (zeros by default) -> h', (h', c')."""
        if states is None:
            size = self.proj_size or self.hidden_size
            states = self.get_initial_states(inputs, ((size,), (self.hidden_size,)))
        h, c = states
        from_input, from_state = self._both(inputs, h)
        i, f, g, o = (from_input + from_state).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        if self.proj_size:
            h = h @ self.weight_ho
        return h, (h, c)

    @property
    def state_shape(self) -> tuple[tuple[int], tuple[int]]:
        """Those of h and c."""
        return ((self.proj_size or self.hidden_size,), (self.hidden_size,))


class GRUCell(_Cell):
    """h' = z h + (1 - z) tanh(n_x + r n_h), with r = s(r_x + r_h), z = s(z_x + z_h).

    The parts `_x` are W_ih x + b_ih, the parts `_h` W_hh h + b_hh.

    Args:
        input_size: of x.
        hidden_size: of h.
        weight_ih_attr: of W_ih [3 hidden, in].
        weight_hh_attr: of W_hh [3 hidden, hidden].
        bias_ih_attr: of b_ih [3 hidden].
        bias_hh_attr: of b_hh [3 hidden].

    Raises:
        ValueError: no hidden size.
    """

    gates = 3

    def __init__(
        self, input_size: int, hidden_size: int, weight_ih_attr: Any = None, weight_hh_attr: Any = None,
        bias_ih_attr: Any = None, bias_hh_attr: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._make(input_size, hidden_size, (weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr))

    def forward(self, inputs: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[N, in], [N, hidden] (zeros by default) -> h', h'."""
        h = self.get_initial_states(inputs, self.state_shape) if states is None else states
        from_input, from_state = self._both(inputs, h)
        r_x, z_x, n_x = from_input.chunk(3, -1)
        r_h, z_h, n_h = from_state.chunk(3, -1)
        r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        n = torch.tanh(n_x + r * n_h)
        h = (h - n) * z + n
        return h, h

    @property
    def state_shape(self) -> tuple[int]:
        """(hidden,)."""
        return (self.hidden_size,)
