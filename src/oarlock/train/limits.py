"""Values that no run can use, refused by key before anything is read or written."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_THREADS = max(64, 4 * (os.cpu_count() or 1))  # OpenMP crashes where it cannot start them all
_LARGEST_INTEGER = 2**31 - 1


@dataclass(frozen=True)
class Limit:
    """An interval; `above` and `below` leave out its ends."""

    low: float = 0
    high: float = math.inf
    above: bool = False
    below: bool = False

    def problem(self, value: float) -> str:
        """What is wrong with a value; empty if nothing is."""
        if not math.isfinite(value):
            return "must be a finite number"
        too_low = value <= self.low if self.above else value < self.low
        too_high = value >= self.high if self.below else value > self.high
        if not (too_low or too_high):
            return ""
        if self.high <= 1:
            return f"must lie in {'(' if self.above else '['}{self.low:g}, {self.high:g}{')' if self.below else ']'}"
        if too_high:
            return f"must be at most {self.high}"
        if self.low == 0:
            return "must be positive" if self.above else "must not be negative"
        return f"must be at least {self.low:g}"


_AT_LEAST_ONE = Limit(1, _LARGEST_INTEGER)
_SHARE, _DECAY = Limit(0, 1), Limit(0, 1, below=True)
_POSITIVE = Limit(0, above=True)
_DEFAULTS = {int: Limit(0, _LARGEST_INTEGER), float: Limit(0)}
_LIMITS: dict[str, Limit] = {
    **dict.fromkeys(
        (
            "model.hidden_size",
            "model.intermediate_size",
            "model.num_hidden_layers",
            "model.num_attention_heads",
            "model.kv_lora_rank",
            "model.qk_rope_head_dim",
            "model.num_experts_per_tok",
            "model.moe_intermediate_size",
            "data.vocab_size",
            "data.sequence_length",
            "train.batch_size",
            "train.accumulation",
            "parallel.context",
            "parallel.timeout_seconds",
            "memory.events",
        ),
        _AT_LEAST_ONE,
    ),
    "model.rope_theta": _POSITIVE,
    "data.validation_share": Limit(0, 1, above=True, below=True),
    "optimizer.beta1": _DECAY,
    "optimizer.beta2": _DECAY,
    "optimizer.epsilon": _POSITIVE,
    "optimizer.momentum": _DECAY,
    "ema.decay": _DECAY,
    "schedule.decay_share": _SHARE,
    "schedule.final_factor": _SHARE,
    "dpo.beta": _POSITIVE,
    "dpo.label_smoothing": Limit(0, 0.5, below=True),
    "train.seed": Limit(0, 2**63 - 1),
    "train.threads": Limit(0, MAX_THREADS),
    "parallel.data": Limit(-1, _LARGEST_INTEGER),
    "compile.max_breaks": Limit(-1, _LARGEST_INTEGER),
}


def check_limits(values: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a number outside its limits: by default integers of at least 0 and finite numbers of at least 0.

    Args:
        values: section -> key -> value.

    Raises:
        ValueError: the key, its value and what it must be.
    """
    for section, content in values.items():
        for name, value in content.items():
            limit = _LIMITS.get(f"{section}.{name}") or _DEFAULTS.get(type(value))
            if limit is not None and (problem := limit.problem(value)):
                raise ValueError(f"{section}.{name} = {value}: {problem}")
