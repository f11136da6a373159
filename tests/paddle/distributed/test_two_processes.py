"""`oarlock.paddle.distributed` in two real processes on gloo, against what one process computes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as functional

import oarlock.paddle as paddle
import oarlock.paddle.distributed as dist
from oarlock.paddle.distributed import fleet
from oarlock.paddle.distributed.fleet.meta_parallel import ParallelCrossEntropy
from oarlock.paddle.distributed.fleet.utils import sequence_parallel_utils as sequence
from process_group import run_ranks


def messages() -> dict[str, Any]:
    """Every kind of message once."""
    rank = dist.get_rank()
    mine = torch.tensor([1.0 + rank, 2.0])
    found: dict[str, Any] = {}

    summed = mine.clone()
    dist.all_reduce(summed)
    mean = mine.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    largest = mine.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, sync_op=False).wait()
    gathered: list[torch.Tensor] = []
    dist.all_gather(gathered, mine)
    from_one = mine.clone()
    dist.broadcast(from_one, src=1)
    part = torch.zeros(1)
    dist.reduce_scatter(part, [mine[:1], mine[1:]])
    given = torch.zeros(2)
    dist.scatter(given, [torch.full((2,), 5.0), torch.full((2,), 6.0)] if rank == 0 else None, src=0)
    exchanged: list[torch.Tensor] = []
    dist.alltoall(exchanged, [mine[:1], mine[1:]])
    single = torch.zeros(2)
    dist.alltoall_single(single, mine)
    if rank == 0:
        dist.send(mine, dst=1)
        received = mine
    else:
        received = torch.zeros(2)
        dist.recv(received, src=0)
    objects: list[Any] = []
    dist.all_gather_object(objects, {"rank": rank})
    dist.barrier()
    for name, value in {
        "sum": summed, "mean": mean, "max": largest, "gather": torch.cat(gathered), "broadcast": from_one,
        "reduce_scatter": part, "scatter": given, "alltoall": torch.cat(exchanged), "alltoall_single": single,
        "received": received,
    }.items():  # fmt: skip
        found[name] = value.tolist()
    return found | {"objects": objects}


def layout() -> dict[str, Any]:
    """The tensor-parallel layout, and groups."""
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"mp_degree": 2}
    fleet.init(is_collective=True, strategy=strategy)
    hcg = fleet.get_hybrid_communicate_group()
    alone = dist.new_group([1])
    with pytest.raises(ValueError, match=r"distributed_model\(\) does data parallelism here, .*'mp': 2"):
        fleet.distributed_model(paddle.nn.Linear(2, 2))
    return {
        "mp": [hcg.get_model_parallel_rank(), hcg.get_model_parallel_world_size()],
        "dp": [hcg.get_data_parallel_rank(), hcg.get_data_parallel_world_size()],
        "group": [hcg.get_model_parallel_group().ranks, hcg.get_model_parallel_group().nranks],
        "alone": [alone.rank, alone.nranks, alone.is_member()],
    }


def parallel_parts() -> None:
    """Sequence-parallel operations and the shared vocabulary, forward and backward."""
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, generator=generator)
    half = x.chunk(2)[rank].clone().requires_grad_()
    weights = torch.randn(4, 3, generator=generator)

    (sequence.GatherOp.apply(half) * weights).sum().backward()
    assert torch.equal(half.grad, weights.chunk(2)[rank])  # every process computes the same loss
    half.grad = None
    (sequence.AllGatherOp.apply(half) * weights * (rank + 1)).sum().backward()
    assert torch.allclose(half.grad, 3 * weights.chunk(2)[rank])  # the losses add up
    whole = x.clone().requires_grad_()
    cut = sequence.ScatterOp.apply(whole)
    assert torch.equal(cut, x.chunk(2)[rank])
    (cut * weights.chunk(2)[rank]).sum().backward()
    assert torch.equal(whole.grad, weights)
    whole.grad = None
    total = sequence.ReduceScatterOp.apply(whole * (rank + 1))
    assert torch.allclose(total, 3 * x.chunk(2)[rank])
    total.sum().backward()
    assert torch.allclose(whole.grad, torch.full_like(x, rank + 1.0))

    logits = torch.randn(2, 5, 8, generator=generator, dtype=torch.float64).float()
    label = torch.tensor([[0, 3, 4, 7, -100], [5, 2, 1, 6, 4]])
    mine = logits[..., 4 * rank : 4 * rank + 4].clone().requires_grad_()
    loss = ParallelCrossEntropy()(mine, label)
    dense = logits.double().clone().requires_grad_()
    expected = functional.cross_entropy(dense.flatten(0, 1), label.flatten(), reduction="none", ignore_index=-100)
    assert loss.shape == (2, 5, 1)
    assert torch.allclose(loss.double().flatten(), expected, atol=1e-5)
    scale = torch.arange(10.0)
    (loss.flatten() * scale).sum().backward()
    (expected * scale).sum().backward()
    assert torch.allclose(mine.grad.double(), dense.grad[..., 4 * rank : 4 * rank + 4], atol=1e-5)

    marked = torch.nn.Linear(3, 3)
    sequence.mark_as_sequence_parallel_parameter(marked.bias)
    sequence.register_sequence_parallel_allreduce_hooks(marked, accumulation_steps=1)
    (marked(torch.ones(2, 3)) * (rank + 1)).sum().backward()
    assert torch.equal(marked.bias.grad, torch.full((3,), 6.0))
    assert torch.equal(marked.weight.grad, torch.full((3, 3), 2.0 * (rank + 1)))


def averaged_gradients() -> None:
    """Data parallelism over both, in one message per dtype."""
    rank = dist.get_rank()
    parameters = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, rank + 1.0)
    parameters.append(torch.nn.Parameter(torch.zeros(1)))  # without a gradient
    fleet.utils.hybrid_parallel_util.fused_allreduce_gradients(parameters)
    assert [p.grad.unique().tolist() for p in parameters[:2]] == [[1.5], [1.5]]
    assert parameters[2].grad is None


def tensors_and_checkpoints(folder: str) -> None:
    """Distributed tensors, and a save by two that is loaded whole, cut otherwise and through a program."""
    rank = dist.get_rank()
    mesh = dist.ProcessMesh([0, 1], dim_names=["mp"])
    x = torch.arange(24.0).reshape(4, 6)
    rows = dist.shard_tensor(x, mesh, [dist.Shard(0)])
    assert torch.equal(rows.to_local(), x.chunk(2)[rank])
    columns = dist.reshard(rows, mesh, [dist.Shard(1)])
    assert torch.equal(columns.to_local(), x.chunk(2, 1)[rank])
    assert torch.equal(dist.unshard_dtensor(columns), x)
    assert mesh.get_group("mp").ranks == [0, 1]

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    plan = {"parallelize_plan": {"0": dist.ColWiseParallel(), "1": dist.RowWiseParallel()}}
    dist.parallelize(model, mesh=mesh, config={"mp_config": plan})
    assert model[0].weight.to_local().shape == (4, 2)
    assert model[1].weight.to_local().shape == (2, 4)
    assert model[1].bias.to_local().shape == (4,)

    state = dist.build_sharded_state_dict({"w": x.chunk(2)[rank].clone(), "b": torch.ones(3)}, {"w": 0})
    dist.save_state_dict(state, folder)
    dist.save_state_dict({**state, "b": torch.full((3,), 2.0)}, folder)
    whole = {"w": torch.zeros(4, 6), "b": torch.zeros(3)}
    dist.load_state_dict(whole, folder)
    assert torch.equal(whole["w"], x)
    assert whole["b"].tolist() == [2, 2, 2]
    cut = {"turned": dist.ShardedWeight("turned", torch.zeros(3, 4), (3, 4), (6, 4), (3 * rank, 0))}
    dist.load_state_dict(cut, folder, unique_id=0, aoa_config={"aoa_statements": ["w^T -> turned", "b -> _"]})
    assert torch.equal(cut["turned"].local_tensor, x.T.chunk(2)[rank])
    merged = dist.load_merged_state_dict(folder, aoa_config={"aoa_statements": ["w^T -> turned"]})
    assert torch.equal(merged["turned"], x.T)


def worker(folder: str) -> dict[str, Any]:
    assert dist.init_parallel_env().nranks == 2
    found = {**messages(), **layout()}
    parallel_parts()
    averaged_gradients()
    tensors_and_checkpoints(folder)
    dist.barrier()
    dist.destroy_process_group()
    return found


def test_two_processes(tmp_path: Path) -> None:
    first, second = run_ranks(2, worker, str(tmp_path / "saved"), timeout=120)
    for found in (first, second):
        assert found["sum"] == [3, 4]
        assert found["mean"] == [1.5, 2]
        assert found["max"] == [2, 2]
        assert found["gather"] == [1, 2, 2, 2]
        assert found["broadcast"] == [2, 2]
        assert found["objects"] == [{"rank": 0}, {"rank": 1}]
        assert found["received"] == [1, 2]
        assert found["group"] == [[0, 1], 2]
        assert found["dp"] == [0, 1]
    assert (first["reduce_scatter"], second["reduce_scatter"]) == ([3], [4])
    assert (first["scatter"], second["scatter"]) == ([5, 5], [6, 6])
    assert (first["alltoall"], second["alltoall"]) == ([1, 2], [2, 2])
    assert (first["alltoall_single"], second["alltoall_single"]) == ([1, 2], [2, 2])
    assert (first["mp"], second["mp"]) == ([0, 2], [1, 2])
    assert (first["alone"], second["alone"]) == ([-1, 1, False], [0, 1, False])


def test_a_process_alone(tmp_path: Path) -> None:
    """The same program without torchrun."""
    x = torch.arange(6.0)
    dist.all_reduce(x)
    assert torch.equal(x, torch.arange(6.0))
    parts: list[torch.Tensor] = []
    dist.all_gather(parts, x)
    assert torch.equal(parts[0], x)
    assert (dist.get_rank(), dist.get_world_size(), dist.init_parallel_env().nranks) == (0, 1, 1)
    assert fleet.get_hybrid_communicate_group().get_model_parallel_world_size() == 1
    leaf = torch.ones(2, 2, requires_grad=True)
    for operation in (sequence.ScatterOp, sequence.GatherOp, sequence.AllGatherOp, sequence.ReduceScatterOp):
        assert torch.equal(operation.apply(leaf), leaf)
    dist.save_state_dict({"a": {"b": torch.ones(2)}}, tmp_path, async_save=True)
    target = {"a.b": torch.zeros(2)}
    dist.load_state_dict(target, tmp_path)
    assert target["a.b"].tolist() == [1, 1]


def test_recompute_gives_the_same_gradients_and_randomness() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 4))
    x = torch.randn(8, 4)
    gradients = []
    for function in (layer, lambda x: fleet.utils.recompute(layer, x, use_reentrant=True)):
        torch.manual_seed(3)
        layer.zero_grad()
        function(x).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_random_streams_by_name() -> None:
    tracker = fleet.meta_parallel.RNGStatesTracker()
    tracker.add("local", 7)
    torch.manual_seed(1)
    with tracker.rng_state("local"):
        first = torch.rand(3)
    outside = torch.rand(3)
    with tracker.rng_state("local"):
        second = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(outside, torch.rand(3))
    torch.manual_seed(7)
    assert torch.equal(torch.cat([first, second]), torch.cat([torch.rand(3), torch.rand(3)]))


def test_paddle_has_it() -> None:
    assert paddle.distributed is dist
