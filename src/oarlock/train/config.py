"""The configuration of a training run: typed sections, TOML in, dotted overrides on top, unknown keys refused.

    config = load_config("configs/shakespeare.toml", ["--train.steps", "200"])

The docstring below a field is its help on the command line.
"""

from oarlock.train.sections.data import DataConfig
from oarlock.train.sections.execution import CompileConfig, DebugConfig, MemoryConfig
from oarlock.train.sections.loop import CheckpointConfig, DpoConfig, ParallelConfig, TrainSection
from oarlock.train.sections.model import ModelConfig
from oarlock.train.sections.overrides import print_options
from oarlock.train.sections.reading import config_from_dict, load_config
from oarlock.train.sections.run import TrainConfig
from oarlock.train.sections.updates import EmaConfig, OptimizerConfig, ScheduleConfig

__all__ = [
    "CheckpointConfig",
    "CompileConfig",
    "DataConfig",
    "DebugConfig",
    "DpoConfig",
    "EmaConfig",
    "MemoryConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "ScheduleConfig",
    "TrainConfig",
    "TrainSection",
    "config_from_dict",
    "load_config",
    "print_options",
]
