"""The loop, its task, its ranks, and what it keeps."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TrainSection:
    """The loop."""

    task: Literal["pretrain", "sft", "dpo"] = "pretrain"
    """What is learned: pretrain (all text of documents), sft (the assistant's answers in conversations), dpo (which of
    two answers is better)."""
    out: str = "runs/default"
    """Folder of the run: config.toml, metrics.jsonl, checkpoints, hf, report.html, tb."""
    steps: int = 0
    """Optimizer steps; 0 = as many as `flops` pays for."""
    flops: float = 0.0
    """Budget in model FLOPs (forward and backward) when steps is 0."""
    batch_size: int = 1
    """Sequences per rank and micro-batch."""
    accumulation: int = 1
    """Micro-batches per optimizer step."""
    seed: int = 0
    """Seed of the weights and of the order of the data."""
    balance_rate: float = 1e-3
    """Mixture of experts: step of the router's balancing bias after each optimizer step."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """bf16: matmuls under autocast, weights and optimizer state stay fp32."""
    device: str = "auto"
    """auto = cuda if present, else cpu."""
    threads: int = 0
    """CPU threads; 0 = leave as torch chose."""
    activation_checkpointing: bool = False
    """Recompute each block in the backward pass."""
    compile: bool = False
    """Compile each block with torch.compile; see the section [compile]."""
    eval_every: int = 100
    """Steps between evaluations (also before step 1 and at the end); 0 = only those two."""
    log_every: int = 10
    """Steps between printed lines when there is no terminal."""
    gc_every: int = 100
    """Python's garbage collector runs only every so many steps; 0 = leave it automatic."""
    tensorboard: bool = True
    """Write TensorBoard event files beside metrics.jsonl."""
    sample: str = "auto"
    """Prompt continued at the end of the run; auto = the first words of a held-out document, empty = none."""


@dataclass(frozen=True, kw_only=True)
class DpoConfig:
    """Direct preference optimisation, for task dpo."""

    beta: float = 0.1
    """How dear it is to leave the starting model: the margin is beta times the gain of log-probability."""
    label_smoothing: float = 0.0
    """Probability that a label is wrong, in [0, 0.5)."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is kept."""

    every: int = 100
    """Steps between checkpoints; 0 = only at the end."""
    keep_last: int = 2
    """Checkpoints kept; 0 = all."""
    background: bool = False
    """Go on training while a checkpoint is written, from a copy in host memory."""


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """The mesh under torchrun."""

    data: int = -1
    """Ranks along the data axis, which share out the sequences; -1 = all that the context axis leaves."""
    context: int = 1
    """Ranks along the context axis, which share out the tokens of each sequence."""
    timeout_seconds: int = 600
    """A collective that waits longer ends the run."""
