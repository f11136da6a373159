"""AOA programs: compiled once from shapes alone, then asked which blocks fill which box."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from torch import Tensor

from oarlock.checkpoint.aoa import explain, reverse
from oarlock.checkpoint.aoa.algebra import Relation, whole
from oarlock.checkpoint.aoa.blocks import Block
from oarlock.checkpoint.aoa.errors import AOAError
from oarlock.checkpoint.aoa.evaluate import Evaluation, TensorSpec, Written
from oarlock.checkpoint.aoa.execute import materialize
from oarlock.checkpoint.aoa.expand import chain
from oarlock.checkpoint.aoa.grammar import parse
from oarlock.checkpoint.aoa.macros import MACROS, Macro, arguments_of
from oarlock.checkpoint.aoa.quantized import Computed
from oarlock.checkpoint.aoa.values import State, applies
from oarlock.checkpoint.dtypes import dtype_name
from oarlock.checkpoint.near_miss import near_miss


class AOA:
    """A program in the AOA language: how the tensors of a destination are made from those of a source.

    Args:
        statements: text with one statement a line; or a list of statements, which is taken as Paddle takes it.
        macros: further macros by name; see oarlock.checkpoint.aoa.macros.

    Raises:
        AOAError: the text departs from the grammar.

    Source: the language is PaddlePaddle's (paddle.distributed.flex_checkpoint.aoa), extended; see docs/aoa.md.
    """

    def __init__(self, statements: str | Sequence[str] = "", macros: Mapping[str, Macro] | None = None) -> None:
        self._macros = {**MACROS, **(macros or {})}
        self.text = statements if isinstance(statements, str) else "\n".join(statements)
        self.statements = parse(statements, {name: arguments_of(macro) for name, macro in self._macros.items()})

    def compile(
        self,
        source: Mapping[str, TensorSpec],
        destination: Mapping[str, TensorSpec] | None = None,
        *,
        cast: bool = False,
        missing: Literal["error", "keep"] = "error",
        absent: Literal["error", "skip"] = "error",
        unwanted: Literal["error", "drop"] = "error",
    ) -> Program:
        """Work out what every destination tensor consists of; no tensor data is needed.

        A destination tensor that no statement writes is the source tensor of the same name.

        Args:
            source: name -> shape and dtype of all tensors of the checkpoint.
            destination: name -> shape and dtype of all tensors to fill. None exports: the outputs are the source
                tensors that no statement reads or drops, and every written name that no later statement reads (or
                that a statement `x -> x` declares).
            cast: whether a dtype may change without a statement that says so.
            missing: "keep" lets destination tensors without a source keep their values.
            absent: "skip" skips statements that read a tensor which the source has not, as if they were `optional`.
            unwanted: "drop" allows names that are written and neither read nor in the destination, of which a rank
                may need a part only.

        Raises:
            AOAError: names, shapes or dtypes that do not fit, something written twice or lost; with the statement.
        """
        run = Evaluation(source, destination, self._macros)
        for statement in self.statements:
            run.run(statement if absent == "error" else replace(statement, optional=True))
        for name, place in run.dropped.items():
            if name in run.used:
                reader = run.used[name]
                assert reader is not None
                reason = f"{name!r} is dropped here, but {reader.label} {reader.line} reads it"
                raise AOAError(reason, place, hint=reader.excerpt)
        if destination is None:
            tensors, kept = _exported(run), []
        else:
            tensors, kept = _filled(run, destination, cast, missing, unwanted)
        for name, relation in tensors.items():
            assert sum([block.volume for block in relation.blocks]) == relation.num_elements, name
        used = set(run.used)
        return Program(
            text=self.text,
            source=dict(source),
            tensors=tensors,
            kept_keys=frozenset((*run.kept, *kept)),
            dropped=frozenset(run.dropped),
            unread=frozenset(key for key in source if key not in used),
            written=run.written,
        )


@dataclass(frozen=True, eq=False)
class Program:
    """What every tensor of a destination consists of.

    Attributes:
        text: the program's text.
        source: the source tensors it was compiled for.
        tensors: destination name -> shape, dtype and blocks.
        kept_keys: destination names that keep the values they have.
        dropped: source names that a statement drops.
        unread: source names that nothing reads, dropped ones included.
        written: the statement that wrote a name, where one did.
        notes: choices that were made, in words: of a reversed program, which of several equal tensors is read.
        reversed: whether it was derived by reversing another.
    """

    text: str
    source: Mapping[str, TensorSpec]
    tensors: Mapping[str, Relation]
    kept_keys: frozenset[str]
    dropped: frozenset[str]
    unread: frozenset[str]
    written: Mapping[str, Written]
    notes: tuple[str, ...] = ()
    reversed: bool = False

    def query(self, key: str, offset: Sequence[int], size: Sequence[int], state: State = "param") -> tuple[Block, ...]:
        """The blocks that fill a box of a destination tensor. Together they write each of its elements once.

        Args:
            key: of the destination.
            offset, size: the box; destination coordinates of the blocks count from its corner.
            state: "optim" for an optimizer state of the tensor, which follows its geometry but not its values;
                "master" for a master copy, which follows its arithmetic too, but not its casts.

        Raises:
            KeyError: no such tensor, or one that keeps its values; ValueError: a box outside the shape, or the
            optimizer state of a tensor that is computed from quantised ones.
        """
        blocks = self._relation(key).query(offset, size)
        if state == "optim" and any(isinstance(block.source, Computed) for block in blocks):
            raise ValueError(f"{key!r} is computed from quantised tensors: it has no optimizer state to follow")
        return tuple([_for_state(block, state) for block in blocks])

    def apply(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """New tensors for the whole destination, made from source tensors in memory.

        Args:
            tensors: the source by name, with the shapes and dtypes that the program was compiled for.
        """
        for name, spec in self.source.items():
            found = tensors.get(name)
            if name not in self.unread and (found is None or tuple(found.shape) != tuple(spec.shape)):
                got = "it is missing" if found is None else f"its shape is {tuple(found.shape)}"
                raise ValueError(f"{name!r} was compiled for shape {tuple(spec.shape)}; {got}")

        def read(key: str, offset: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
            return tensors[key][tuple([slice(o, o + s) for o, s in zip(offset, size, strict=True)])]

        return {name: materialize(relation, read) for name, relation in self.tensors.items()}

    def sources(self, key: str) -> tuple[str, ...]:
        """The source tensors that a destination tensor is made of, inputs of computed ones included."""
        return tuple(dict.fromkeys(_sources(self._relation(key).blocks)))

    def kept(self, key: str) -> bool:
        """Whether a destination tensor keeps the values it has."""
        return key in self.kept_keys

    def reverse(self) -> Program:
        """The program from destination to source, derived from the blocks: their two sides are exchanged.

        Where several destination elements hold one source element, one is chosen and `notes` says which. Source
        tensors of which no element reached the destination are `kept`.

        Raises:
            ValueError: a source tensor of which only a part can be recovered, a dequantised one, or `mul=0`.
        """
        return reverse.reverse(self)

    def explain(self, key: str) -> str:
        """In words: where the elements of a destination tensor come from."""
        if key in self.kept_keys:
            return f"{key}: keeps the values it has"
        return explain.explain(key, self._relation(key), self._origin(key), self.notes)

    @cached_property
    def digest(self) -> str:
        """sha256 of the program and all shapes and dtypes: equal for equal compiled programs on all ranks."""
        digest = hashlib.sha256(self.text.encode())
        for part in (self.source, self.tensors):
            for name in sorted(part):
                digest.update(f"\0{name}\0{part[name].shape}\0{part[name].dtype}".encode())
            digest.update(b"\1")
        for spec in self.source.values():
            digest.update(bytes(str(spec.num_shards), "ascii"))
        return digest.hexdigest()

    def _relation(self, key: str) -> Relation:
        if key not in self.tensors:
            if key in self.kept_keys:
                raise KeyError(f"{key!r} keeps its values: no blocks fill it")
            raise KeyError(f"no destination tensor {key!r}; {near_miss(key, self.tensors)}")
        return self.tensors[key]

    def _origin(self, key: str) -> str:
        if self.reversed:
            return "reversing the program"
        if (written := self.written.get(key)) is None:
            return "no statement: the source tensor of the same name"
        place = written.statement.place
        return "; ".join([f"{place.label} {place.line}: {place.excerpt}", *chain(written.statement, written.ids)])


def _exported(run: Evaluation) -> dict[str, Relation]:
    """Source tensors that nothing used or dropped, and what was written and not used up."""
    outputs = {}
    for name, spec in run.source.items():
        if name not in run.used and name not in run.dropped and name not in run.assigned:
            outputs[name] = whole(name, spec.shape, spec.dtype)
            run.used[name] = None
    for name, tensor in run.assigned.items():
        if name in run.fresh or name in run.declared:
            outputs[name] = tensor
    return outputs


def _filled(
    run: Evaluation, destination: Mapping[str, TensorSpec], cast: bool, missing: str, unwanted: str
) -> tuple[dict[str, Relation], list[str]]:
    """Every destination tensor, and the names of those for which there is none."""
    tensors: dict[str, Relation] = {}
    absent: list[str] = []
    for name, spec in destination.items():
        if name in run.kept:
            continue
        relation = run.assigned.get(name)
        if relation is None:
            if name not in run.source or name in run.dropped:
                absent.append(name)
                continue
            same = run.source[name]
            relation = whole(name, same.shape, same.dtype)
            run.used.setdefault(name, None)
        tensors[name] = _fitted(run, name, relation, spec, cast)
    stray = sorted(name for name in run.fresh if name not in destination)
    if stray and unwanted == "error":
        raise _stray_error(run, stray[0], destination)
    if absent and missing == "error":
        raise _absent_error(run, absent, stray)
    if stray:
        needed = {key for relation in tensors.values() for key in _sources(relation.blocks)}
        for key in {key for name in stray for key in _sources(run.assigned[name].blocks)} - needed:
            del run.used[key]
    return tensors, absent


def _fitted(run: Evaluation, name: str, relation: Relation, spec: TensorSpec, cast: bool) -> Relation:
    """The relation, checked against the destination's shape and dtype."""
    wanted = tuple(spec.shape)
    if relation.shape != wanted:
        hint = "transposed they agree: a^T -> b" if relation.shape == wanted[::-1] else ""
        raise _misfit(run, name, f"{name!r} would be {relation.shape}, the destination has {wanted}", hint)
    if relation.dtype != spec.dtype and not cast:
        found, expected = dtype_name(relation.dtype), dtype_name(spec.dtype)
        hint = f"add dtype={expected} to the statement, or compile with cast=True"
        raise _misfit(run, name, f"{name!r} would be {found}, the destination has {expected}", hint)
    try:
        return relation.cast(spec.dtype)
    except ValueError as error:
        raise _misfit(run, name, f"{name!r}: {error}", "") from None


def _misfit(run: Evaluation, name: str, reason: str, hint: str) -> AOAError:
    """An error at the statement that wrote a tensor, if one did."""
    if (writer := run.written.get(name)) is None:
        return AOAError(reason, hint=hint)
    return AOAError(reason, writer.target.place, chain(writer.statement, writer.ids), hint)


def _stray_error(run: Evaluation, name: str, destination: Mapping[str, TensorSpec]) -> AOAError:
    writer = run.written[name]
    return AOAError(
        f"{name!r} is written, but it is no tensor of the destination and no later statement reads it",
        writer.target.place,
        chain(writer.statement, writer.ids),
        near_miss(name, destination),
    )


def _absent_error(run: Evaluation, absent: Sequence[str], stray: Sequence[str]) -> AOAError:
    """Names the first destination tensor without a source."""
    name = absent[0]
    more = f", and {len(absent) - 1} more" if len(absent) > 1 else ""
    if name in run.dropped:
        place = run.dropped[name]
        return AOAError(f"the destination needs {name!r}{more}, which is dropped here", place)
    near = near_miss(name, (*run.source, *stray))
    hint = f"write it, or keep its values by '_ -> {name}'" + (f"; {near}" if near else "")
    return AOAError(f"the destination's {name!r}{more} has no source", hint=hint)


def _for_state(block: Block, state: State) -> Block:
    return block.with_ops(tuple([op for op in block.ops if applies(op, state)]))


def _sources(blocks: Iterable[Block]) -> Iterable[str]:
    for block in blocks:
        if isinstance(block.source, str):
            yield block.source
        elif isinstance(block.source, Computed):
            for relation in block.source.inputs:
                yield from _sources(relation.blocks)
