"""The graph of one iteration, made of a trace's records: calls, backward nodes, and the tensors between them.

graph = debug.graph_of(t.records)
graph.write("graph.html")                      # or graph.dot
graph.part(region="layers.3").write("one_layer.html")
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from oarlock.debug.dot import dot


@dataclass(frozen=True)
class Node:
    """A call, a backward node, a parameter, a tensor from outside, or the accumulation of a gradient."""

    name: str
    kind: Literal["call", "node", "parameter", "input", "leaf"]
    label: str
    module: str
    note: str = ""
    """Further lines: the node's name in torch, the phase."""
    stack: tuple[str, ...] = ()
    is_neighbour: bool = False
    """Outside the region asked for, next to it."""


@dataclass(frozen=True)
class Edge:
    """A tensor on its way from one node to another."""

    source: str
    target: str
    tensor: str
    described: str
    """dtype and shape."""


@dataclass
class Graph:
    """Nodes by name in the order of their execution, and edges."""

    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    def part(self, *, start: str = "", end: str = "", region: str = "") -> Graph:
        """The graph between two points, or of one module and its neighbours.

        Args:
            start: only what this node leads to.
            end: only what leads to this node.
            region: path of a module; nodes outside it that share an edge with it stay, marked as neighbours.

        Raises:
            ValueError: there is no such node, or nothing in the region.
        """
        kept = set(self.nodes)
        for point, ends in ((start, ("source", "target")), (end, ("target", "source"))):
            if point:
                kept &= self._reached(point, *ends)
        neighbours: set[str] = set()
        if region:
            inside = {n for n in kept if f"{self.nodes[n].module}.".startswith(f"{region}.")}
            if not inside:
                raise ValueError(f"no node of the graph is in {region!r}")
            touching = [e for e in self.edges if e.source in inside or e.target in inside]
            neighbours = ({e.source for e in touching} | {e.target for e in touching}) & kept - inside
            kept = inside | neighbours
        nodes = {n: replace(node, is_neighbour=n in neighbours) for n, node in self.nodes.items() if n in kept}
        # Between two neighbours nothing of the region is told.
        edges = [
            e
            for e in self.edges
            if e.source in kept and e.target in kept and not (e.source in neighbours and e.target in neighbours)
        ]
        return Graph(nodes, edges)

    def _reached(self, point: str, near: str, far: str) -> set[str]:
        if point not in self.nodes:
            close = [name for name in self.nodes if point in name][:3]
            raise ValueError(f"no node {point!r}" + (f"; there are {', '.join(close)}" if close else ""))
        ways: dict[str, list[str]] = defaultdict(list)
        for edge in self.edges:
            ways[getattr(edge, near)].append(getattr(edge, far))
        reached, todo = {point}, [point]
        while todo:
            for other in ways[todo.pop()]:
                if other not in reached:
                    reached.add(other)
                    todo.append(other)
        return reached

    def dot(self) -> str:
        """The graph in the language of Graphviz, modules as clusters."""
        return dot(self.nodes.values(), self.edges)

    def write(self, path: str | os.PathLike[str], *, title: str = "Graph") -> Path:
        """Write an HTML page that needs no network (`.html`), or the language of Graphviz (`.dot`).

        Raises:
            ValueError: another suffix.
        """
        from oarlock.debug.view import write_page

        target = Path(path)
        if target.suffix not in (".html", ".dot"):
            raise ValueError(f"{target}: a graph is written as .html or .dot")
        if target.suffix == ".html":
            return write_page(self, target, title=title)
        target.write_text(self.dot(), encoding="utf-8")
        return target


AFTER = "after backward"
"""Stands for a module around what the program itself calls then: the optimizer, mostly."""


def graph_of(
    records: Iterable[dict[str, Any]],
    *,
    step: int = 0,
    only: Literal["forward", "backward"] | None = None,
    stacks: str | os.PathLike[str] | dict[int, Sequence[str]] | None = None,
) -> Graph:
    """The graph of one iteration.

    Args:
        records: of a trace; backward nodes are there if it was made with `nodes`.
        step: the iteration.
        only: leave out calls, or backward nodes.
        stacks: frames by number, or the folder of a trace that has them.

    Raises:
        ValueError: the iteration has no records, or `only` is something else.
    """
    if only not in (None, "forward", "backward"):
        raise ValueError(f'only = {only!r}: choose "forward", "backward" or None')
    frames = _read_stacks(stacks)
    # What accumulates in a leaf is drawn where the gradients of its name end.
    chosen = [record for record in records if record["step"] == step and record["kind"] != "leaf"]
    if not chosen:
        raise ValueError(f"the trace has no records of step {step}")
    graph, makers = Graph(), {}
    last = max((place for place, record in enumerate(chosen) if record["kind"] == "node"), default=len(chosen))
    for place, record in enumerate(chosen):
        is_node = record["kind"] == "node"
        if (only == "forward" and is_node) or (only == "backward" and not is_node):
            continue
        stack = tuple(frames.get(record.get("stack", 0), ()))
        notes = [record.get("node", ""), "" if record["phase"] == "forward" or is_node else record["phase"]]
        notes += ["seen by its node only" if record.get("unseen") else "", record.get("parent") and "in a Function"]
        label = record["name"].removeprefix(f"{record['module']}/") if record["module"] else record["name"]
        note = ", ".join(filter(None, notes))
        module = record["module"] or (AFTER if place > last else "")
        graph.nodes[record["name"]] = Node(record["name"], "node" if is_node else "call", label, module, note, stack)
        for tensor in record["inputs"]:
            _connect(graph, makers, tensor, record["name"])
        for tensor in record["outputs"]:
            if is_node:
                continue  # a gradient is made by several nodes, each a part of it
            makers[tensor["name"]] = record["name"]
    if only != "forward":
        _connect_gradients(graph, chosen)
    return graph


def _connect(graph: Graph, makers: dict[str, str], tensor: dict[str, Any], target: str) -> None:
    name = tensor["name"]
    source = makers.get(name)
    if name.endswith("@grad") and source is None:
        return  # arrives along the edges of the backward graph
    if source is None:
        source = makers[name] = name
        kind = "parameter" if "_out_" not in name and "_out" not in name else "input"
        module, _, label = name.rpartition(".") if kind == "parameter" else ("", "", name)
        graph.nodes.setdefault(source, Node(name, kind, label or name, module))
    graph.edges.append(Edge(source, target, name, _described(tensor)))


def _connect_gradients(graph: Graph, records: Sequence[dict[str, Any]]) -> None:
    consumers = {
        tensor["name"]: record["name"] for record in records if record["kind"] == "node" for tensor in record["inputs"]
    }
    for record in records:
        if record["kind"] != "node":
            continue
        for tensor in record["outputs"]:
            name = tensor["name"]
            target = consumers.get(name)
            if target is None:
                if not name:
                    continue
                module, _, label = name.removesuffix("@grad").rpartition("/" if "/" in name else ".")
                target = name
                graph.nodes.setdefault(name, Node(name, "leaf", f"{label or name}@grad", module))
            if target != record["name"]:
                graph.edges.append(Edge(record["name"], target, name, _described(tensor)))


def _described(tensor: dict[str, Any]) -> str:
    return f"{tensor['dtype']} {'x'.join(map(str, tensor['shape'])) or 'scalar'}"


def _read_stacks(stacks: Any) -> dict[int, Sequence[str]]:
    if stacks is None or isinstance(stacks, dict):
        return stacks or {}
    path = Path(stacks)
    folder = path if path.is_dir() else path.parent
    rank = path.name.split(".")[1] if path.name.startswith("trace.rank") else "rank0"
    file = folder / f"stacks.{rank}.jsonl"
    if not file.exists():
        return {}
    with open(file, encoding="utf-8") as lines:
        return {line["stack"]: line["frames"] for line in map(json.loads, lines)}
