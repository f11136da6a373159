# fmt: off
"""Made by `oarlock paddle stubs` from the declarations; do not edit."""

# ruff: noqa
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportOverlappingOverload=false

import builtins
import torch
from typing import Any
from oarlock.paddle import Tensor

from oarlock.paddle.declare import api as api
from oarlock.paddle.declare import exports as exports
def istft(x: torch.Tensor = ..., n_fft: builtins.int = ..., hop_length: builtins.int | None = ..., win_length: builtins.int | None = ..., window: torch.Tensor | None = ..., center: builtins.bool = ..., normalized: builtins.bool = ..., onesided: builtins.bool = ..., length: builtins.int | None = ..., return_complex: builtins.bool = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...) -> Tensor: ...
def stft(x: torch.Tensor = ..., n_fft: builtins.int = ..., hop_length: builtins.int | None = ..., win_length: builtins.int | None = ..., window: torch.Tensor | None = ..., center: builtins.bool = ..., pad_mode: builtins.str = ..., normalized: builtins.bool = ..., onesided: builtins.bool | None = ..., name: builtins.str | None = ..., *, out: Any = ..., input: torch.Tensor = ...) -> Tensor: ...
