"""What a trace records: names, modules, Functions, checkpoints, hooks, threads, DTensors, iterations."""

import json
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from oarlock import debug


class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return g + g


class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return Inner.apply(x).exp()

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return g.neg()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.q_proj(x).softmax(-1)


class Net(nn.Module):
    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"attn": Attention()}) for _ in range(2))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            attn = layer["attn"]
            x = x + (checkpoint(attn, x, use_reentrant=False) if self.checkpointed else attn(x))
        return x.square().sum()


def by_name(t: debug.Trace) -> dict[str, dict]:
    records = {record["name"]: record for record in t.records}
    assert len(records) == len(t.records)  # names are unique
    return records


def test_names_join_calls_tensors_gradients_and_nodes() -> None:
    model = Net()
    with debug.trace(model, stacks=True) as t:
        model(torch.randn(2, 4)).backward()
    records = by_name(t)
    call = records["layers.1.attn.q_proj/linear2"]
    assert [tensor["name"] for tensor in call["inputs"]] == [
        "add1_out_float32_2x4",
        "layers.1.attn.q_proj.weight",
        "layers.1.attn.q_proj.bias",
    ]
    assert [tensor["name"] for tensor in call["outputs"]] == ["layers.1.attn.q_proj/linear2_out_float32_2x4"]
    node = records["layers.1.attn.q_proj/linear2Backward"]
    assert (node["call"], node["node"]) == (call["name"], "AddmmBackward0")
    assert node["inputs"][0]["name"] == "layers.1.attn.q_proj/linear2_out_float32_2x4@grad"
    assert {tensor["name"] for tensor in node["outputs"]} == {f"{tensor['name']}@grad" for tensor in call["inputs"]}
    assert node["stack"] == call["stack"]


def test_digests_are_those_of_the_tensors() -> None:
    from oarlock.digest import sha1

    x = torch.randn(3, 4)
    with debug.trace(digests="sha1") as t:
        y = x.t().exp()
    (record,) = [record for record in t.records if record["api"] == "exp"]
    assert record["outputs"][0]["digest"] == sha1(y)
    assert record["inputs"][0]["digest"] == sha1(x.t())
    assert record["outputs"][0]["max_abs"] == pytest.approx(y.max().item())


def test_functions_in_functions_have_parents_and_their_backwards_are_seen() -> None:
    x = torch.randn(3, requires_grad=True)
    with debug.trace() as t:
        Outer.apply(x).sum().backward()
    records = by_name(t)
    assert records["Inner1"]["parent"] == "Outer1"
    assert (records["mul1"]["parent"], records["mul1"]["depth"]) == ("Inner1", 2)
    assert records["exp1"]["parent"] == "Outer1"
    neg = records["neg1"]
    assert (neg["phase"], neg["inputs"][0]["name"]) == ("backward", "Outer1_out_float32_3@grad")


def test_a_checkpointed_region_is_recorded_again_as_recompute() -> None:
    model = Net(checkpointed=True)
    with debug.trace(model) as t:
        model(torch.randn(2, 4)).backward()
    again = [record for record in t.records if record["phase"] == "recompute"]
    assert {record["module"] for record in again} <= {f"layers.{i}.attn{e}" for i in (0, 1) for e in ("", ".q_proj")}
    assert sum(record["api"] == "linear" for record in again) == 2
    nodes = {record["call"] for record in t.records if record["kind"] == "node"}
    assert "layers.1.attn.q_proj/linear2" in nodes


def test_hooks_run_in_their_modules() -> None:
    model = Net()
    model.layers[0]["attn"].register_forward_hook(lambda module, args, output: output * 3)
    with debug.trace(model) as t:
        model(torch.randn(2, 4)).backward()
    assert by_name(t)["layers.0.attn/mul1"]["phase"] == "forward"


def test_threads_are_recorded_where_they_ask_for_it() -> None:
    x = torch.randn(4, requires_grad=True)
    with debug.trace() as t:

        def work() -> None:
            with t.on_this_thread():
                x.exp().sum().backward()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        x.sin()
    calls = [record for record in t.records if record["api"] == "exp" and record["kind"] == "call"]
    assert len({record["name"] for record in calls}) == 3
    assert sum(record["kind"] == "node" for record in t.records) == 6
    assert [
        record["api"]
        for record in t.records
        if record["thread" if "thread" in record else "kind"] == threading.get_ident()
    ] == ["sin"]


def test_iterations_are_numbered_and_names_go_on(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with debug.trace(model, tmp_path, digests="digest64") as t:
        for _ in range(3):
            model(torch.ones(2, 4)).backward()
            optimizer.step()
            optimizer.zero_grad()
            t.step()
    records = debug.read_records(tmp_path)
    assert [record["step"] for record in records if record["api"] == "linear" and record["kind"] == "call"] == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]
    assert len({record["name"] for record in records}) == len(records)
    updates = [
        r
        for r in records
        if r["phase"] == "forward" and "layers.0.attn.q_proj.weight" in {t["name"] for t in r["outputs"]}
    ]
    assert len(updates) == 3
    weights = [
        r["inputs"][1]["digest"] for r in records if r["module"] == "layers.0.attn.q_proj" and r["kind"] == "call"
    ]
    assert len(set(weights)) == 3


def test_an_exception_leaves_a_whole_file(tmp_path: Path) -> None:
    def fail() -> None:
        torch.ones(2).exp()
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"), debug.trace(dir=tmp_path):
        fail()
    assert [record["api"] for record in debug.read_records(tmp_path)] == ["ones", "exp"]
    with pytest.raises(ValueError, match="exists: remove that trace"):
        debug.trace(dir=tmp_path)
    (tmp_path / "trace.rank0.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="no trace of format 1"):
        debug.read_records(tmp_path)


def test_stacks_are_written_with_files_and_lines(tmp_path: Path) -> None:
    with debug.trace(dir=tmp_path, stacks=True):
        torch.ones(2).exp()
        Inner.apply(torch.ones(2)).split(1)
    records = debug.read_records(tmp_path)
    stacks = {
        line["stack"]: line["frames"]
        for line in map(json.loads, (tmp_path / "stacks.rank0.jsonl").read_text().splitlines())
    }
    assert "test_trace.py" in stacks[records[1]["stack"]][0]
    assert "test_stacks_are_written" in stacks[records[1]["stack"]][0]
    for record in records:
        inside = "Inner.forward" if record.get("parent") else "test_stacks_are_written"
        assert inside in next(frame for frame in stacks[record["stack"]] if "/torch/" not in frame)


def test_distributed_tensors_are_named_and_hashed_by_their_local_part(tmp_path: Path) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        weight = distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)]).requires_grad_()
        x = distribute_tensor(torch.randn(2, 4), mesh, [Shard(0)])
        with debug.trace(digests="sha1") as t:
            t.name(weight, "weight")
            torch.nn.functional.linear(x, weight).sum().backward()
        records = by_name(t)
        assert records["linear1"]["inputs"][1]["name"] == "weight"
        assert len(records["linear1"]["outputs"][0]["digest"]) == 40
        assert "weight@grad" in {tensor["name"] for tensor in records["linear1Backward"]["outputs"]}
    finally:
        dist.destroy_process_group()


def test_double_backward_and_grad_are_recorded() -> None:
    x = torch.randn(3, requires_grad=True)
    with debug.trace() as t:
        (g,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        g.sum().backward()
    nodes = [record["name"] for record in t.records if record["kind"] == "node"]
    assert nodes[:2] == ["sum1Backward", "pow1Backward"]
    assert x.grad is not None


def test_the_program_computes_what_it_computes_without_a_trace() -> None:
    torch.manual_seed(3)
    model, x = Net(checkpointed=True), torch.randn(2, 4)
    plain = torch.autograd.grad(model(x), list(model.parameters()))
    with debug.trace(model, stacks=True, digests="sha1"), debug.errors(model), debug.find_nonfinite(model):
        watched = torch.autograd.grad(model(x), list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
