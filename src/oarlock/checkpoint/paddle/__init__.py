"""Files of PaddlePaddle: `.pdparams` and `.pdopt`, and directories of FlexCheckpoint. See docs/paddle_files.md."""

from oarlock.checkpoint.paddle.flex import flex_metadata, open_flex_checkpoint
from oarlock.checkpoint.paddle.state_file import is_pickle, open_state_file

__all__ = ["flex_metadata", "is_pickle", "open_flex_checkpoint", "open_state_file"]
