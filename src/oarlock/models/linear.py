"""The linear layer of decoders."""

from torch import nn


class Linear(nn.Linear):
    """y = x Wᵀ + b, whose weights stay as they were allocated until `Decoder.initialize` or a checkpoint fills them.

    torch's own initialisation of every layer would take most of the time in which a model is outlined on meta.
    """

    def reset_parameters(self) -> None:
        """Nothing."""
