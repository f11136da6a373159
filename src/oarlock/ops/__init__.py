"""The operations a decoder is made of; each has a plain `*_reference` beside it."""

from oarlock.ops.activation import clamped_swiglu, clamped_swiglu_reference, swiglu, swiglu_reference
from oarlock.ops.cross_entropy import linear_cross_entropy, linear_cross_entropy_reference
from oarlock.ops.dispatch import DispatchPlan, combine, dispatch, experts_reference, grouped_matmul, plan_dispatch
from oarlock.ops.norm import add_rms_norm, rms_norm, rms_norm_reference
from oarlock.ops.rotary import (
    ROPE_TYPES,
    norm_rope,
    rope,
    rope_frequencies,
    rope_magnitude,
    rope_reference,
    rope_tables,
    yarn_magnitude,
)
from oarlock.ops.routing import Routing, balance_loss, balanced_bias, check_groups, route

__all__ = [
    "ROPE_TYPES",
    "DispatchPlan",
    "Routing",
    "add_rms_norm",
    "balance_loss",
    "balanced_bias",
    "check_groups",
    "clamped_swiglu",
    "clamped_swiglu_reference",
    "combine",
    "dispatch",
    "experts_reference",
    "grouped_matmul",
    "linear_cross_entropy",
    "linear_cross_entropy_reference",
    "norm_rope",
    "plan_dispatch",
    "rms_norm",
    "rms_norm_reference",
    "rope",
    "rope_frequencies",
    "rope_magnitude",
    "rope_reference",
    "rope_tables",
    "route",
    "swiglu",
    "swiglu_reference",
    "yarn_magnitude",
]
