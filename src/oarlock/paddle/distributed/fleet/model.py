"""`fleet.distributed_model` and its companions, for data parallelism."""

from typing import Any

from torch import nn

from oarlock.paddle.distributed.data_parallel import DataParallel
from oarlock.paddle.distributed.fleet.topology import get_hybrid_communicate_group


def distributed_model(model: nn.Module) -> nn.Module:
    """The network with gradients averaged over the processes of `fleet.init`; in a process alone, the network.

    Raises:
        ValueError: `fleet.init` asked for more than data parallelism.
    """
    layout = get_hybrid_communicate_group()
    _only_data("distributed_model")
    if layout.get_data_parallel_world_size() == 1:
        return model
    return DataParallel(model, group=layout.get_data_parallel_group())


def distributed_optimizer(optimizer: Any, strategy: Any = None) -> Any:
    """The optimizer: with averaged gradients every process takes the same step.

    Raises:
        ValueError: `fleet.init` asked for more than data parallelism.
    """
    _only_data("distributed_optimizer")
    return optimizer


def distributed_scaler(scaler: Any) -> Any:
    """The scaler: averaged gradients are finite in all processes or in none.

    Raises:
        ValueError: `fleet.init` asked for more than data parallelism.
    """
    _only_data("distributed_scaler")
    return scaler


def _only_data(function: str) -> None:
    degrees = get_hybrid_communicate_group().degrees
    others = {axis: degree for axis, degree in degrees.items() if axis != "dp" and degree > 1}
    if others:
        raise ValueError(
            f"fleet.{function}() does data parallelism here, the strategy asks for {others}; "
            "use paddle.distributed.parallelize() or oarlock train"
        )
