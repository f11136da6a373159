"""Rates that rise, or fall and rise again: warm-up, cosines, cycles; and one that follows a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from oarlock.paddle.optimizer.lr.schedule import LRScheduler


class LinearWarmup(LRScheduler):
    """From start_lr to end_lr in warmup_steps, then a number or another schedule from its beginning."""

    keys = ("last_epoch", "last_lr", "LinearWarmup_LR")

    def __init__(
        self, learning_rate: float | LRScheduler, warmup_steps: int, start_lr: float, end_lr: float,
        last_epoch: int = -1, verbose: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(learning_rate, (int, float, LRScheduler)):
            raise TypeError(f"the type of learning_rate should be [int, float or LRScheduler], got {learning_rate}")
        if end_lr <= start_lr:
            raise ValueError(f"end_lr {end_lr} must be greater than start_lr {start_lr}")
        self.learning_rate, self.warmup_steps, self.start_lr, self.end_lr = (
            learning_rate,
            warmup_steps,
            start_lr,
            end_lr,
        )
        super().__init__(start_lr, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate."""
        if self.last_epoch < self.warmup_steps:
            return (self.end_lr - self.start_lr) * self.last_epoch / self.warmup_steps + self.start_lr
        if isinstance(self.learning_rate, LRScheduler):
            self.learning_rate.step(self.last_epoch - self.warmup_steps)
            return self.learning_rate()
        return float(self.learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, and the schedule behind it."""
        state = super().state_dict()
        if isinstance(self.learning_rate, LRScheduler):
            state["LinearWarmup_LR"] = self.learning_rate.state_dict()
        return state

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().set_state_dict(state_dict)
        if isinstance(self.learning_rate, LRScheduler) and "LinearWarmup_LR" in state_dict:
            self.learning_rate.set_state_dict(state_dict["LinearWarmup_LR"])

    set_dict = set_state_dict


class CosineAnnealingDecay(LRScheduler):
    """A half cosine from base to eta_min over T_max, and back. Source: Loshchilov and Hutter, 2017."""

    def __init__(
        self, learning_rate: float, T_max: int, eta_min: float = 0, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        self.T_max, self.eta_min = T_max, float(eta_min)
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate, from the one before."""
        epoch, half = self.last_epoch, self.T_max
        if epoch == 0:
            return self.base_lr
        if (epoch - 1 - half) % (2 * half) == 0:
            return self.last_lr + (self.base_lr - self.eta_min) * (1 - math.cos(math.pi / half)) / 2
        above = 1 + math.cos(math.pi * epoch / half)
        return above / (1 + math.cos(math.pi * (epoch - 1) / half)) * (self.last_lr - self.eta_min) + self.eta_min

    def _get_closed_form_lr(self) -> float:
        return self.eta_min + (self.base_lr - self.eta_min) * (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2


class CosineAnnealingWarmRestarts(LRScheduler):
    """A half cosine over T_0 epochs, then again over T_mult times as many. Source: Loshchilov and Hutter, 2017."""

    keys = ("last_epoch", "last_lr", "T_cur", "T_i")

    def __init__(
        self, learning_rate: float, T_0: int, T_mult: int = 1, eta_min: float = 0, last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:  # fmt: skip
        if T_0 <= 0 or T_mult < 1:
            raise ValueError(f"Expected positive integer T_0 and T_mult >= 1, but got {T_0} and {T_mult}")
        self.T_0, self.T_mult, self.eta_min, self.T_i, self.T_cur = T_0, T_mult, eta_min, T_0, last_epoch
        super().__init__(learning_rate, last_epoch, verbose)

    def step(self, epoch: float | None = None) -> None:  # type: ignore[override]
        """To the next epoch, or to a given one, which may be a fraction."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        else:
            self.T_i, self.T_cur = self.T_0, epoch  # type: ignore[assignment]
            while self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        self.last_epoch = math.floor(epoch)
        self.last_lr = self.get_lr()

    def get_lr(self) -> float:
        """The rate."""
        return self.eta_min + (self.base_lr - self.eta_min) * (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2


class LinearLR(LRScheduler):
    """base times a factor that goes from start_factor to end_factor in total_steps."""

    def __init__(
        self, learning_rate: float, total_steps: int, start_factor: float = 1.0 / 3, end_factor: float = 1.0,
        last_epoch: int = -1, verbose: bool = False,
    ) -> None:  # fmt: skip
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1 or total_steps <= 0:
            raise ValueError(f"start_factor {start_factor}, end_factor {end_factor}, total_steps {total_steps}")
        self.total_steps, self.start_factor, self.end_factor = total_steps, start_factor, end_factor
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate."""
        share = min(self.last_epoch, self.total_steps) / self.total_steps
        return self.base_lr * (self.start_factor + (self.end_factor - self.start_factor) * share)


class OneCycleLR(LRScheduler):
    """Up from max/divide_factor to max, and down to end. Source: Smith and Topin, 2019."""

    def __init__(
        self, max_learning_rate: float, total_steps: int, divide_factor: float = 25.0,
        end_learning_rate: float = 0.0001, phase_pct: float = 0.3, anneal_strategy: str = "cos",
        three_phase: bool = False, last_epoch: int = -1, verbose: bool = False,
    ) -> None:  # fmt: skip
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"'anneal_strategy' must by one of 'cos' or 'linear', but received {anneal_strategy}")
        if total_steps <= 0 or not 0 <= phase_pct <= 1:
            raise ValueError(f"total_steps {total_steps} must be positive, phase_pct {phase_pct} in [0, 1]")
        first = max_learning_rate / float(divide_factor)
        self.total_steps, self._cosine = total_steps, anneal_strategy == "cos"
        if three_phase:
            if phase_pct >= 0.5:
                raise ValueError("When three_phase is True, 'phase_pct' must be less than 0.5")
            self._ends = [
                0,
                phase_pct * total_steps - 1,
                2 * phase_pct * total_steps - 2,
                total_steps - 1,
                total_steps - 1,
            ]
            self._rates = [first, max_learning_rate, first, end_learning_rate]
        else:
            self._ends = [0, phase_pct * total_steps - 1, total_steps - 1, total_steps - 1]
            self._rates = [first, max_learning_rate, end_learning_rate]
        super().__init__(first, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate.

        Raises:
            ValueError: beyond the last step.
        """
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"Tried to step {step} times. However the number of total steps is {self.total_steps}")
        for i, (stop, start) in enumerate(zip(self._ends[1:], self._ends, strict=False)):
            if step <= stop or i == len(self._rates) - 1:
                i = min(i, len(self._rates) - 2)
                start, stop = self._ends[i], self._ends[i + 1]
                share = (step - start) / (stop - start)
                a, b = self._rates[i], self._rates[i + 1]
                return b + (a - b) / 2 * (1 + math.cos(math.pi * share)) if self._cosine else (b - a) * share + a
        raise AssertionError


class CyclicLR(LRScheduler):
    """Up and down between base and max. Source: Smith, 2017."""

    def __init__(
        self, base_learning_rate: float, max_learning_rate: float, step_size_up: int, step_size_down: int | None = None,
        mode: str = "triangular", exp_gamma: float = 1.0, scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle", last_epoch: int = -1, verbose: bool = False,
    ) -> None:  # fmt: skip
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError(f"mode = {mode!r}: triangular, triangular2 or exp_range")
        down = step_size_up if step_size_down is None else step_size_down
        self.cycle_size = float(step_size_up + down)
        self.step_up_pct = step_size_up / self.cycle_size
        self.max_lr, self.amplitude = float(max_learning_rate), max_learning_rate - base_learning_rate
        if scale_fn is not None:
            self.scale_fn, self.scale_mode = scale_fn, scale_mode
        elif mode == "exp_range":
            self.scale_fn, self.scale_mode = (lambda x: exp_gamma**x), "iterations"
        else:
            halves = mode == "triangular2"
            self.scale_fn, self.scale_mode = (lambda x: 1 / (2.0 ** (x - 1)) if halves else 1.0), "cycle"
        super().__init__(base_learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate."""
        cycle = 1 + self.last_epoch // self.cycle_size
        position = 1.0 + self.last_epoch / self.cycle_size - cycle
        if position <= self.step_up_pct:
            share = position / self.step_up_pct
        else:
            share = (1 - position) / (1 - self.step_up_pct)
        at = cycle if self.scale_mode == "cycle" else self.last_epoch
        return self.base_lr + self.amplitude * share * self.scale_fn(at)


class ReduceOnPlateau(LRScheduler):
    """Times `factor` where a metric has not become better for `patience` epochs; `step(metric)`."""

    keys = ("cooldown_counter", "best", "num_bad_epochs", "last_epoch", "last_lr")

    def __init__(
        self, learning_rate: float, mode: str = "min", factor: float = 0.1, patience: int = 10,
        threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0, min_lr: float = 0,
        epsilon: float = 1e-8, verbose: bool = False,
    ) -> None:  # fmt: skip
        if mode not in ("min", "max"):
            raise ValueError(f"mode: {mode} is unknown!")
        if factor >= 1.0:
            raise ValueError("new_lr = origin_lr * gamma and gamma should be < 1.0.")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode: {threshold_mode} is unknown!")
        self.mode, self.factor, self.patience, self.threshold = mode, factor, patience, threshold
        self.threshold_mode, self.cooldown, self.min_lr, self.epsilon = threshold_mode, cooldown, min_lr, epsilon
        self.cooldown_counter, self.best, self.num_bad_epochs = 0, None, 0
        self.base_lr = self.last_lr = float(learning_rate)
        self.last_epoch, self.verbose = 0, verbose

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Say how good it is now."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        value = float(metrics.item()) if hasattr(metrics, "item") else float(metrics)
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            return
        if self.best is None or self._is_better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            lower = max(self.last_lr * self.factor, self.min_lr)
            if self.last_lr - lower > self.epsilon:
                self.last_lr = lower

    def _is_better(self, value: float, best: float) -> bool:
        margin = best * self.threshold if self.threshold_mode == "rel" else self.threshold
        return value < best - margin if self.mode == "min" else value > best + margin

    def get_lr(self) -> float:
        """The rate."""
        return self.last_lr
