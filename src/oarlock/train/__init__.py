"""Training: a client of the parts, one file per idea."""

from oarlock.train.config import TrainConfig, load_config
from oarlock.train.divergence import NonFiniteLossError
from oarlock.train.loop import TrainResult, train

__all__ = ["NonFiniteLossError", "TrainConfig", "TrainResult", "load_config", "train"]
