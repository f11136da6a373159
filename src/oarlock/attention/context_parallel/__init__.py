"""Context parallelism: one sequence over several ranks, for any column mask."""

from oarlock.attention.context_parallel.attend import attend_context_parallel
from oarlock.attention.context_parallel.plan import LEAST_CHUNK, ContextPlan, plan_context_parallel

__all__ = ["LEAST_CHUNK", "ContextPlan", "attend_context_parallel", "plan_context_parallel"]
