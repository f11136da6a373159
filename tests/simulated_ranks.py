"""Many ranks in one process, each a thread: what they tell each other goes through memory."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from oarlock.ranks import Ranks

T = TypeVar("T")


class _Work:
    def __init__(self, action: Callable[[], None]) -> None:
        self.wait = action


class _Shared:
    def __init__(self, size: int, places: Sequence[str]) -> None:
        self.slots: list[Any] = [None] * size
        self.places = places
        self.barrier = threading.Barrier(size, timeout=10)
        self.ready = threading.Condition()
        self.posted: dict[tuple[int, int], list[Tensor]] = {}


class ThreadRanks(Ranks):
    """One of the threads; counts what it sends."""

    def __init__(self, shared: _Shared, rank: int) -> None:
        self._group, self._shared = None, shared
        self.size, self.rank = len(shared.slots), rank
        self.largest_round = 0

    def _all(self, value: Any) -> list[Any]:
        self._shared.slots[self.rank] = value
        self._shared.barrier.wait()
        values = list(self._shared.slots)
        self._shared.barrier.wait()
        return values

    def gather(self, value: Any) -> list[Any]:
        return [json.loads(text) for text in self._all(json.dumps(value))]

    def all_well(self, well: bool) -> bool:
        return all(self._all(well))

    def exchange(self, outgoing: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        received = [parts[self.rank].clone() for parts in self._all(list(outgoing))]
        assert [len(part) for part in received] == list(sizes)
        return received

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def start(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> Any:
        assert all(t.dtype == torch.uint8 and t.is_contiguous() for t in (*outgoing.values(), *incoming.values()))
        self.largest_round = max(
            self.largest_round, *(sum(map(len, tensors.values())) for tensors in (outgoing, incoming))
        )
        with self._shared.ready:
            for peer, tensor in outgoing.items():
                self._shared.posted.setdefault((self.rank, peer), []).append(tensor.clone())
            self._shared.ready.notify_all()

        def receive(peer: int, tensor: Tensor) -> None:
            with self._shared.ready:
                assert self._shared.ready.wait_for(lambda: self._shared.posted.get((peer, self.rank)), 10)
                sent = self._shared.posted[peer, self.rank].pop(0)
            assert len(sent) == len(tensor)
            tensor.copy_(sent)

        return [_Work(lambda peer=peer, tensor=tensor: receive(peer, tensor)) for peer, tensor in incoming.items()]


def on_ranks(size: int, work: Callable[[ThreadRanks], T]) -> list[T]:
    """What `work` returns on each rank; the first error if one raises."""
    shared = _Shared(size, [])
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadRanks(shared, rank))
        except BaseException as error:
            errors.append(error)
            shared.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    assert not any(shared.posted.values())
    return results
