"""One HTML page about a graph: modules collapse and expand, nodes are searched by name; no network, no Graphviz."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from oarlock.debug.graph import AFTER, Graph
from oarlock.page import Page


def write_page(graph: Graph, path: Path, *, title: str) -> Path:
    """Write the page.

    Args:
        graph: what is shown; its places are computed in the browser, of what is expanded only.
        path: of the HTML file.
        title: its heading.

    Returns:
        `path`.
    """
    kinds = [node.kind for node in graph.nodes.values()]
    counts = f"{kinds.count('call'):,} calls, {kinds.count('node'):,} backward nodes, {len(graph.edges):,} tensors"
    page = Page(title, subtitle=counts, kicker="Oarlock debug")
    folder = resources.files("oarlock.debug")
    read = {name: (folder / name).read_text(encoding="utf-8") for name in ("view.html", "view.js", "view.css")}
    page.interactive(read["view.html"], read["view.js"], _data(graph), style=read["view.css"])
    return page.write(path)


def _data(graph: Graph) -> dict[str, Any]:
    """Texts once each: nodes and edges as rows of numbers."""
    rows = {name: i for i, name in enumerate(graph.nodes)}
    tensors: dict[str, int] = {}
    frames: dict[str, int] = {}
    nodes = [
        [
            node.name,
            node.kind,
            node.label,
            node.module,
            node.note,
            [frames.setdefault(frame, len(frames)) for frame in node.stack[:12]],
            int(node.is_neighbour),
        ]
        for node in graph.nodes.values()
    ]
    edges = [
        [
            rows[edge.source],
            rows[edge.target],
            tensors.setdefault(edge.tensor, len(tensors)),
            tensors.setdefault(edge.described, len(tensors)),
        ]
        for edge in graph.edges
    ]
    return {"nodes": nodes, "edges": edges, "texts": list(tensors), "frames": list(frames), "after": AFTER}
