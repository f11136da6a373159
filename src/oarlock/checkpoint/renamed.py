"""A source seen through a program: under other names and in another layout, still unread."""

from oarlock.checkpoint.aoa import AOA, Relation, TensorSpec
from oarlock.checkpoint.derived import Derived, composed
from oarlock.checkpoint.source import TensorSource
from oarlock.checkpoint.stored import StoredTensor


def renamed(source: TensorSource, program: str) -> TensorSource:
    """The tensors that a program makes of a source's; those that no statement reads keep their names.

    Args:
        source: of any format; its tensors may be computed ones.
        program: in the AOA language, from the source's names to the new ones.

    Raises:
        AOAError: the program does not fit.
    """
    specs = {name: TensorSpec(tensor.shape, tensor.dtype) for name, tensor in source.tensors.items()}
    compiled = AOA(program).compile(specs)
    tensors: dict[str, StoredTensor | Derived] = {}
    for name, relation in compiled.tensors.items():
        if name not in compiled.written:
            tensors[name] = source.tensors[name]
            continue
        blocks, stored = [], {}
        for block in relation.blocks:
            assert isinstance(block.source, str), name  # neither padding nor quantised pairs: the caller's program
            read = source.tensors[block.source]
            if isinstance(read, Derived):
                blocks += composed(block, read.relation)
                stored.update(read.stored)
            else:
                blocks.append(block)
                stored[block.source] = read
        tensors[name] = Derived(Relation(relation.shape, relation.dtype, tuple(blocks)), stored)
    return TensorSource(source.label, tensors, source.verify, source.metadata)
