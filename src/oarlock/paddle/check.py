"""Which uses of Paddle in a program run here as they are, which differ in convention, and which are absent.

The program is read, not run. Names are resolved through its imports. What an arbitrary expression is cannot be known:
an attribute of one is judged as a tensor's where its name is one of `TENSOR_METHODS`.
"""

import ast
import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from oarlock.paddle.conventions import CONFLICTS, TENSOR_METHODS
from oarlock.paddle.declare import REGISTRY

STATES = {
    "runs": "runs as it is",
    "differs": "runs with Paddle's meaning where torch's differs, or needs care with a tensor",
    "refused": "the arguments are not taken",
    "absent": "is not there",
}
ABSENT = object()


@dataclass(frozen=True)
class Finding:
    """One use of Paddle in a file."""

    path: Path
    line: int
    column: int
    name: str  # "paddle.nn.Linear", or ".max" for an attribute of what may be a tensor
    state: str  # one of STATES
    advice: str

    def __str__(self) -> str:
        text = f"{self.path}:{self.line}:{self.column}: {self.state}: {self.name}"
        return f"{text}: {self.advice}" if self.advice else text


def check(path: Path) -> list[Finding]:
    """Every use of Paddle in a Python file, in the order of its lines.

    Raises:
        SyntaxError: the file is not Python, or not in the encoding that it names (UTF-8 if it names none).
        ValueError: it holds null bytes.
    """
    reader = _Reader(path)
    reader.visit(ast.parse(path.read_bytes(), str(path)))
    return sorted(reader.found, key=lambda finding: (finding.line, finding.column))


def resolve(name: str) -> Any:
    """The object a full name of Paddle's stands for here, or `ABSENT`."""
    found: Any = importlib.import_module("oarlock.paddle")
    at = "oarlock.paddle"
    for part in name.split(".")[1:]:
        inside = getattr(found, part, ABSENT)
        if inside is ABSENT:  # a module nobody imported yet, or one that a function of its name hides
            inside = _module(f"{at}.{part}") if isinstance(found, ModuleType) else getattr(_module(at), part, ABSENT)
        if inside is ABSENT:
            return ABSENT
        found, at = inside, f"{at}.{part}"
    return found


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return ABSENT


class _Reader(ast.NodeVisitor):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: dict[str, str] = {}  # name in the file -> full name of Paddle's
        self.others: set[str] = set()  # names that other packages gave: their attributes are no tensor's
        self.found: list[Finding] = []

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            full = _as_paddle(alias.name)
            if full is None:
                self.others.add(alias.asname or alias.name.partition(".")[0])
                continue
            if alias.asname:
                self.names[alias.asname] = full
            elif alias.name.startswith("paddle"):  # `import paddle.nn` binds `paddle`
                self.names["paddle"] = "paddle"
            self.judge(node, full)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = _as_paddle(node.module or "")
        if module is None or node.level:
            self.others.update(alias.asname or alias.name for alias in node.names)
            return
        for alias in node.names:
            if alias.name == "*":
                self.add(node, module, "differs", "a star import cannot be followed: name what is used")
                continue
            full = f"{module}.{alias.name}"
            self.names[alias.asname or alias.name] = full
            self.judge(node, full)

    def visit_Call(self, node: ast.Call) -> None:
        full = self.full_name(node.func)
        if full is not None:
            self.judge(node.func, full, node)
        elif isinstance(node.func, ast.Attribute):
            if node.func.attr in TENSOR_METHODS and self.may_be_tensor(node.func.value) and not _of_text(node):
                self.add(node.func, f".{node.func.attr}", "differs", TENSOR_METHODS[node.func.attr])
            self.visit(node.func.value)
        else:
            self.visit(node.func)
        for part in (*node.args, *node.keywords):
            self.visit(part)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        full = self.full_name(node)
        if full is not None:
            self.judge(node, full)
            return
        if node.attr == "size" and self.may_be_tensor(node.value):
            self.add(node, ".size", "differs", "x.size is a method on a torch tensor: x.numel()")
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        full = self.names.get(node.id)
        if full is not None and full != "paddle" and isinstance(node.ctx, ast.Load):
            self.judge(node, full)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add) and _is_shape(node.left) != _is_shape(node.right):
            other = node.right if _is_shape(node.left) else node.left
            if isinstance(other, (ast.List, ast.ListComp)):
                self.add(node, ".shape", "differs", "a torch shape is a tuple: list(x.shape) + [...]")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        if any(map(_is_shape, sides)) and any(isinstance(side, ast.List) for side in sides):
            self.add(
                node, ".shape", "differs", "a torch shape is a tuple, never equal to a list: list(x.shape) == [...]"
            )
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """`names.sort()` whose result nobody takes sorts a list."""
        function = node.value.func if isinstance(node.value, ast.Call) else None
        if not (isinstance(function, ast.Attribute) and function.attr == "sort" and self.full_name(function) is None):
            self.generic_visit(node)

    def may_be_tensor(self, node: ast.AST) -> bool:
        """Whether nothing says that an expression is something else than a tensor."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return not (isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in self.others))

    def full_name(self, node: ast.AST) -> str | None:
        """The full name behind a chain of attributes that begins at an import."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        start = self.names.get(node.id) if isinstance(node, ast.Name) else None
        return None if start is None else ".".join([start, *reversed(parts)])

    def judge(self, node: ast.AST, full: str, call: ast.Call | None = None) -> None:
        if resolve(full) is ABSENT:
            self.add(node, full, "absent", _known_part(full))
        elif call is not None and (wrong := _wrong_keywords(full, call)):
            self.add(node, full, "refused", f"takes no {', '.join(wrong)}; {_signature(full)}")
        else:
            self.add(
                node, full, "differs" if full in CONFLICTS and call else "runs", CONFLICTS.get(full, "") if call else ""
            )

    def add(self, node: ast.AST, name: str, state: str, advice: str) -> None:
        self.found.append(Finding(self.path, node.lineno, node.col_offset + 1, name, state, advice))  # type: ignore[attr-defined]


def _as_paddle(module: str) -> str | None:
    """`paddle.nn` for the modules `paddle.nn` and `oarlock.paddle.nn`, None for all others."""
    module = module.removeprefix("oarlock.")
    return module if module == "paddle" or module.startswith("paddle.") else None


def _is_shape(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "shape"


def _of_text(call: ast.Call) -> bool:
    """`text.split(",")` or `text.split()`."""
    return not (call.args or call.keywords) or any(
        isinstance(part, ast.Constant) and isinstance(part.value, str) for part in call.args[:1]
    )


def _known_part(full: str) -> str:
    """How far a name that is absent can be followed."""
    parts = full.split(".")
    known = next(k for k in range(len(parts) - 1, 0, -1) if resolve(".".join(parts[:k])) is not ABSENT)
    return f"{'.'.join(parts[:known])} has no {parts[known]}"


def _wrong_keywords(full: str, call: ast.Call) -> list[str]:
    """The keywords of a call that a declared function does not take."""
    if full not in REGISTRY:
        return []
    parameters = REGISTRY[full].signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return []
    taken = {parameter.name for parameter in parameters}
    return [keyword.arg for keyword in call.keywords if keyword.arg is not None and keyword.arg not in taken]


def _signature(full: str) -> str:
    """What a function takes, with the torch spelling's function where there is one."""
    taken = ", ".join(REGISTRY[full].signature.parameters)
    short = full.removeprefix("paddle.")
    known = resolve(f"paddle.compat.{short}") is not ABSENT
    return f"it takes {taken}" + (f"; for torch's meaning use paddle.compat.{short}" if known else "")


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """The Python files among paths and below folders.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]
