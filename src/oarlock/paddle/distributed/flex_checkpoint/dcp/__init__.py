"""Distributed checkpoints."""

from oarlock.paddle.distributed.flex_checkpoint.dcp import load_state_dict, save_state_dict, sharded_weight

__all__ = ["load_state_dict", "save_state_dict", "sharded_weight"]
