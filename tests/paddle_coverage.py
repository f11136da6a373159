"""Find what the tests cover of the announced API and write it down: the package's table and the page of the docs.

    python tests/paddle_coverage.py

A row is recorded when a call of `golden/*.json` names it, as a function, a method or a property. A row that Paddle
cannot run on a CPU, or answers at random, is checked against a formula: a test of `formulas/` that compares it with its
definition is decorated with its full name.

    @formula("paddle.incubate.nn.functional.moe_combine")
    def moe_combine() -> None:
"""

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import oarlock.paddle as paddle
from oarlock.paddle.coverage import FORMULA, RECORDED, TO_COME, Row, announced, page
from paddle_forms import FORMS, PREFIXES, arguments, declared

FOLDER = Path(__file__).parent / "paddle"
TABLE = FOLDER.parents[1] / "src" / "oarlock" / "paddle" / "coverage.tsv"
PAGE = FOLDER.parents[1] / "docs" / "paddle_coverage.md"
LETTERS = {"by_keywords": "k", "by_aliases": "a", "by_last_aliases": "a", "mixed": "m", "method": "t", "unbound": "t"}
ORDER = "pkamto0g"
MAKERS = "fduibct"  # the functions of a recorded call that make tensors; without a size they make a 0-D one
COMPARISONS: dict[type[ast.cmpop], str] = {ast.Eq: "paddle.Tensor.__eq__", ast.NotEq: "paddle.Tensor.__ne__"}


def named(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The APIs that an expression uses, by their full names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from ((COMPARISONS[type(op)], node) for op in node.ops if type(op) in COMPARISONS)
        function = node.func if isinstance(node, ast.Call) else node
        if not isinstance(function, ast.Attribute):
            continue
        head, _, rest = ast.unparse(function).partition(".")
        if head in ("paddle", *PREFIXES) and rest.replace(".", "").replace("_", "").isalnum():
            yield f"{PREFIXES.get(head, head)}.{rest}", node
        else:
            yield f"paddle.Tensor.{function.attr}", node


def forms(call: ast.AST, expression: str) -> str:
    """The letters of the forms in which a use of an API is tested."""
    if not isinstance(call, ast.Call):
        return ""
    found = "p" if call.args else ""
    found += "k" if call.keywords else ""
    if expression.startswith("grad("):
        found += "g"
    makers = [
        n for n in ast.walk(call) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in MAKERS
    ]
    if any(not n.args or (n.func.id == "t" and isinstance(n.args[0], ast.Constant)) for n in makers):  # type: ignore[attr-defined]
        found += "0"
    declaration = declared(call)
    given = declaration and arguments(call, declaration)
    if declaration and given:
        found += "".join(letter for form, letter in LETTERS.items() if FORMS[form](call, declaration, given))
        if "out" in declaration.signature.parameters:
            found += "o"
    return found


def collect() -> list[Row]:
    """The state of every announced API."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted((FOLDER / "golden").glob("*.json")):
        for expression in json.loads(path.read_text(encoding="utf-8")):
            for name, node in named(ast.parse(expression, mode="eval")):
                found[name].update(forms(node, expression))
    checked = set(formulas())
    names = paddle.patch_tensor()
    try:
        return [_row(name, group, found, checked) for name, group in announced()]
    finally:
        if names:
            paddle.unpatch_tensor()


def formulas() -> Iterator[str]:
    """The APIs that the tests of `formulas/` check."""
    for path in sorted((FOLDER / "formulas").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "formula":
                yield from (
                    arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                )


def _row(name: str, group: str, found: dict[str, set[str]], checked: set[str]) -> Row:
    if not exists(name):
        return Row(name, group, TO_COME)
    if name in found:
        return Row(name, group, RECORDED, "".join(letter for letter in ORDER if letter in found[name]))
    return Row(name, group, FORMULA if name in checked else TO_COME)


def exists(name: str) -> bool:
    """Whether the namespace has it."""
    found: object = paddle
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found is not None


def lines(rows: list[Row]) -> str:
    """The rows as the package keeps them."""
    return "".join(f"{row.name}\t{row.group}\t{row.state}\t{row.forms}\n" for row in rows)


def main() -> None:
    """Write both files and print the counts."""
    rows = collect()
    TABLE.write_text(lines(rows), encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")
    print(page(rows).split("|")[0].rstrip().rpartition("\n")[2])
    for row in rows:
        if row.state == TO_COME:
            print(f"  {row.name} ({row.group}){' exists, unchecked' if exists(row.name) else ''}")


if __name__ == "__main__":
    main()
