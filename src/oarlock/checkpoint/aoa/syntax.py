"""What a program consists of once it is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oarlock.checkpoint.aoa.errors import Place
from oarlock.checkpoint.aoa.names import Template

Value = int | float | str | tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Name:
    """A tensor, or several where the template has a star. Only a name in quotes is never an array."""

    template: Template
    quoted: bool
    place: Place


@dataclass(frozen=True, slots=True)
class Transposed:
    """operand^T: all axes reversed."""

    operand: Operand
    place: Place


@dataclass(frozen=True, slots=True)
class Sliced:
    """operand[...]: a part of a tensor, or of Paddle's array `p[a:b]`, which is p_a, ..., p_{b-1}."""

    operand: Operand
    slices: tuple[slice | int, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Group:
    """(operands, attributes): one tensor made of several."""

    operands: tuple[Operand, ...]
    attributes: tuple[Attribute, ...]
    place: Place


Operand = Name | Transposed | Sliced | Group


@dataclass(frozen=True, slots=True)
class Target:
    """A name to write; with `array`, the names name_a, ..., name_{b-1}."""

    template: Template
    array: range | None
    place: Place


@dataclass(frozen=True, slots=True)
class Attribute:
    """key=value."""

    key: str
    value: Value
    place: Place


@dataclass(frozen=True, slots=True)
class MacroUse:
    """A registered macro with its arguments."""

    name: str
    arguments: Mapping[str, Value]
    place: Place


@dataclass(frozen=True, slots=True)
class Statement:
    """operands -> targets. No operands: `_ -> targets`; no targets: `operands -> _`."""

    operands: tuple[Operand, ...]
    targets: tuple[Target, ...]
    attributes: tuple[Attribute, ...]
    macro: MacroUse | None
    where: Mapping[str, tuple[str, ...]]
    optional: bool
    place: Place
