"""Layers that hold layers."""

from oarlock.paddle.nn.layer.containers import LayerDict, LayerList, ParameterDict, ParameterList, Sequential

ModuleDict, ModuleList = LayerDict, LayerList

__all__ = ["LayerDict", "LayerList", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]
