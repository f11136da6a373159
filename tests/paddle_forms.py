"""The other ways to write a recorded call: by keyword, in the industry's spelling, mixed, as a method, with `out=`."""

import ast
import functools
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from oarlock.paddle.declare import REGISTRY, Declaration
from oarlock.paddle.patch import method_functions
from paddle_cases import GOLDEN

CALLS_OF_EACH = 12  # of one function: enough for its parameters, few enough for the time of a test
Arguments = dict[str, ast.expr]
PREFIXES = {"F": "paddle.nn.functional"}


def declared(call: ast.Call) -> Declaration | None:
    """The declaration that a call names, `paddle.sum(...)` or `F.relu(...)`."""
    head, _, rest = ast.unparse(call.func).partition(".")
    return REGISTRY.get(f"{PREFIXES.get(head, head)}.{rest}")


def arguments(call: ast.Call, declaration: Declaration) -> Arguments | None:
    """The arguments by parameter; None for a call that binds some of them in a way no keyword can say."""
    parameters = inspect.signature(declaration.implementation).parameters
    positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return None
    values = list(call.args)
    if declaration.variadic:
        at = positional.index(declaration.variadic)
        stop = at
        while stop < len(values) and isinstance(
            ast.literal_eval(values[stop]) if _is_number(values[stop]) else None, int
        ):
            stop += 1
        if stop > at:
            values = [*values[:at], ast.List(values[at:stop], ast.Load()), *values[stop:]]
    if len(values) > len(positional):
        values = values[: len(positional)]  # the rest is `name`
    found = dict(zip(positional, values, strict=False))
    for keyword in call.keywords:
        name = declaration.aliases.get(str(keyword.arg), str(keyword.arg))
        if name == "name" and name not in parameters:
            continue
        if name not in parameters:
            return None
        found[name] = keyword.value
    return found


def _is_number(node: ast.expr) -> bool:
    try:
        return type(ast.literal_eval(node)) is int
    except ValueError:
        return False


def _alias(declaration: Declaration, name: str) -> str:
    return next((alias for alias, to in declaration.aliases.items() if to == name), name)


def _call(function: ast.expr, args: list[ast.expr], keywords: Arguments) -> ast.Call:
    return ast.Call(function, args, [ast.keyword(name, value) for name, value in keywords.items()])


def by_keywords(call: ast.Call, declaration: Declaration, given: Arguments) -> ast.expr | None:
    """Every argument by Paddle's name."""
    return _call(call.func, [], given)


def by_aliases(call: ast.Call, declaration: Declaration, given: Arguments) -> ast.expr | None:
    """Every argument by the industry's name, where there is one."""
    if not any(name in declaration.aliases.values() for name in given):
        return None
    return _call(call.func, [], {_alias(declaration, name): value for name, value in given.items()})


def by_last_aliases(call: ast.Call, declaration: Declaration, given: Arguments) -> ast.expr | None:
    """Every argument by the last of its other names."""
    last = {to: alias for alias, to in declaration.aliases.items()}
    if all(last.get(name, name) == _alias(declaration, name) for name in given):
        return None
    return _call(call.func, [], {last.get(name, name): value for name, value in given.items()})


def mixed(call: ast.Call, declaration: Declaration, given: Arguments) -> ast.expr | None:
    """The first argument by position, the others by the industry's names, and a name."""
    first, *others = given
    if next(iter(inspect.signature(declaration.implementation).parameters)) != first or not others:
        return None
    keywords = {_alias(declaration, name): given[name] for name in others}
    if "name" in declaration.signature.parameters and declaration.implementation.__name__ != "create_parameter":
        keywords.setdefault("name", ast.Constant("a"))
    return _call(call.func, [given[first]], keywords)


def _is_method(declaration: Declaration, given: Arguments) -> str | None:
    names = [name for name, function in _methods().items() if function is declaration.function]
    first = next(iter(inspect.signature(declaration.implementation).parameters.values()))
    return names[0] if names and first.annotation is Tensor and next(iter(given), None) == first.name else None


@functools.cache
def _methods() -> dict[str, Callable[..., object]]:
    return method_functions()


def method(call: ast.Call, declaration: Declaration, given: Arguments) -> ast.expr | None:
    """`x.name(...)`."""
    if not (name := _is_method(declaration, given)):
        return None
    (_, x), *others = given.items()
    return _call(ast.Attribute(x, name, ast.Load()), [], dict(others))


def unbound(call: ast.Call, declaration: Declaration, given: Arguments) -> ast.expr | None:
    """`paddle.Tensor.name(x, ...)`."""
    if not (name := _is_method(declaration, given)):
        return None
    parent = ast.Attribute(ast.Name("paddle", ast.Load()), "Tensor", ast.Load())
    (_, x), *others = given.items()
    return _call(ast.Attribute(parent, name, ast.Load()), [x], dict(others))


FORMS = {form.__name__: form for form in (by_keywords, by_aliases, by_last_aliases, mixed, method, unbound)}


class _Rewriter(ast.NodeTransformer):
    def __init__(self, form: Callable[[ast.Call, Declaration, Arguments], ast.expr | None]) -> None:
        self.form = form
        self.changed = False

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        declaration = declared(node)
        given = declaration and arguments(node, declaration)
        made = self.form(node, declaration, given) if declaration and given else None
        self.changed |= made is not None
        return made or node


def rewritten(expression: str, form: str) -> str | None:
    """The expression with every declared call in another form; None where none has it."""
    rewriter = _Rewriter(FORMS[form])
    tree = rewriter.visit(ast.parse(expression, mode="eval"))
    return ast.unparse(ast.fix_missing_locations(tree)) if rewriter.changed else None


def functions_of(expression: str) -> Iterator[Declaration]:
    """The declarations that an expression calls."""
    for node in ast.walk(ast.parse(expression, mode="eval")):
        if isinstance(node, ast.Call) and (declaration := declared(node)):
            yield declaration


def few_of_each() -> dict[str, Any]:
    """Recorded calls and their answers, not more of one function than `CALLS_OF_EACH`."""
    found: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for path in sorted(GOLDEN.glob("*.json")):
        if path.stem == "strict":
            continue
        for expression, answer in json.loads(path.read_text(encoding="utf-8")).items():
            names = {declaration.names[0] for declaration in functions_of(expression)}
            if names and min(counts[name] for name in names) < CALLS_OF_EACH:
                counts.update(names)
                found[expression] = answer
    return found
