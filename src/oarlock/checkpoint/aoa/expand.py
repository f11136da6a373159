"""Expanding the variables and stars of a statement into the ids and names that really occur.

The ids of a statement are the *tuples* that occur together in names of the source (or of the destination, if only its
side has variables), so layers may have different numbers of experts, and ids may have gaps.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping

from oarlock.checkpoint.aoa.errors import AOAError, Place
from oarlock.checkpoint.aoa.names import STAR, Ids, KeyIndex, Template
from oarlock.checkpoint.aoa.syntax import Group, Name, Operand, Sliced, Statement, Transposed
from oarlock.checkpoint.near_miss import near_miss


class UnknownTensor(AOAError):
    """A star on the left that matches nothing: an error, unless the statement is `optional`."""


class Expansion:
    """Expands statements against the names that are known so far.

    Args:
        source: names of the source tensors.
        destination: names of the destination tensors, None if they are not known.
    """

    def __init__(self, source: Iterable[str], destination: Collection[str] | None) -> None:
        self._written: list[str] = []  # names written by statements, which later ones may match
        self._source, self._destination = source, destination
        self._indices: dict[bool, KeyIndex] = {}
        self._stars: dict[tuple[Template, bool], dict[tuple[str, ...], list[str]]] = {}

    def add(self, name: str) -> None:
        """A statement has written this name."""
        self._written.append(name)

    def begin(self) -> None:
        """A statement begins: it sees what the previous ones have written, and not what it writes itself."""
        self._stars.clear()
        if True in self._indices:
            for name in self._written:
                self._indices[True].add(name)
            self._written.clear()

    def instances(self, statement: Statement) -> list[Ids]:
        """The ids for which a statement is executed, in numeric order; AOAError if there are none."""
        left = [name.template for operand in statement.operands for name in names_in(operand)]
        right = [target.template for target in statement.targets]
        variables = list(dict.fromkeys(v for template in (*left, *right) for v in template.variables))
        fixed = {name: values for name, values in statement.where.items() if name != STAR}
        for name in fixed:
            if name not in variables:
                raise AOAError(f"there is no ${name} here", statement.place, hint=near_miss(name, variables))
        free = [name for name in variables if name not in fixed]
        if not free:
            return list(_product(fixed))
        on_left = any(template.variables for template in left)
        side = "left" if on_left else "right"
        leader = next((t for t in (left if on_left else right) if set(free) <= set(t.variables)), None)
        if leader is None:
            raise AOAError(
                f"no name on the {side} has all of {', '.join('$' + name for name in free)}",
                statement.place,
                hint=f"say which ids there are: where {free[-1]} in 0:4",
            )
        place = _place(statement, leader, on_left)
        found = self._occurring(leader, on_left, fixed, place)
        if not statement.optional:
            self._check_found(found, leader, on_left, fixed, place)
        extra = list(_product({name: values for name, values in fixed.items() if name not in leader.variables}))
        return [{**ids, **more} for ids in found for more in extra]

    def names(self, statement: Statement, ids: Ids, template: Template, on_left: bool, place: Place) -> list[str]:
        """The name that a template means under some ids, or the names that its star lists, in numeric order."""
        try:
            if not template.num_stars:
                return [template.filled(ids)]
            if (fixed := statement.where.get(STAR)) is not None:
                return [template.filled({**ids, STAR: digits}) for digits in fixed]
        except ValueError as error:
            raise AOAError(str(error), place, chain(statement, ids)) from None
        if (template, on_left) not in self._stars:
            self._stars[template, on_left] = self._starred(template, on_left, place)
        names = self._stars[template, on_left].get(tuple([ids[name] for name in template.variables]))
        if not names:
            wanted = template.example()
            hint = near_miss(wanted, self._index(on_left, place))
            reason = f"no tensor of the {_side(on_left)} matches {template.filled(ids)!r}"
            raise (UnknownTensor if on_left else AOAError)(reason, place, chain(statement, ids), hint)
        return names

    def _starred(self, template: Template, on_left: bool, place: Place) -> dict[tuple[str, ...], list[str]]:
        groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
        for ids in self._index(on_left, place).matches(template):
            groups.setdefault(tuple([ids[name] for name in template.variables]), []).append(ids)
        return {
            key: [template.filled(ids) for ids in sorted(group, key=lambda ids: int(ids[STAR]))]
            for key, group in groups.items()
        }

    def _occurring(
        self, leader: Template, on_left: bool, fixed: Mapping[str, tuple[str, ...]], place: Place
    ) -> list[dict[str, str]]:
        """The different ids under which the leader is the name of a tensor, among those that `where` allows."""
        allowed = [(name, set(fixed[name])) for name in leader.variables if name in fixed]
        found: dict[tuple[str, ...], dict[str, str]] = {}
        for ids in self._index(on_left, place).matches(leader):
            ids.pop(STAR, None)
            if all(ids[name] in values for name, values in allowed):
                found.setdefault(tuple(ids.values()), ids)
        return sorted(found.values(), key=lambda ids: [int(digits) for digits in ids.values()])

    def _check_found(
        self,
        found: list[dict[str, str]],
        leader: Template,
        on_left: bool,
        fixed: Mapping[str, tuple[str, ...]],
        place: Place,
    ) -> None:
        if not found:
            wanted = leader.example()
            hint = near_miss(wanted, self._index(on_left, place))
            raise AOAError(f"no tensor of the {_side(on_left)} matches", place, hint=hint)
        for name in leader.variables:
            absent = set(fixed.get(name, ())) - {ids[name] for ids in found}
            if absent:
                raise AOAError(f"no tensor of the {_side(on_left)} matches with ${name}={min(absent, key=int)}", place)

    def _index(self, on_left: bool, place: Place) -> KeyIndex:
        if on_left not in self._indices:
            if on_left:
                self._indices[True] = KeyIndex(itertools.chain(self._source, self._written))
                self._written.clear()
            elif self._destination is None:
                raise AOAError(
                    "these names cannot be known: there is no destination",
                    place,
                    hint="say which ids there are: where * in 0:8, or where E in [0, 2]",
                )
            else:
                self._indices[False] = KeyIndex(self._destination)
        return self._indices[on_left]


def names_in(operand: Operand) -> Iterator[Name]:
    """All names of an operand."""
    match operand:
        case Name():
            yield operand
        case Transposed() | Sliced():
            yield from names_in(operand.operand)
        case Group():
            for inner in operand.operands:
                yield from names_in(inner)


def chain(statement: Statement, ids: Ids) -> list[str]:
    """How a statement was expanded, for messages: `with $LAYER_ID=3: a.3, b.3 -> c.3`; empty without ids."""
    if not ids:
        return []
    left = ", ".join(_spelled(name.template, ids) for operand in statement.operands for name in names_in(operand))
    right = ", ".join(_spelled(target.template, ids) for target in statement.targets)
    values = ", ".join(f"${name}={digits}" for name, digits in ids.items())
    return [f"with {values}: {left or '_'} -> {right or '_'}"]


def _product(values: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, str]]:
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def _spelled(template: Template, ids: Ids) -> str:
    try:
        return template.filled(ids)
    except ValueError:  # an offset below 0: the message is about this name
        return template.filled({})


def _side(on_left: bool) -> str:
    return "source" if on_left else "destination"


def _place(statement: Statement, template: Template, on_left: bool) -> Place:
    if on_left:
        names = (name for operand in statement.operands for name in names_in(operand))
        return next(name.place for name in names if name.template == template)
    return next(target.place for target in statement.targets if target.template == template)
