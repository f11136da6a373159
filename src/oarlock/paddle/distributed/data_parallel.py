"""`DataParallel`: the same weights in every process, gradients averaged while backward runs, by torch's DDP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from oarlock.paddle.distributed.communication.group import Group, get_group, get_world_size
from oarlock.paddle.nn.layer.layers import Layer


class DataParallel(Layer):
    """A network whose gradients are averaged over the processes of a group: grad = 1/n · Σᵢ gradᵢ.

    Weights and buffers begin as those of the group's first process. In a process alone it is the network itself.

    Args:
        layers: the network; `self._layers` after that.
        strategy: taken and not used, as in Paddle.
        comm_buffer_size: MB of gradients that travel together.
        last_comm_buffer_size: MB of the first such message; 1, torch's own, whatever is given.
        find_unused_parameters: some parameters may have no part in a step.
        group: of processes; all by default.

    Raises:
        ValueError: several processes, and the network has no parameter to train.
    """

    def __init__(
        self,
        layers: nn.Module,
        strategy: Any = None,
        comm_buffer_size: int = 25,
        last_comm_buffer_size: float = 1,
        find_unused_parameters: bool = False,
        group: Group | None = None,
    ) -> None:
        super().__init__()
        self._layers = layers
        self.find_unused_parameters = find_unused_parameters
        self.group = get_group(0) if group is None else group
        self.grad_need_sync = True
        self._reducer: list[DistributedDataParallel] = []  # in a list: its network is no second sublayer
        if get_world_size(self.group) < 2:
            return
        if not any(parameter.requires_grad for parameter in layers.parameters()):
            raise ValueError("DataParallel needs a parameter to train; use the network without it")
        self._reducer.append(
            DistributedDataParallel(
                layers,
                process_group=self.group.process_group,
                bucket_cap_mb=comm_buffer_size,
                find_unused_parameters=find_unused_parameters,
            )
        )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of forwards in this region stay in their process and add up, until one outside averages them."""
        before, self.grad_need_sync = self.grad_need_sync, False
        try:
            yield
        finally:
            self.grad_need_sync = before

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The network's output."""
        if not self._reducer:
            return self._layers(*inputs, **kwargs)
        if self.grad_need_sync:
            return self._reducer[0](*inputs, **kwargs)
        with self._reducer[0].no_sync():
            return self._reducer[0](*inputs, **kwargs)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss as it is: averaging needs no scale."""
        return loss

    def apply_collective_grads(self) -> None:
        """Nothing: backward has averaged the gradients."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the network, with the network's own names."""
        return self._layers.state_dict(*args, **kwargs)

    def set_state_dict(self, state_dict: Any, use_structured_name: bool = True) -> Any:
        """Give it to the network."""
        return self._layers.set_state_dict(state_dict, use_structured_name)  # pyright: ignore[reportCallIssue]

    set_dict = load_dict = set_state_dict
