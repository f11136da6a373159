"""All sections together, and which of their values exclude one another."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oarlock.attention.context_parallel import LEAST_CHUNK
from oarlock.memory import SUFFIXES
from oarlock.memory.offload import parse_budget
from oarlock.train.limits import check_limits
from oarlock.train.sections.data import DataConfig
from oarlock.train.sections.execution import CompileConfig, DebugConfig, MemoryConfig
from oarlock.train.sections.loop import CheckpointConfig, DpoConfig, ParallelConfig, TrainSection
from oarlock.train.sections.model import ModelConfig
from oarlock.train.sections.toml import toml_text
from oarlock.train.sections.updates import EmaConfig, OptimizerConfig, ScheduleConfig


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything a run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainSection = field(default_factory=TrainSection)
    compile: CompileConfig = field(default_factory=CompileConfig)
    dpo: DpoConfig = field(default_factory=DpoConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)

    def __post_init__(self) -> None:
        """Refuse values that no run can use, naming the key."""
        check_limits(self.to_dict())
        if self.train.steps == 0 and self.train.flops == 0:
            raise ValueError("nothing to do: set train.steps, or a budget in train.flops (for example 2e13)")
        if self.memory.record and Path(self.memory.record).suffix not in SUFFIXES:
            raise ValueError(f"memory.record = {self.memory.record!r} must end in one of {', '.join(SUFFIXES)}")
        if self.memory.budget:
            parse_budget(self.memory.budget, of=1 << 40)
            if self.train.activation_checkpointing:
                raise ValueError(
                    "memory.budget chooses itself what is computed again; set train.activation_checkpointing = false"
                )
        if self.compile.cache and not self.train.compile:
            raise ValueError(
                f"compile.cache = {self.compile.cache!r} keeps what train.compile = true compiles; set that, or leave "
                "the cache out"
            )
        if self.train.compile:
            for key, value in {
                "memory.budget": self.memory.budget,
                "memory.record": self.memory.record,
                "debug.errors": self.debug.errors,
            }.items():
                if value:
                    raise ValueError(
                        f"{key} looks at single operations, which compiled blocks do not have; unset it or "
                        "train.compile"
                    )
        shortest = LEAST_CHUNK * self.parallel.context
        if self.parallel.context > 1 and self.data.sequence_length < shortest:
            raise ValueError(
                f"data.sequence_length = {self.data.sequence_length} is too short for {self.parallel.context} ranks; "
                f"make it at least {shortest}, or parallel.context smaller"
            )

    def to_dict(self) -> dict[str, Any]:
        """Nested dict of plain values, in the order of the fields."""
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        """The resolved configuration as TOML that `load_config` reads back to an equal object."""
        return toml_text(self.to_dict())
