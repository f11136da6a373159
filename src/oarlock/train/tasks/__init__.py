"""Tasks: pretraining on documents, and post-training on conversations and on preferences."""

from oarlock.train.config import TrainConfig
from oarlock.train.tasks.pretrain import Pretrain
from oarlock.train.tasks.sft import SupervisedFineTuning
from oarlock.train.tasks.task import Evaluation, Task, TaskData

__all__ = ["Evaluation", "Task", "TaskData", "choose_task"]


def choose_task(config: TrainConfig) -> Task:
    """The task that `train.task` names."""
    return {"pretrain": Pretrain, "sft": SupervisedFineTuning}[config.train.task](config)
