"""The layers of losses under the name of their file in Paddle."""

from oarlock.paddle.nn.layer.functions import CLASSES as _CLASSES

globals().update({name: layer for name, layer in _CLASSES.items() if name.endswith("Loss")})
