"""Optimizers by Paddle's formulas, and learning rate schedules in `lr`."""

from oarlock.paddle.optimizer import lr
from oarlock.paddle.optimizer.further import ASGD, LBFGS, NAdam, RAdam, Rprop
from oarlock.paddle.optimizer.kinds import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, Lamb, Momentum, RMSProp
from oarlock.paddle.optimizer.optimizer import Optimizer

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lamb",
    "Momentum",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSProp",
    "Rprop",
    "lr",
]
