"""Runs steps under a schedule and a hard cap, and tells what they took."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import torch
from torch import nn

from oarlock.memory.offload.meter import Meter
from oarlock.memory.offload.session import Schedule, Session
from oarlock.memory.offload.tiers import Tier
from oarlock.memory.pool import Pool


class Applied:
    """While entered, a model's steps follow a schedule; memory beyond the cap is an `OutOfMemoryError`.

    Args:
        model: any module.
        schedule: see `Session`; None keeps everything.
        cap: bytes of the device that may live at once; None for no cap.
        tier: where to; None if nothing is sent out.
        device: of the model.
        optimizers: whose states count as memory, too.
        min_bytes: smaller storages are kept.
        evict: where the cap is reached, send out what was to be kept.
        pool: whose tensors the model works with; where it cannot meet a request, send out what was to be kept, too.

    Attributes:
        meter: counts the bytes.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        schedule: Schedule | None = None,
        cap: int | None = None,
        tier: Tier | None = None,
        device: torch.device | str = "cpu",
        optimizers: Iterable[torch.optim.Optimizer] = (),
        min_bytes: int = 1 << 14,
        evict: bool = True,
        pool: Pool | None = None,
    ) -> None:
        self._model, self._optimizers = model, list(optimizers)
        self.meter = Meter(device, cap=cap)
        self._session = Session(
            model,
            device=torch.device(device),
            schedule=schedule,
            tier=tier,
            min_bytes=min_bytes,
            meter=self.meter if evict else None,
            pool=pool if evict else None,
        )
        self._stack = ExitStack()

    @property
    def peak(self) -> int:
        """Bytes at most since the beginning, or since `new_step`."""
        return self.meter.peak

    @property
    def stall_seconds(self) -> float:
        """Waiting for the second tier, since the beginning or `new_step`."""
        return self._session.stalled

    @property
    def evicted_bytes(self) -> int:
        """Sent out because the cap was reached, not because it was planned; since the beginning or `new_step`."""
        return self._session.evicted_bytes

    def new_step(self) -> None:
        """Measures begin anew."""
        self.meter.reset_peak()
        self._session.stalled, self._session.evicted_bytes = 0.0, 0

    def __enter__(self) -> Self:
        self.meter.watch(self._model, *self._optimizers)
        self.meter.reset_peak()
        with ExitStack() as stack:  # leaves nothing behind where the second cannot begin
            stack.enter_context(self.meter)
            stack.enter_context(self._session)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
