"""Names with variables, and the tensors that they match.

`layers.$LAYER_ID.w$J+1` has two variables; a variable stands for a run of digits, and `$J+1` for the number after it.
`experts.*.w` lists all tensors with digits in place of the star, in numeric order.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

STAR = "*"
Ids = Mapping[str, str]
"""Variable -> its digits, as they stand in the matched name."""

_DIGITS = re.compile("([0-9]+)")


class Variable(NamedTuple):
    """`$name+offset`; the star is the variable named `*`."""

    name: str
    offset: int = 0

    def __str__(self) -> str:
        return STAR if self.name == STAR else f"${self.name}" + (f"{self.offset:+d}" if self.offset else "")


@dataclass(frozen=True)
class Template:
    """A name in parts: literal text and variables."""

    parts: tuple[str | Variable, ...]

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The variables in order of appearance, without the star."""
        names = (part.name for part in self.parts if isinstance(part, Variable) and part.name != STAR)
        return tuple(dict.fromkeys(names))

    @cached_property
    def num_stars(self) -> int:
        return sum(isinstance(part, Variable) and part.name == STAR for part in self.parts)

    @property
    def is_ambiguous(self) -> bool:
        """Whether a variable touches a digit or another variable, so that nobody could say where it ends."""
        return re.search("\0[0-9\0]|[0-9]\0", self._marked()) is not None

    def filled(self, ids: Ids) -> str:
        """The name with digits in place of all variables that have a value; ValueError if an offset leads below 0."""
        return "".join(
            [
                part if isinstance(part, str)
                else shifted(ids[part.name], part.offset) if part.name in ids
                else str(part)
                for part in self.parts
            ]
        )  # fmt: skip

    def example(self) -> str:
        """A name like those that the template stands for: for near misses."""
        return "".join([part if isinstance(part, str) else "0" for part in self.parts])

    def _marked(self) -> str:
        return "".join(part if isinstance(part, str) else "\0" for part in self.parts)

    def skeleton(self) -> tuple[tuple[str, ...], list[str | Variable]]:
        """The text around runs of digits and variables, and these: literal digits or a variable."""
        pieces = re.split("([0-9]+|\0)", self._marked())
        variables = iter([part for part in self.parts if isinstance(part, Variable)])
        return tuple(pieces[::2]), [next(variables) if piece == "\0" else piece for piece in pieces[1::2]]


class KeyIndex:
    """Names by skeleton, the text around their runs of digits, so that a template is matched without a scan."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_skeleton: dict[tuple[str, ...], dict[str, list[str]]] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        pieces = _DIGITS.split(name)
        self._by_skeleton.setdefault(tuple(pieces[::2]), {})[name] = pieces[1::2]

    def matches(self, template: Template) -> Iterator[dict[str, str]]:
        """The ids, the star's included, under which the template is the name of an indexed tensor."""
        skeleton, slots = template.skeleton()
        for digits in self._by_skeleton.get(skeleton, {}).values():
            ids: dict[str, str] = {}
            for slot, run in zip(slots, digits, strict=True):
                if isinstance(slot, str):
                    if slot != run:
                        break
                elif int(run) < slot.offset or ids.setdefault(slot.name, value := shifted(run, -slot.offset)) != value:
                    break
            else:
                yield ids

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._by_skeleton.values())


def shifted(digits: str, offset: int) -> str:
    """The number plus an offset, as wide as before if it began with 0; ValueError below 0."""
    if not offset:
        return digits
    if int(digits) + offset < 0:
        raise ValueError(f"{digits}{offset:+d} is below 0")
    return str(int(digits) + offset).zfill(len(digits) if digits.startswith("0") else 0)
