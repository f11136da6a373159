"""Running a program over relations instead of tensors: statement by statement, once for every set of ids.

A name means the latest value that a statement gave it, else the source tensor. That is Paddle's rule; what it would
silently lose (a value written twice, a source tensor hidden by a target of the same name, ids that match nothing) is
an error here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from oarlock.checkpoint.aoa.algebra import Relation, whole
from oarlock.checkpoint.aoa.attributes import Outputs, steps
from oarlock.checkpoint.aoa.errors import AOAError, Place
from oarlock.checkpoint.aoa.expand import Expansion, UnknownTensor, chain
from oarlock.checkpoint.aoa.macros import Macro, Use, check_arguments
from oarlock.checkpoint.aoa.names import Ids
from oarlock.checkpoint.aoa.syntax import Attribute, Group, Name, Operand, Sliced, Statement, Target, Transposed
from oarlock.checkpoint.near_miss import near_miss

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a tensor before it is read.

    Args:
        shape: global shape.
        dtype: of its elements.
        num_shards: tensor-parallel shards of it; only fused_ffn and fused_qkv_old ask for them.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    num_shards: int = 1

    @staticmethod
    def of(tensor: torch.Tensor, num_shards: int = 1) -> TensorSpec:
        """Shape and dtype of a tensor."""
        return TensorSpec(tuple(tensor.shape), tensor.dtype, num_shards)


@dataclass(frozen=True, slots=True)
class Written:
    """Who wrote a name: for messages and explanations."""

    statement: Statement
    target: Target
    ids: Ids


class Evaluation:
    """The state of a run: what each name means, and what has been read, dropped and kept."""

    def __init__(
        self,
        source: Mapping[str, TensorSpec],
        destination: Mapping[str, TensorSpec] | None,
        macros: Mapping[str, Macro],
    ) -> None:
        self.source, self.destination = source, destination
        self.assigned: dict[str, Relation] = {}
        self.written: dict[str, Written] = {}
        self.fresh: set[str] = set()  # assigned, and not read since
        self.declared: set[str] = set()  # by `x -> x`: an output even if it is read again
        self.used: dict[str, Place | None] = {}  # source tensors, and where they were first read
        self.dropped: dict[str, Place] = {}
        self.kept: dict[str, Place] = {}
        self._macros = macros
        self._expansion = Expansion(source, destination)
        self._statement: Statement
        self._ids: Ids = {}

    def run(self, statement: Statement) -> None:
        """Execute one statement for all its ids."""
        self._statement, self._ids = statement, {}
        pipeline = steps(statement.attributes)
        self._expansion.begin()
        for ids in self._expansion.instances(statement):
            self._ids = ids
            if statement.optional and not self._can_run():
                continue
            if not statement.operands:
                self._keep()
            elif not statement.targets:
                self._drop()
            else:
                self._transform(pipeline)

    # ---- the three kinds of statement

    def _transform(self, pipeline: Sequence[tuple[Attribute, Callable[..., list[Relation]]]]) -> None:
        statement = self._statement
        names = [(name, target) for target in statement.targets for name in self._target_names(target)]
        tensors: list[Relation] = []
        for operand in statement.operands:
            tensors += self._operand(operand)
        listed = len(statement.targets) > 1 or any(t.array or t.template.num_stars for t in statement.targets)
        outputs = Outputs(len(names), listed)
        if statement.macro:
            tensors = self._apply_macro(tensors, len(names))
        elif len(tensors) > 1 and len(names) > 1:
            raise self._error(
                f"{len(tensors)} tensors -> {len(names)}: a statement either joins or splits",
                statement.place,
                hint="join them under a temporary name and split that; or use a variable such as $E instead of *",
            )
        for attribute, step in pipeline:
            tensors = self._checked(lambda step=step, t=tensors: step(t, outputs), attribute.place)
        if len(tensors) != len(names):
            raise self._error(
                f"the left side makes {len(tensors)}, the right side names {len(names)}", statement.place,
                hint="axis=K joins or splits along an existing axis, stack=K along a new one",
            )  # fmt: skip
        for (name, target), tensor in zip(names, tensors, strict=True):
            self._assign(name, tensor, target)

    def _keep(self) -> None:
        for target in self._statement.targets:
            for name in self._target_names(target):
                if self.destination is not None and name not in self.destination:
                    if self._statement.optional:
                        continue
                    raise self._unknown(name, target.place, self.destination, "the destination has no tensor")
                if name in self.assigned:
                    raise self._error(f"{name!r} is kept here and written by another statement", target.place)
                self.kept.setdefault(name, target.place)

    def _drop(self) -> None:
        for operand in self._statement.operands:
            if not isinstance(operand, Name):
                raise self._error("only whole tensors can be dropped", operand.place)
            for name in self._operand_names(operand):
                if name in self.assigned:
                    self._read(name, operand.place)
                elif name in self.source:
                    self.dropped.setdefault(name, operand.place)
                else:
                    raise self._unknown(name, operand.place, self._names_known())

    # ---- reading

    def _operand(self, operand: Operand) -> list[Relation]:
        match operand:
            case Name():
                return [self._read(name, operand.place) for name in self._operand_names(operand)]
            case Transposed():
                return [tensor.permute(()) for tensor in self._operand(operand.operand)]
            case Sliced(inner, slices, place):
                if array := self._array(operand):
                    return [self._read(name, place) for name in array]
                tensors = self._operand(inner)
                return [self._checked(lambda tensor=tensor: _sliced(tensor, slices), place) for tensor in tensors]
            case Group():
                return [self._group(operand)]

    def _group(self, group: Group) -> Relation:
        tensors = [tensor for operand in group.operands for tensor in self._operand(operand)]
        for attribute, step in steps(group.attributes):
            tensors = self._checked(lambda step=step, t=tensors: step(t, Outputs(1, False)), attribute.place)
        if len(tensors) != 1:
            raise self._error(f"{len(tensors)} tensors in parentheses: join them by axis= or stack=", group.place)
        return tensors[0]

    def _read(self, name: str, place: Place) -> Relation:
        if (tensor := self.assigned.get(name)) is not None:
            if name in self.source and name not in self.used and name not in self.dropped:
                raise self._error(
                    f"{name!r} was written above, and is also a source tensor that nothing has read",
                    place,
                    hint=f"to read the source's own, give {name!r} its new value later (through a temporary name); "
                    f"to read the new value, say '{name} -> _' before it is written",
                )
            self.fresh.discard(name)
            return tensor
        if (spec := self.source.get(name)) is None:
            raise self._unknown(name, place, self._names_known())
        self.used.setdefault(name, place)
        return whole(name, spec.shape, spec.dtype)

    def _array(self, operand: Sliced) -> list[str]:
        """The names of Paddle's array `p[a:b]`, or nothing if `p` is a tensor of its own."""
        inner = operand.operand
        match operand.slices:
            case (slice(start=int(first), stop=int(last), step=None),) if (
                isinstance(inner, Name) and not inner.quoted and not inner.template.num_stars and 0 <= first < last
            ):
                base = inner.template.filled(self._ids)
                if not self._is_known(f"{base}_{first}"):
                    return []
                if self._is_known(base):
                    raise self._error(
                        f"{base!r} and '{base}_{first}' both exist", operand.place,
                        hint=f"write \"{base}\"[{first}:{last}] for a part of the one, or name the others one by one",
                    )  # fmt: skip
                names = []
                for index in range(first, last):  # the reader of the first unknown one says so
                    names.append(f"{base}_{index}")
                    if not self._is_known(names[-1]):
                        break
                return names
        return []

    def _apply_macro(self, tensors: list[Relation], num_outputs: int) -> list[Relation]:
        use = self._statement.macro
        assert use is not None
        macro = self._macros[use.name]
        inputs = tuple(self._names_read())
        output = self._target_names(self._statement.targets[0])[0]
        first = self.source.get(inputs[0]) if inputs[0] not in self.assigned else None
        last = self.destination.get(output) if self.destination is not None else None
        call = Use(tensors, num_outputs, inputs, first.num_shards if first else 1, last.num_shards if last else 1)

        def apply() -> list[Relation]:
            check_arguments(use.name, macro, use.arguments)
            return macro(call, **use.arguments)

        shapes = ", ".join(str(tensor.shape) for tensor in tensors)
        step = f"{use.name} of {shapes}, shards {call.source_shards} -> {call.dest_shards}"
        return self._checked(apply, use.place, step)

    # ---- writing

    def _assign(self, name: str, tensor: Relation, target: Target) -> None:
        if name in self.kept:
            raise self._error(f"{name!r} is written here and kept by another statement", target.place)
        statement = self._statement
        if (earlier := self.written.get(name)) is not None:
            lost = name in self.fresh
            rebinds = name in self._names_read()
            is_output = self.destination is not None and name in self.destination
            if lost or (is_output and not rebinds):
                place = earlier.statement.place
                hint = f"by {place.label} {place.line}: {place.excerpt}"
                raise self._error(f"{name!r} has already been written", target.place, hint)
        self.assigned[name] = tensor
        self.written[name] = Written(statement, target, self._ids)
        self.fresh.add(name)
        self._expansion.add(name)
        if len(statement.operands) == 1 and not statement.attributes and not statement.macro:
            operand = statement.operands[0]
            if isinstance(operand, Name) and operand.template == target.template:
                self.declared.add(name)

    # ---- names

    def _operand_names(self, operand: Name) -> list[str]:
        return self._expansion.names(self._statement, self._ids, operand.template, True, operand.place)

    def _target_names(self, target: Target) -> list[str]:
        names = self._expansion.names(self._statement, self._ids, target.template, False, target.place)
        return names if target.array is None else [f"{name}_{index}" for name in names for index in target.array]

    def _names_read(self, operands: Sequence[Operand] | None = None) -> Iterator[str]:
        """All names that the statement reads."""
        for operand in self._statement.operands if operands is None else operands:
            match operand:
                case Name():
                    yield from self._operand_names(operand)
                case Transposed(inner):
                    yield from self._names_read([inner])
                case Sliced(inner):
                    yield from self._array(operand) or self._names_read([inner])
                case Group(inner):
                    yield from self._names_read(inner)

    def _can_run(self) -> bool:
        try:
            return all(self._is_known(name) for name in self._names_read())
        except UnknownTensor:  # a star that matches nothing
            return False

    # ---- errors

    def _is_known(self, name: str) -> bool:
        return name in self.assigned or name in self.source

    def _names_known(self) -> Iterator[str]:
        return itertools.chain(self.source, self.assigned)

    def _checked(self, function: Callable[[], T], place: Place, step: str = "") -> T:
        """A ValueError without a place gets one."""
        try:
            return function()
        except AOAError:
            raise
        except ValueError as error:
            raise AOAError(str(error), place, (*self._chain(), *([step] if step else []))) from None

    def _error(self, reason: str, place: Place, hint: str = "") -> AOAError:
        return AOAError(reason, place, self._chain(), hint)

    def _unknown(
        self, name: str, place: Place, names: Iterator[str] | Mapping[str, object], text: str = ""
    ) -> AOAError:
        hint = near_miss(name, names)
        return AOAError(f"{text or 'there is no tensor'} {name!r}", place, self._chain(), hint)

    def _chain(self) -> list[str]:
        return chain(self._statement, self._ids)


def _sliced(tensor: Relation, slices: Sequence[slice | int]) -> Relation:
    """numpy's basic slicing: an index removes its axis, missing slices are whole."""
    if len(slices) > len(tensor.shape):
        raise ValueError(f"{len(slices)} slices for a tensor of shape {tensor.shape}")
    dim = 0
    for part in slices:
        size = tensor.shape[dim]
        if isinstance(part, int):
            if not -size <= part < size:
                raise ValueError(f"index {part} is outside axis {dim} of shape {tensor.shape}")
            tensor = tensor.slice(dim, part % size, part % size + 1).squeeze(dim)
            continue
        start, stop, step = part.indices(size)
        if max(abs(part.start or 0), abs(part.stop or 0)) > size:
            raise ValueError(f"the slice reaches outside axis {dim} of shape {tensor.shape}")
        tensor = tensor.slice(dim, start, max(start, stop), step)
        dim += 1
    return tensor
