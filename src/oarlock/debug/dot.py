"""A graph in the language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oarlock.debug.graph import Edge, Node

_LOOKS = {
    "call": 'shape=box style="rounded,filled" fillcolor="#dbe9f4"',
    "node": 'shape=box style="rounded,filled" fillcolor="#f6e2d3"',
    "parameter": 'shape=box style=filled fillcolor="#eeeeea"',
    "input": 'shape=box style="dashed"',
    "leaf": 'shape=box style=filled fillcolor="#d5ecd9"',
}


def dot(nodes: Iterable[Node], edges: Iterable[Edge]) -> str:
    """A digraph; modules are clusters within each other, what lies next to a chosen region is grey.

    Args:
        nodes, edges: of a graph.
    """
    tree: dict = {}
    for node in nodes:
        place = tree
        for name in node.module.split(".") if node.module else ():
            place = place.setdefault(name, {})
        place.setdefault(None, []).append(node)
    lines = ["digraph {", "  rankdir=TB", '  node [fontname="sans-serif" fontsize=10]', "  edge [fontsize=8]"]
    _cluster(tree, "", 1, lines)
    for edge in edges:
        tooltip = f"label={_quoted(edge.described)} tooltip={_quoted(edge.tensor)}"
        lines.append(f"  {_quoted(edge.source)} -> {_quoted(edge.target)} [{tooltip}]")
    return "\n".join([*lines, "}"]) + "\n"


def _cluster(tree: dict, path: str, depth: int, lines: list[str]) -> None:
    indent = "  " * depth
    for node in tree.get(None, []):
        look = 'shape=box style=filled fillcolor="#dddddd"' if node.is_neighbour else _LOOKS[node.kind]
        label = f"{node.label}\n{node.note}" if node.note else node.label
        lines.append(f"{indent}{_quoted(node.name)} [label={_quoted(label)} {look}]")
    for name, inner in tree.items():
        if name is None:
            continue
        inside = f"{path}.{name}" if path else name
        lines += [f"{indent}subgraph {_quoted(f'cluster_{inside}')} {{", f"{indent}  label={_quoted(inside)}"]
        _cluster(inner, inside, depth + 1, lines)
        lines.append(f"{indent}}}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
