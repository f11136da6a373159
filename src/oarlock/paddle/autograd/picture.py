"""The backward graph behind tensors, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from oarlock.debug import Edge, Graph, Node


def write_backward_graph(tensors: Sequence[Tensor], folder: str) -> Path:
    """`backward_graph.dot` and `backward_graph.html` in a folder: the nodes that backward of the tensors would run."""
    graph, names, todo = Graph(), {}, [t.grad_fn for t in tensors if t.grad_fn is not None]

    def name_of(node: Any) -> str:
        if node not in names:
            leaf = getattr(node, "variable", None)
            label = type(node).__name__ if leaf is None else (getattr(leaf, "name", None) or "leaf")
            names[node] = f"{label}_{len(names)}"
            kind = "node" if leaf is None else "leaf"
            shape = "" if leaf is None else f"{leaf.dtype} {list(leaf.shape)}"
            graph.nodes[names[node]] = Node(names[node], kind, label, "", shape)
            todo.append(node)
        return names[node]

    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        source = name_of(node)
        for following, number in node.next_functions:
            if following is not None:
                graph.edges.append(Edge(source, name_of(following), f"gradient {number}", ""))
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    graph.write(target / "backward_graph.html", title="Backward graph")
    return graph.write(target / "backward_graph.dot")
