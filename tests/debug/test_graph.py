"""The graph of a trace: edges as autograd has them, modules as clusters, parts, and pages that load nothing."""

import re
import shutil
import subprocess
import time

import pytest
import torch
from torch import Tensor, nn

from oarlock import debug


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())


def traced(num_layers: int = 3) -> debug.Trace:
    model = nn.Sequential(*[Block() for _ in range(num_layers)])
    with debug.trace(model, stacks=True) as t:
        model(torch.randn(2, 4)).sum().backward()
    return t


def test_backward_edges_are_those_of_autograd() -> None:
    model = Block()
    with debug.trace(model) as t:
        y = model(torch.randn(2, 4)).sum()
        y.backward(retain_graph=True)
    graph = t.graph(only="backward")

    def walk(node, seen: set) -> set[tuple[str, str]]:
        """Edges between nodes of calls, by autograd's own pointers, over the unnamed transpositions."""
        edges: set[tuple[str, str]] = set()
        if node in seen:
            return edges
        seen.add(node)
        for other, _ in node.next_functions:
            while other is not None and other.name() == "TBackward0":
                other = other.next_functions[0][0]
            if other is not None:
                edges.add((type(node).__name__, type(other).__name__))
                edges |= walk(other, seen)
        return edges

    kinds = {n.name: n.note if n.kind == "node" else "AccumulateGrad" for n in graph.nodes.values()}
    assert {(kinds[e.source], kinds[e.target]) for e in graph.edges} == walk(y.grad_fn, set())
    assert sum(n.kind == "leaf" for n in graph.nodes.values()) == 4


def test_forward_edges_carry_dtype_and_shape() -> None:
    graph = traced().graph(only="forward")
    assert all(n.kind != "node" for n in graph.nodes.values())
    edges = {(e.source, e.target): e for e in graph.edges}
    edge = edges["0.up/linear1", "0/relu1"]
    assert (edge.tensor, edge.described) == ("0.up/linear1_out_float32_2x8", "float32 2x8")
    assert ("0.up.weight", "0.up/linear1") in edges
    assert "test_graph.py" in " ".join(graph.nodes["0/relu1"].stack)


def test_parts_between_points_and_of_a_region() -> None:
    graph = traced().graph(only="forward")
    between = graph.part(start="0/relu1", end="1/add2")
    assert {n.module.split(".")[0] for n in between.nodes.values()} == {"0", "1"}
    assert "0/relu1" in between.nodes
    assert "2/relu3" not in between.nodes
    region = graph.part(region="1")
    neighbours = {name for name, node in region.nodes.items() if node.is_neighbour}
    assert neighbours == {"0/add1", "2.up/linear5", "2/add3"}
    with pytest.raises(ValueError, match="there are 0/relu1"):
        graph.part(start="relu1")
    with pytest.raises(ValueError, match="no node of the graph is in 'x'"):
        graph.part(region="x")


def test_dot_nests_modules_and_quotes_names() -> None:
    text = traced(1).graph().dot()
    assert re.search(r'subgraph "cluster_0" \{\s+label="0"', text)
    assert re.search(r'subgraph "cluster_0\.up" \{', text)
    assert '"0.up/linear1" -> "0/relu1" [label="float32 2x8"' in text
    assert text.count("{") == text.count("}")


def test_the_page_of_a_hundred_layers_is_small_and_loads_nothing(tmp_path) -> None:
    began = time.process_time()
    page = traced(100).graph().write(tmp_path / "graph.html").read_text()
    assert time.process_time() - began < 60  # seconds, on a busy core; a quadratic walk takes minutes
    assert len(page) < 1_000_000
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "default-src 'none'" in page


def test_names_with_markup_are_data(tmp_path) -> None:
    model = nn.ModuleDict({"</script><b>": nn.Linear(2, 2)})
    with debug.trace(model) as t:
        model["</script><b>"](torch.randn(1, 2))
    page = t.graph().write(tmp_path / "graph.html").read_text()
    assert "</script><b>" not in page


def test_a_step_that_was_not_traced_is_refused() -> None:
    with pytest.raises(ValueError, match="no records of step 7"):
        traced(1).graph(step=7)


def test_what_a_graph_does_not_know_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="only = 'bakward'"):
        traced(1).graph(only="bakward")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"y\.png: a graph is written as \.html or \.dot"):
        traced(1).graph().write(tmp_path / "y.png")
    assert not list(tmp_path.iterdir())


def test_what_the_program_calls_after_backward_stands_apart() -> None:
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with debug.trace(model) as t:
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    nodes = t.graph().nodes.values()
    after = [n.name for n in nodes if n.module == "after backward"]
    assert after
    assert not [n.name for n in nodes if n.name.startswith("sum") and n.name in after]
    assert set(after) == {n.name for n in t.graph().part(region="after backward").nodes.values() if not n.is_neighbour}


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_an_address_opens_a_module(tmp_path) -> None:
    page = traced(100).graph().write(tmp_path / "graph.html")
    command = ["chromium", "--headless", "--no-sandbox", "--virtual-time-budget=3000", "--dump-dom"]
    drawn = subprocess.run([*command, f"file://{page}#57"], capture_output=True, text=True, timeout=120, check=True)
    boxes = re.findall(r'<g class="box ([^"]*)"[^>]*>.*?<text[^>]*>([^<]*)<', drawn.stdout)
    assert ("module found", "57.up") in boxes
    assert ("module", "58") in boxes
