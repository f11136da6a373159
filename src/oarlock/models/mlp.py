"""The dense gated MLP."""

from torch import Tensor, nn

from oarlock import ops
from oarlock.models.linear import Linear


class MLP(nn.Module):
    """y = down(silu(gate(x)) · up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, bias: bool) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x_BSE: Tensor) -> Tensor:
        return self.down_proj(ops.swiglu(self.gate_proj(x_BSE), self.up_proj(x_BSE)))
