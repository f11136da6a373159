"""Optimizers by Paddle's formulas, and learning rate schedules in `lr`."""

from oarlock.paddle.optimizer import lr
from oarlock.paddle.optimizer.kinds import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, Lamb, Momentum, RMSProp
from oarlock.paddle.optimizer.optimizer import Optimizer

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lamb", "Momentum", "Optimizer", "RMSProp", "lr"]
