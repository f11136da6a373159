"""Activations within a budget: keep them, compute them again, or send them to a second tier, as planned and checked."""

from oarlock.memory.offload.apply import Applied
from oarlock.memory.offload.checkpoint import checkpoint
from oarlock.memory.offload.fit import fit
from oarlock.memory.offload.meter import Meter
from oarlock.memory.offload.optimizer import OptimizerTier
from oarlock.memory.offload.plan import Plan, make_plan, parse_budget
from oarlock.memory.offload.profile import Profile, profile
from oarlock.memory.offload.tiers import FileTier, HostTier, PinnedTier, Tier

__all__ = [
    "Applied",
    "FileTier",
    "HostTier",
    "Meter",
    "OptimizerTier",
    "PinnedTier",
    "Plan",
    "Profile",
    "Tier",
    "checkpoint",
    "fit",
    "make_plan",
    "parse_budget",
    "profile",
]
