"""The grammar of AOA: text -> statements. What the statements mean is in evaluate.py.

program    = { statement | "#" comment }          one per line or ";"; a line that ends in , -> ( [ = goes on
statement  = operands "->" targets [ "," attributes ] [ "where" binding { "," binding } ]
operands   = "_" | operand { "," operand }
operand    = ( name | "(" operands [ "," attributes ] ")" ) { "^T" | "[" slice { "," slice } "]" }
targets    = "_" | target { "," target }          target = name [ "[" int ":" int "]" ]
name       = STRING | characters among letters, digits, _ . - / @ and $VARIABLE[+-INT], ${VARIABLE[+-INT]}, *
slice      = INT | [ INT ] ":" [ INT ] [ ":" INT ]
attributes = attribute { "," attribute }          attribute = KEY "=" value | MACRO [ "(" arguments ")" ] | "optional"
binding    = ( VARIABLE | "*" ) "in" ( INT ":" INT | "[" INT { "," INT } "]" )
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from oarlock.checkpoint.aoa.errors import AOAError, Place
from oarlock.checkpoint.aoa.names import STAR, Template, Variable
from oarlock.checkpoint.aoa.syntax import (
    Attribute,
    Group,
    MacroUse,
    Name,
    Operand,
    Sliced,
    Statement,
    Target,
    Transposed,
    Value,
)
from oarlock.checkpoint.near_miss import near_miss

LAYOUT = ("axis", "sizes", "stack", "permute", "rearrange", "reshape", "pad")
VALUES = ("dtype", "src_dtype", "dst_dtype", "add", "mul", "only")

_MOST_IDS = 1 << 20
"""Of a variable, or names of an array: no model has more, and a slip of the pen must not fill the memory."""

_MOST_NESTED = 12  # the stack holds so many of each in each other

_NAME = re.compile(r"(?:[\w./*@]|-(?!>)|\$\{[^}\s]*\}|\$[A-Za-z_]\w*(?:[+-][0-9]+)?|\$)+")
_PART = re.compile(
    r"\$\{(?P<braced>[A-Za-z_]\w*)(?P<braced_offset>[+-][0-9]+)?\}"
    r"|\$(?P<known>LAYER_ID_OFFSET|LAYER_ID|EXPERT_ID)(?![A-Za-z0-9])(?P<known_offset>[+-][0-9]+)?"  # _ may follow
    r"|\$(?P<free>[A-Za-z_]\w*)(?P<free_offset>[+-][0-9]+)?"
    r"|(?P<star>\*)|(?P<literal>[^$*]+)|(?P<wrong>\$)"
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INT = re.compile(r"-?[0-9]+")
_WORD = re.compile(r"[A-Za-z_]\w*")
_STRING = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_WHERE = re.compile(r"where\s+\$?(\w+|\*)\s+in\b")
_VOID = re.compile(r"_(?:(?![\w./*@$-])|(?=->))")
_BLANK = re.compile(r"(?:[^\S\n]|#[^\n]*)*")
_BLANK_LINES = re.compile(r"(?:\s|#[^\n]*)*")


def parse(program: str | Sequence[str], macros: Mapping[str, Collection[str]]) -> list[Statement]:
    """All statements of a program.

    Args:
        program: text, one statement a line; or a list as Paddle takes it: in each string, line ends are blanks and
            statements need no separator.
        macros: name -> names of its arguments.

    Raises:
        AOAError: where the text departs from the grammar.
    """
    if isinstance(program, str):
        return _Parser(program, "line", macros, lines=True).statements()
    statements: list[Statement] = []
    for number, text in enumerate(program, 1):
        found = _Parser(text, f"statement {number}, line", macros, lines=False).statements()
        if not found:
            raise AOAError(f"statement {number} of the list is empty")
        statements += found
    return statements


class _Parser:
    """Recursive descent over the characters of one text; `_at` is always at the next character that is no blank."""

    def __init__(self, text: str, label: str, macros: Mapping[str, Collection[str]], lines: bool) -> None:
        self._text, self._label, self._macros = text, label, macros
        self._blank = _BLANK if lines else _BLANK_LINES
        self._lines = lines
        self._at = 0
        self._end = 0  # of the last token
        self._depth = 0  # of parentheses

    def statements(self) -> list[Statement]:
        found = []
        while True:
            self._skip(_BLANK_LINES)
            while self._text.startswith(";", self._at):
                self._at += 1
                self._skip(_BLANK_LINES)
            if self._at == len(self._text):
                return found
            found.append(self._statement())
            if self._lines and self._at < len(self._text) and self._text[self._at] not in "\n;":
                raise self._error("expected ',' or the end of the line")

    def _statement(self) -> Statement:
        start = self._at
        operands: tuple[Operand, ...] = ()
        if not self._void():
            operands = self._operands(stop="->")[0]
        self._expect("->")
        targets, attributes, macro, optional = self._right_side()
        where = self._where()
        place = Place(self._text, start, self._end, self._label)
        if not operands and not targets:
            raise AOAError("'_ -> _' says nothing", place)
        if attributes and not (operands and targets):
            raise AOAError("a tensor that is dropped or kept takes no attributes", attributes[0].place)
        return Statement(operands, targets, attributes, macro, where, optional, place)

    def _operands(self, stop: str) -> tuple[tuple[Operand, ...], tuple[Attribute, ...]]:
        """Operands up to `stop`; in parentheses attributes may follow."""
        operands = [self._operand()]
        attributes: list[Attribute] = []
        while self._take(","):
            if stop == ")" and self._attribute_follows():
                attributes.append(self._attribute())
            elif attributes:
                raise self._error("operands come before attributes")
            else:
                operands.append(self._operand())
        return tuple(operands), tuple(attributes)

    def _operand(self) -> Operand:
        start = self._at
        operand: Operand
        if self._take("("):
            self._depth += 1
            if self._depth > _MOST_NESTED:
                raise self._error_at_last(f"more than {_MOST_NESTED} parentheses in each other")
            operands, attributes = self._operands(stop=")")
            self._expect(")")
            self._depth -= 1
            operand = Group(operands, attributes, self._since(start))
        else:
            operand = self._name(left=True)
        for _ in range(_MOST_NESTED):
            if self._take("^T"):
                operand = Transposed(operand, self._since(start))
            elif self._take("["):
                operand = Sliced(operand, self._slices(), self._since(start))
            else:
                return operand
        raise self._error_at_last(f"more than {_MOST_NESTED} transpositions and slices of one operand")

    def _slices(self) -> tuple[slice | int, ...]:
        slices: list[slice | int] = []
        while True:
            bounds: list[int | None] = [self._int() if self._peek(_INT) else None]
            while len(bounds) < 3 and self._take(":"):
                bounds.append(self._int() if self._peek(_INT) else None)
            if bounds == [None]:
                raise self._error("expected an index or a slice such as 2:8 or ::2")
            if len(bounds) == 3 and bounds[2] is not None and bounds[2] < 1:
                raise self._error_at_last(f"a step of {bounds[2]}: steps are at least 1, torch has no others")
            slices.append(bounds[0] if len(bounds) == 1 and bounds[0] is not None else slice(*bounds))
            if not self._take(","):
                self._expect("]")
                return tuple(slices)

    def _right_side(self) -> tuple[tuple[Target, ...], tuple[Attribute, ...], MacroUse | None, bool]:
        """Everything from the targets to the last attribute: which is which shows in what follows each word."""
        targets: list[Target] = []
        attributes: list[Attribute] = []
        macro, place = "", self._here(0)
        optional = False
        if not self._void():
            targets.append(self._target())
        while self._take(","):
            if self._attribute_follows():
                attributes.append(self._attribute())
            elif self._flag("optional"):
                optional = True
            elif name := self._macro_name():
                if macro:
                    raise self._error_at_last(f"{name} after {macro}: a statement has one macro", len(name))
                macro, place = name, self._last(len(name))
                attributes += self._arguments()
            elif attributes or macro or not targets:
                words = (*LAYOUT, *VALUES, *self._macros, "optional")
                raise self._error("expected an attribute such as axis=0", near_miss(self._word_here(), words))
            else:
                targets.append(self._target())
        own = self._macros[macro] if macro else ()
        for attribute in attributes:
            if attribute.key not in (*LAYOUT, *VALUES, *own):
                raise self._stray(attribute, macro, targets)
        arguments = {attribute.key: attribute.value for attribute in attributes if attribute.key in own}
        use = MacroUse(macro, arguments, place) if macro else None
        return tuple(targets), tuple(a for a in attributes if a.key not in own), use, optional

    def _arguments(self) -> list[Attribute]:
        """A macro's arguments in parentheses, if there are any."""
        arguments: list[Attribute] = []
        if self._take("("):
            while not self._take(")"):
                arguments.append(self._attribute())
                if not self._take(","):
                    self._expect(")")
                    break
        return arguments

    def _stray(self, attribute: Attribute, macro: str, targets: Sequence[Target]) -> AOAError:
        if macro:
            hint = near_miss(attribute.key, self._macros[macro])
            return AOAError(f"{attribute.key!r} is no argument of {macro}", attribute.place, hint=hint)
        like = [near_miss(target.place.excerpt, self._macros) for target in targets]  # a misspelt macro
        return AOAError(f"{attribute.key!r} needs its macro", attribute.place, hint="".join(like))

    def _target(self) -> Target:
        start = self._at
        name = self._name(left=False)
        if self._text.startswith("^T", self._at):
            raise AOAError(
                "a target cannot be transposed",
                self._here(2),
                hint="transpose the other side: a^T -> b says the same as a -> b^T would",
            )
        if not self._take("["):
            return Target(name.template, None, name.place)
        slices = self._slices()
        match slices:
            case (slice(start=int(first), stop=int(last), step=None),) if 0 <= first < last <= first + _MOST_IDS:
                return Target(name.template, range(first, last), self._since(start))
        raise AOAError(
            "a target cannot be a part of a tensor",
            self._since(start),
            hint="name[a:b] on this side lists the tensors name_a ... name_(b-1); join parts with axis= instead",
        )

    def _name(self, left: bool) -> Name:
        start = self._at
        if token := self._token(_STRING):
            return Name(Template((token[1:-1],)), True, self._since(start))
        if not (token := self._token(_NAME)):
            raise self._error("expected the name of a tensor", hint="put names with other characters into quotes")
        parts: list[str | Variable] = []
        for match in _PART.finditer(token):
            kind, found = match.lastgroup, match.groupdict()
            if kind == "wrong":
                raise AOAError("a $ without the name of a variable", self._here(1, start + match.start()))
            if kind == "literal":
                parts.append(match[0])
            elif kind == "star":
                parts.append(Variable(STAR))
            else:
                name = found["braced"] or found["known"] or found["free"]
                offset = int(found["braced_offset"] or found["known_offset"] or found["free_offset"] or 0)
                if name == "LAYER_ID_OFFSET" and not left:
                    offset -= 1
                parts.append(Variable(name, offset))
        template = Template(tuple(parts))
        if template.num_stars > 1:
            raise AOAError(
                "more than one * in a name", self._since(start), hint="use variables: e.$I.w.$J, with where I in 0:8"
            )
        if template.is_ambiguous:
            raise AOAError("a variable touches a digit or another variable", self._since(start))
        return Name(template, False, self._since(start))

    def _attribute(self) -> Attribute:
        start = self._at
        key = self._token(_WORD)
        known = {*LAYOUT, *VALUES, *(argument for arguments in self._macros.values() for argument in arguments)}
        if key not in known:
            hint = near_miss(key, known) or f"known: {', '.join((*LAYOUT, *VALUES))}"
            raise AOAError(f"there is no attribute {key!r}", self._since(start), hint=hint)
        self._expect("=")
        value = self._value()
        return Attribute(key, value, self._since(start))

    def _value(self) -> Value:
        self._skip(_BLANK_LINES)
        if token := self._token(_STRING):
            inner = token[1:-1].strip()
            if inner.startswith("["):  # Paddle writes lists as strings
                items = re.split(r"\s*,\s*", inner.strip("[] \t")) if inner.strip("[] \t") else []
                if not (inner.endswith("]") and all(_INT.fullmatch(item) for item in items)):
                    raise self._error_at_last("expected a list of integers such as '[1, 0]'", len(token))
                return tuple(int(item) for item in items)
            return inner
        if self._take("["):
            items = []
            while not self._take("]"):
                items.append(self._value())
                if not self._take(","):
                    self._expect("]")
                    break
            return tuple(items)
        if token := self._token(_NUMBER):
            return int(token) if _INT.fullmatch(token.removeprefix("+")) else float(token)
        if token := self._token(_WORD):
            return token
        raise self._error("expected a value: a number, a word, a string or a list")

    def _where(self) -> dict[str, tuple[str, ...]]:
        bindings: dict[str, tuple[str, ...]] = {}
        if not self._peek(_WHERE):
            return bindings
        self._token(_WORD)
        while True:
            self._take("$")
            name = self._token(_WORD) or ("*" if self._take("*") else "")
            if not name or self._token(_WORD) != "in":
                raise self._error("expected a binding such as L in 0:4")
            if self._take("["):
                ids = []
                while not self._take("]"):
                    ids.append(self._natural())
                    if not self._take(","):
                        self._expect("]")
                        break
            else:
                first = self._natural()
                self._expect(":")
                ids = range(first, self._natural())
            if not ids:
                raise self._error_at_last(f"{name} ranges over nothing")
            if len(ids) > _MOST_IDS:
                raise self._error_at_last(f"{name} ranges over {len(ids)} numbers, more than {_MOST_IDS}")
            bindings[name] = tuple(str(n) for n in ids)
            if not self._take(","):
                return bindings

    # ---- tokens

    def _skip(self, blank: re.Pattern[str]) -> None:
        if match := blank.match(self._text, self._at):
            self._at = match.end()

    def _token(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = self._end = match.end()
        self._skip(self._blank)
        return match[0]

    def _take(self, symbol: str) -> bool:
        if not self._text.startswith(symbol, self._at):
            return False
        self._at = self._end = self._at + len(symbol)
        self._skip(_BLANK_LINES if symbol in (",", "->", "(", "[", "=") else self._blank)
        return True

    def _expect(self, symbol: str) -> None:
        if not self._take(symbol):
            raise self._error(f"expected '{symbol}'")

    def _peek(self, pattern: re.Pattern[str]) -> bool:
        return pattern.match(self._text, self._at) is not None

    def _int(self) -> int:
        if not (token := self._token(_INT)):
            raise self._error("expected an integer")
        return int(token)

    def _natural(self) -> int:
        if (value := self._int()) < 0:
            raise self._error_at_last(f"{value} is below 0")
        return value

    def _void(self) -> bool:
        return bool(self._token(_VOID))

    def _attribute_follows(self) -> bool:
        return self._peek(re.compile(r"[A-Za-z_]\w*\s*=(?!=)"))

    def _flag(self, word: str) -> bool:
        return bool(self._token(re.compile(rf"{re.escape(word)}(?![\w./*@$-])")))

    def _macro_name(self) -> str:
        return next((name for name in self._macros if self._flag(name)), "")

    def _word_here(self) -> str:
        match = _NAME.match(self._text, self._at)
        return match[0] if match else ""

    # ---- places

    def _since(self, start: int) -> Place:
        return Place(self._text, start, self._end, self._label)

    def _last(self, length: int) -> Place:
        return Place(self._text, self._end - length, self._end, self._label)

    def _here(self, length: int, at: int | None = None) -> Place:
        at = self._at if at is None else at
        return Place(self._text, at, min(at + length, len(self._text)), self._label)

    def _error(self, reason: str, hint: str = "") -> AOAError:
        word = self._word_here()
        if self._at == len(self._text):
            found = "the end"
        else:
            found = "the end of the line" if self._text[self._at] == "\n" else repr(word or self._text[self._at])
        return AOAError(f"{reason}, found {found}", self._here(max(1, len(word))), hint=hint)

    def _error_at_last(self, reason: str, length: int = 1) -> AOAError:
        return AOAError(reason, self._last(length))
