"""Debugging one can read: what a model did, by names that join its calls, tensors, gradients and backward nodes."""

from oarlock.debug.diff import Difference, Report, compare
from oarlock.debug.errors import Errors, errors
from oarlock.debug.graph import Edge, Graph, Node, graph_of
from oarlock.debug.loglevel import loglevel, set_level
from oarlock.debug.nonfinite import Finding, NonFinite, find_nonfinite
from oarlock.debug.operators import check_op
from oarlock.debug.recorder import Recorder
from oarlock.debug.trace import Trace, read_records, trace, trace_files

__all__ = [
    "Difference",
    "Edge",
    "Errors",
    "Finding",
    "Graph",
    "Node",
    "NonFinite",
    "Recorder",
    "Report",
    "Trace",
    "check_op",
    "compare",
    "errors",
    "find_nonfinite",
    "graph_of",
    "loglevel",
    "read_records",
    "set_level",
    "trace",
    "trace_files",
]
