"""Tells when steps have moved away from their plan: moving averages, and no alarm for a single step."""

from __future__ import annotations


class Drift:
    """Follows measured peaks and stalls.

    Args:
        peak: bytes that are planned; stall_seconds, seconds: planned waiting, and length of a step.
        tolerance: relative error of the peak, or share of the step spent waiting beyond the plan, that is too much.
        decay: of the moving averages.
        patience: steps in a row beyond the tolerance before `update` says so; half the tolerance forgets them.
    """

    def __init__(
        self,
        peak: int,
        stall_seconds: float,
        seconds: float,
        *,
        tolerance: float = 0.05,
        decay: float = 0.8,
        patience: int = 3,
    ) -> None:
        self._peak, self._stall, self._seconds = peak, stall_seconds, seconds
        self._tolerance, self._decay, self._patience = tolerance, decay, patience
        self._average: float | None = None
        self._num_beyond = 0

    def update(self, peak: int, stall_seconds: float) -> bool:
        """Whether it is time for a new plan, after a step with these measures."""
        waiting = max(0.0, stall_seconds - self._stall) / self._seconds
        error = max(abs(peak / self._peak - 1), waiting)
        kept = self._decay
        self._average = error if self._average is None else kept * self._average + (1 - kept) * error
        if self._average > self._tolerance:
            self._num_beyond += 1
        elif self._average < self._tolerance / 2:
            self._num_beyond = 0
        return self._num_beyond >= self._patience
