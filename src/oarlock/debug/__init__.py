"""Debugging one can read: what a model did, by names that join its calls, tensors, gradients and backward nodes."""

from oarlock.debug.diff import Difference, Report, compare
from oarlock.debug.trace import Trace, read_records, trace

__all__ = ["Difference", "Report", "Trace", "compare", "read_records", "trace"]
