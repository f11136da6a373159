"""How a step moves the weights, and what is kept of where they were."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How the weights move."""

    name: Literal["adamw", "muon"] = "muon"
    """adamw for all weights, or muon for the blocks' matrices with adamw for the rest."""
    learning_rate: float = 3e-3
    """Peak learning rate of AdamW."""
    muon_learning_rate: float = 0.02
    """Peak learning rate of Muon, in units of the spectral norm of an update."""
    beta1: float = 0.9
    """AdamW: decay of the first moment."""
    beta2: float = 0.95
    """AdamW: decay of the second moment."""
    epsilon: float = 1e-8
    """AdamW: added to the root of the second moment."""
    momentum: float = 0.95
    """Muon: Nesterov momentum."""
    weight_decay: float = 0.0
    """Decoupled decay of matrices (not of norms, biases and embeddings)."""
    clip_norm: float = 1.0
    """Largest global gradient norm; 0 = do not clip."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over the run, as a factor of its peak."""

    kind: Literal["wsd", "cosine", "constant"] = "wsd"
    """wsd: warm-up, stable, linear decay; cosine: warm-up then half a cosine."""
    warmup_steps: int = 20
    """Steps of linear warm-up."""
    decay_share: float = 0.5
    """wsd: share of the steps spent decaying."""
    final_factor: float = 0.0
    """Factor that the decay ends in; the last step lies one step before its end."""


@dataclass(frozen=True, kw_only=True)
class EmaConfig:
    """A moving average of the weights, kept beside them and saved with them (the group `ema` of a checkpoint)."""

    decay: float = 0.0
    """Share of the average that is kept at each step, such as 0.999; 0 = no average."""
    start: Literal["corrected", "weights", "warmup"] = "corrected"
    """corrected: only weights after steps count; weights: the average begins as the weights at the start; warmup: a
    smaller decay at first, (1 + step) / (10 + step)."""
    evaluate: bool = True
    """Evaluate the average instead of the weights."""
    export: bool = True
    """The model exported at the end is the average."""
