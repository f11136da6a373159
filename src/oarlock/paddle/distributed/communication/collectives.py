"""Messages between processes in Paddle's argument order. A process alone speaks to itself: nothing is sent."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from oarlock.paddle.distributed.communication.group import Group, get_group


class ReduceOp:
    """How values of several processes become one."""

    SUM, MAX, MIN, PROD, AVG = (
        dist.ReduceOp.SUM,
        dist.ReduceOp.MAX,
        dist.ReduceOp.MIN,
        dist.ReduceOp.PRODUCT,
        dist.ReduceOp.AVG,
    )


class Task:
    """A message under way. `wait` returns when it has arrived."""

    def __init__(self, work: dist.Work | None) -> None:
        self._work = work

    def wait(self) -> bool:
        """Wait for the message."""
        if self._work is not None:
            self._work.wait()
        return True

    def is_completed(self) -> bool:
        """Whether it has arrived."""
        return self._work is None or self._work.is_completed()


def _alone(group: Group | None) -> bool:
    return not dist.is_initialized() or (get_group(0) if group is None else group).nranks == 1


def _handle(group: Group | None) -> dist.ProcessGroup | None:
    return None if group is None else group.process_group


def _summed(op: Any, group: Group | None) -> tuple[Any, int]:
    """An operation the backend has, and what to divide by: gloo has no mean."""
    if op == ReduceOp.AVG and dist.get_backend(_handle(group)) == "gloo":
        return ReduceOp.SUM, dist.get_world_size(_handle(group))
    return op, 1


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Group | None = None, sync_op: bool = True) -> Task:
    """Replace `tensor` by the sum (or `op`) over the processes."""
    if _alone(group):
        return Task(None)
    op, count = _summed(op, group)
    with torch.no_grad():
        work = dist.all_reduce(tensor, op, _handle(group), async_op=not sync_op and count == 1)
        if count > 1:
            tensor.div_(count)
    return Task(work)


def reduce(
    tensor: Tensor, dst: int = 0, op: Any = ReduceOp.SUM, group: Group | None = None, sync_op: bool = True
) -> Task:
    """Sum (or `op`) over the processes into the tensor of `dst`."""
    if _alone(group):
        return Task(None)
    op, count = _summed(op, group)
    work = dist.reduce(tensor, dst, op, _handle(group), async_op=not sync_op and count == 1)
    if count > 1 and dist.get_rank() == dst:
        tensor.div_(count)
    return Task(work)


def broadcast(tensor: Tensor, src: int, group: Group | None = None, sync_op: bool = True) -> Task:
    """Give everybody the tensor of `src`."""
    if _alone(group):
        return Task(None)
    return Task(dist.broadcast(tensor, src, _handle(group), async_op=not sync_op))


def all_gather(tensor_list: list[Tensor], tensor: Tensor, group: Group | None = None, sync_op: bool = True) -> Task:
    """Fill the list with everybody's tensor."""
    if _alone(group):
        tensor_list[:] = [tensor.clone()]
        return Task(None)
    if not tensor_list:
        tensor_list.extend(torch.empty_like(tensor) for _ in range(dist.get_world_size(_handle(group))))
    return Task(dist.all_gather(tensor_list, tensor.contiguous(), _handle(group), async_op=not sync_op))


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int = 0,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task:
    """Fill the list of `dst` with everybody's tensor."""
    if _alone(group):
        if gather_list is not None:
            gather_list[:] = [tensor.clone()]
        return Task(None)
    here = dist.get_rank() == dst
    if here and not gather_list:
        assert gather_list is not None
        gather_list.extend(torch.empty_like(tensor) for _ in range(dist.get_world_size(_handle(group))))
    return Task(dist.gather(tensor, gather_list if here else None, dst, _handle(group), async_op=not sync_op))


def scatter(
    tensor: Tensor,
    tensor_list: Sequence[Tensor] | None = None,
    src: int = 0,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task:
    """Give each process its tensor of the list of `src`."""
    if _alone(group):
        if tensor_list:
            tensor.copy_(tensor_list[0])
        return Task(None)
    parts = list(tensor_list or ()) if dist.get_rank() == src else None
    return Task(dist.scatter(tensor, parts, src, _handle(group), async_op=not sync_op))


def reduce_scatter(
    tensor: Tensor,
    tensor_list: Sequence[Tensor],
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task:
    """The sum over the processes of the tensors of their lists that are meant for this one."""
    if _alone(group):
        tensor.copy_(tensor_list[0])
        return Task(None)
    op, count = _summed(op, group)
    work = dist.reduce_scatter(tensor, list(tensor_list), op, _handle(group), async_op=not sync_op and count == 1)
    if count > 1:
        tensor.div_(count)
    return Task(work)


def alltoall(
    out_tensor_list: list[Tensor],
    in_tensor_list: Sequence[Tensor],
    group: Group | None = None,
    sync_op: bool = True,
) -> Task:
    """Send the i-th tensor to process i, and receive one of each."""
    if not out_tensor_list:
        out_tensor_list.extend(torch.empty_like(part) for part in in_tensor_list)
    if _alone(group):
        for out, part in zip(out_tensor_list, in_tensor_list, strict=True):
            out.copy_(part)
        return Task(None)
    parts = [part.contiguous() for part in in_tensor_list]
    return Task(dist.all_to_all(out_tensor_list, parts, _handle(group), async_op=not sync_op))


def alltoall_single(
    out_tensor: Tensor,
    in_tensor: Tensor,
    in_split_sizes: list[int] | None = None,
    out_split_sizes: list[int] | None = None,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task:
    """`alltoall` of the rows of one tensor."""
    if _alone(group):
        out_tensor.copy_(in_tensor)
        return Task(None)
    return Task(
        dist.all_to_all_single(
            *(out_tensor, in_tensor.contiguous(), out_split_sizes, in_split_sizes),
            group=_handle(group),
            async_op=not sync_op,
        )
    )


def isend(tensor: Tensor, dst: int, group: Group | None = None) -> Task:
    """Send to a process, and go on."""
    return Task(dist.isend(tensor.contiguous(), dst, _handle(group)))


def irecv(tensor: Tensor, src: int | None = None, group: Group | None = None) -> Task:
    """Receive from a process, and go on."""
    return Task(dist.irecv(tensor, src, _handle(group)))


def send(tensor: Tensor, dst: int = 0, group: Group | None = None, sync_op: bool = True) -> Task:
    """Send to a process."""
    task = isend(tensor, dst, group)
    if sync_op:
        task.wait()
    return task


def recv(tensor: Tensor, src: int = 0, group: Group | None = None, sync_op: bool = True) -> Task:
    """Receive from a process."""
    task = irecv(tensor, src, group)
    if sync_op:
        task.wait()
    return task


def barrier(group: Group | None = None) -> None:
    """Wait for all processes."""
    if not _alone(group):
        dist.barrier(_handle(group))


def wait(tensor: Tensor, group: Group | None = None, use_calc_stream: bool = True) -> None:
    """Wait until the device has done what was asked of it."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


def all_gather_object(object_list: list[Any], obj: Any, group: Group | None = None) -> None:
    """Fill the list with everybody's object (pickled: only among processes that trust each other)."""
    if _alone(group):
        object_list[:] = [obj]
        return
    found: list[Any] = [None] * dist.get_world_size(_handle(group))
    dist.all_gather_object(found, obj, _handle(group))
    object_list[:] = found


def broadcast_object_list(object_list: list[Any], src: int, group: Group | None = None) -> None:
    """Give everybody the objects of `src` (pickled: only among processes that trust each other)."""
    if not _alone(group):
        dist.broadcast_object_list(object_list, src, _handle(group))


def scatter_object_list(
    out_object_list: list[Any], in_object_list: list[Any] | None = None, src: int = 0, group: Group | None = None
) -> None:
    """Give each process its object of the list of `src` (pickled: only among processes that trust each other)."""
    if _alone(group):
        out_object_list[:] = list(in_object_list or ())[:1]
        return
    found: list[Any] = [None]
    dist.scatter_object_list(found, in_object_list, src, _handle(group))
    out_object_list[:] = found
