# ruff: noqa: F401 - importing the topics declares the functions
"""`paddle.vision.ops`: boxes, regions of images and deformable convolution."""

from oarlock.paddle.declare import exports as _exports
from oarlock.paddle.vision.ops import boxes as _boxes
from oarlock.paddle.vision.ops import deformable as _deformable
from oarlock.paddle.vision.ops import proposals as _proposals
from oarlock.paddle.vision.ops import regions as _regions
from oarlock.paddle.vision.ops.layers import DeformConv2D, PSRoIPool, RoIAlign, RoIPool

globals().update(_exports(_boxes.AT))
