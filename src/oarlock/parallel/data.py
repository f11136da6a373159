"""Data parallelism by hand: replicas start equal, average their gradients, and can prove that they stayed equal.

All functions take the group of the replicas, such as `mesh.group("data")`; None means all processes if
torch.distributed is initialised and this process alone otherwise. Alone, they return at once.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from oarlock.digest import digest64
from oarlock.ranks import JobError, communication_device

Group = dist.ProcessGroup | None

_BUCKET_BYTES = 1 << 20  # below it, a message costs gloo more than two copies do
_MAX_IN_FLIGHT = 2


def group_size(group: Group = None) -> int:
    """Number of processes in a group."""
    return dist.get_world_size(group) if dist.is_initialized() else 1


@torch.no_grad()
def reduce_gradients(
    parameters: Iterable[Tensor], group: Group = None, *, mean: bool = True, bucket_bytes: int = _BUCKET_BYTES
) -> None:
    """Replace every gradient by its mean (or sum) over the group; call it after backward on all ranks.

    Gradients travel in the order of `parameters`, large ones in place and small ones in flat buckets, so every run
    adds in the same order. A parameter that has a gradient on some ranks only counts as zero on the others; without
    one on any rank it keeps none.

    Args:
        parameters: the same on every rank, in the same order; those that require no gradient are skipped.
        mean: divide by the size of the group; use False where the loss is already divided by the global token count.
        bucket_bytes: small gradients are sent together until they fill this many bytes.

    Raises:
        TypeError: a sparse gradient.
    """
    num_ranks = group_size(group)
    if num_ranks == 1:
        return
    pending: deque[_Bucket] = deque()
    for grads in _fill(_agreed_gradients(parameters, group), bucket_bytes):
        pending.append(_Bucket(grads, group))
        if len(pending) > _MAX_IN_FLIGHT:
            pending.popleft().finish(num_ranks if mean else 1)
    while pending:
        pending.popleft().finish(num_ranks if mean else 1)


class _Bucket:
    """Gradients on their way: a flat copy of several, or a single one in place if it is contiguous."""

    def __init__(self, grads: list[Tensor], group: Group) -> None:
        self._grads = grads
        self._flat = torch.cat([g.reshape(-1) for g in grads]) if len(grads) > 1 else grads[0].contiguous()
        self._work = dist.all_reduce(self._flat, group=group, async_op=True)

    def finish(self, divisor: int) -> None:
        assert self._work is not None
        self._work.wait()
        if divisor > 1:
            self._flat.div_(divisor)
        if self._flat is not self._grads[0]:
            parts = self._flat.view(-1).split([g.numel() for g in self._grads])
            for grad, part in zip(self._grads, parts, strict=True):
                grad.copy_(part.view(grad.shape))


def _agreed_gradients(parameters: Iterable[Tensor], group: Group) -> list[Tensor]:
    """The gradients that any rank has, in order; a rank that lacks one gets zeros for it."""
    trained = [p for p in parameters if p.requires_grad]
    for p in trained:
        if p.grad is not None and p.grad.layout != torch.strided:
            raise TypeError(f"a sparse gradient (shape {tuple(p.shape)}) cannot be reduced; use dense embeddings")
    flags = torch.tensor([p.grad is not None for p in trained], dtype=torch.uint8).to(communication_device(group))
    dist.all_reduce(flags, dist.ReduceOp.MAX, group=group)
    present = [p for p, flag in zip(trained, flags.tolist(), strict=True) if flag]
    for p in present:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    return [p.grad for p in present if p.grad is not None]


def _fill(tensors: Iterable[Tensor], bucket_bytes: int) -> Iterable[list[Tensor]]:
    """Large tensors alone, small ones of one dtype and device together, in order."""
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], int]] = {}
    for tensor in tensors:
        num_bytes = tensor.numel() * tensor.element_size()
        if num_bytes >= bucket_bytes:
            yield [tensor]
            continue
        kind = (tensor.dtype, tensor.device)
        members, size = open_buckets.pop(kind, ([], 0))
        members.append(tensor)
        if size + num_bytes >= bucket_bytes:
            yield members
        else:
            open_buckets[kind] = (members, size + num_bytes)
    yield from (members for members, _ in open_buckets.values())


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[Tensor], group: Group = None, *, source: int = 0) -> None:
    """Overwrite the tensors of all ranks with those of one rank, bit for bit (parameters and buffers, any dtype).

    Args:
        tensors: same shapes, dtypes and order on every rank.
        source: rank within the group whose values all get.
    """
    if group_size(group) == 1:
        return
    for tensor in tensors:
        if tensor.numel():
            contiguous = tensor.detach().contiguous()
            data = contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8)
            dist.broadcast(data, group=group or dist.group.WORLD, group_src=source)
            if contiguous.data_ptr() != tensor.data_ptr():
                tensor.copy_(contiguous)


def check_replicas(named_tensors: Iterable[tuple[str, Tensor]], group: Group = None) -> None:
    """Raise unless all ranks hold the same tensors, bit for bit; compares digests, so little is sent.

    Args:
        named_tensors: as from module.named_parameters().

    Raises:
        JobError: names the tensors that differ and the ranks that disagree with rank 0 of the group.
    """
    num_ranks = group_size(group)
    if num_ranks == 1:
        return
    names, digests = [], []
    for name, tensor in named_tensors:
        names.append(name)
        digests.append(_signed(digest64(tensor)))
    listing = _signed(digest64(torch.frombuffer(bytearray("\n".join(names).encode() + b"\n"), dtype=torch.uint8)))
    device = communication_device(group)
    listings = _all_gather(torch.tensor([listing], device=device), num_ranks, group)
    others = [rank for rank in range(num_ranks) if not torch.equal(listings[rank], listings[0])]
    if others:
        raise JobError(f"ranks {others} have tensors of other names than rank 0; this rank has {len(names)} tensors")
    gathered = _all_gather(torch.tensor(digests, device=device, dtype=torch.int64), num_ranks, group)
    table = torch.stack(gathered).cpu()
    differs = table != table[0]
    if bool(differs.any()):
        ranks = differs.any(1).nonzero().flatten().tolist()
        wrong = [names[i] for i in differs.any(0).nonzero().flatten().tolist()]
        listed = ", ".join(wrong[:5]) + (", ..." if len(wrong) > 5 else "")
        raise JobError(f"{len(wrong)} of {len(names)} tensors on ranks {ranks} differ from rank 0's: {listed}")


def sum_scalars(values: Sequence[float], group: Group = None) -> list[float]:
    """Sum each of some numbers over the ranks in float64 (losses, token counts); as many on every rank."""
    total = torch.tensor([float(value) for value in values], dtype=torch.float64)
    if group_size(group) > 1:
        total = total.to(communication_device(group))
        dist.all_reduce(total, group=group)
    return total.tolist()


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _all_gather(tensor: Tensor, num_ranks: int, group: Group) -> list[Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(num_ranks)]
    dist.all_gather(parts, tensor, group=group)
    return parts
