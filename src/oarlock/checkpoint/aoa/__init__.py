"""AOA: a language that says how the tensors of one checkpoint are made from those of another. See docs/aoa.md."""

from oarlock.checkpoint.aoa.algebra import Relation
from oarlock.checkpoint.aoa.blocks import Atom, Block, Constant
from oarlock.checkpoint.aoa.errors import AOAError
from oarlock.checkpoint.aoa.evaluate import TensorSpec
from oarlock.checkpoint.aoa.execute import fill, materialize
from oarlock.checkpoint.aoa.macros import Macro, Use
from oarlock.checkpoint.aoa.program import AOA, Program
from oarlock.checkpoint.aoa.quantized import Computed
from oarlock.checkpoint.aoa.values import Add, Cast, Divide, Multiply, ValueOp

__all__ = [
    "AOA",
    "AOAError",
    "Add",
    "Atom",
    "Block",
    "Cast",
    "Computed",
    "Constant",
    "Divide",
    "Macro",
    "Multiply",
    "Program",
    "Relation",
    "TensorSpec",
    "Use",
    "ValueOp",
    "fill",
    "materialize",
]
