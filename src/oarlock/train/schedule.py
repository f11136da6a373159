"""Learning-rate factor by step: warm-up, then constant, cosine or warm-up/stable/decay."""

import math

from oarlock.train.config import ScheduleConfig


def learning_rate_factor(step: int, num_steps: int, schedule: ScheduleConfig) -> float:
    """Factor of the peak learning rate at one optimizer step.

    Formula: warm-up (step / W) times the shape's factor f, with t = steps done before this one and r = final_factor:
    constant f = 1; cosine f = r + (1 - r)(1 + cos(pi (t - W) / (N - W))) / 2;
    wsd f = r + (1 - r) min(1, (N - t) / D), where D = decay_share N.

    Args:
        step: 1-based step, 1 <= step <= num_steps.
        num_steps: N.

    Returns:
        A number in [0, 1]; the first step already moves the weights.
    """
    done = step - 1
    warmup = min(schedule.warmup_steps, num_steps)
    rise = min(1.0, step / warmup) if warmup else 1.0
    final = schedule.final_factor
    if schedule.kind == "constant":
        return rise
    if schedule.kind == "cosine":
        progress = max(0, done - warmup) / max(1, num_steps - warmup)
        return rise * (final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2)
    decay_steps = schedule.decay_share * num_steps
    left = min(1.0, (num_steps - done) / decay_steps) if decay_steps else 1.0
    return rise * (final + (1 - final) * left)
