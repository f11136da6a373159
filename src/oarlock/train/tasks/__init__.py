"""Tasks: pretraining on documents, and post-training on conversations and on preferences."""

from oarlock.train.config import TrainConfig
from oarlock.train.tasks.dpo import DirectPreference
from oarlock.train.tasks.pretrain import Pretrain
from oarlock.train.tasks.sft import SupervisedFineTuning
from oarlock.train.tasks.task import Evaluation, Task, TaskData

__all__ = ["Evaluation", "Task", "TaskData", "choose_task"]


def choose_task(config: TrainConfig) -> Task:
    """The task that `train.task` names."""
    tasks: dict[str, type[Task]] = {"pretrain": Pretrain, "sft": SupervisedFineTuning, "dpo": DirectPreference}
    return tasks[config.train.task](config)
