"""Checkpoints: complete and verified, or not there at all. The format is described in docs/checkpoints.md."""

from oarlock.checkpoint.background import PendingSave, finish_saves
from oarlock.checkpoint.directory import list_checkpoints
from oarlock.checkpoint.formats import open_tensors
from oarlock.checkpoint.huggingface import open_safetensors
from oarlock.checkpoint.loading import LoadReport
from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.merge import iter_full
from oarlock.checkpoint.optimizer import load_optimizer, optimizer_state, optimizer_tensors
from oarlock.checkpoint.reader import Checkpoint, latest_checkpoint, load_checkpoint
from oarlock.checkpoint.resharding import ReshardPlan, ReshardReport, plan_reshard, reshard
from oarlock.checkpoint.rng import capture_rng, restore_rng
from oarlock.checkpoint.shards import Shard
from oarlock.checkpoint.source import TensorSource
from oarlock.checkpoint.writer import save_checkpoint

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "LoadReport",
    "PendingSave",
    "ReshardPlan",
    "ReshardReport",
    "Shard",
    "TensorSource",
    "capture_rng",
    "finish_saves",
    "iter_full",
    "latest_checkpoint",
    "list_checkpoints",
    "load_checkpoint",
    "load_optimizer",
    "open_safetensors",
    "open_tensors",
    "optimizer_state",
    "optimizer_tensors",
    "plan_reshard",
    "reshard",
    "restore_rng",
    "save_checkpoint",
]
