"""Files of PaddlePaddle: `.pdparams` and `.pdopt`, and directories of FlexCheckpoint. See docs/paddle_files.md."""

from oarlock.checkpoint.paddle.flex import flex_metadata, open_flex_checkpoint
from oarlock.checkpoint.paddle.optimizer import adamw_states
from oarlock.checkpoint.paddle.pickling import save_state_file
from oarlock.checkpoint.paddle.state_file import is_pickle, load_state_file, open_state_file, state_files

__all__ = [
    "adamw_states",
    "flex_metadata",
    "is_pickle",
    "load_state_file",
    "open_flex_checkpoint",
    "open_state_file",
    "save_state_file",
    "state_files",
]
