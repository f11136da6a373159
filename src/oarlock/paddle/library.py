"""`paddle.library`: operators of one's own, by torch.library."""

from torch.library import CustomOpDef, custom_op, register_fake  # pyright: ignore[reportPrivateImportUsage]

__all__ = ["CustomOpDef", "custom_op", "register_fake"]
