"""The mesh without processes, and as four real ones see it."""

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from oarlock.parallel import Mesh
from oarlock.parallel.mesh import AXES, DENSE_AXES, EXPERT_AXES
from process_group import run_ranks


def test_alone() -> None:
    mesh = Mesh.build()
    assert mesh.axis_names == AXES
    for axis in AXES:
        assert (mesh.size(axis), mesh.rank(axis), mesh.group(axis)) == (1, 0, None)
    assert mesh.device_mesh is None
    assert repr(mesh.submesh("tensor", "data")) == "Mesh(data=0/1, tensor=0/1)"
    assert mesh.submesh("expert").device_mesh is None
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    before = model.weight.grad.clone()
    mesh.sum_gradients(model)
    assert torch.equal(model.weight.grad, before)
    mesh.check_same_parameters(model)
    mesh.barrier()
    assert mesh.sum_scalars([1, 2.5, True]) == [1.0, 2.5, 1.0]
    assert mesh.first_rank_first(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        mesh.first_rank_first(lambda: 1 // 0)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tensor": 2}, r"data=-1 cannot be inferred: 1 processes / \(pipeline 1 x context 1 x tensor 2 = 2\)"),
        ({"data": 2}, r"pipeline 1 x data 2 x context 1 x tensor 1 = 2, but there are 1 processes; make one axis -1"),
        ({"context": -1}, "only one axis can be -1, got data and context"),
        ({"data": 0}, "data=0 must be >= 1, or -1"),
        ({"pipeline": -2}, "pipeline=-2 must be >= 1, or -1"),
        ({"expert": 2}, "expert=2 must divide data x context = 1 x 1 = 1"),
        ({"expert": -1}, "expert=-1 must divide"),
    ],
)
def test_sizes_that_do_not_fit(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mesh.build(**sizes)


def test_unknown_axes() -> None:
    mesh = Mesh.build()
    with pytest.raises(ValueError, match=r"no axis 'model'; this mesh has pipeline, data, context, tensor"):
        mesh.size("model")
    with pytest.raises(ValueError, match=r"no axis 'tensor'; this mesh has data"):
        mesh.submesh("data").group("tensor")
    with pytest.raises(ValueError, match=r"the axes data, expert do not form one grid: expert is folded"):
        mesh.submesh("data", "expert")
    with pytest.raises(ValueError, match=r"at least one axis"):
        mesh.submesh()


LAYOUTS: list[dict[str, int]] = [
    {},
    {"tensor": 2},
    {"data": 2, "context": 2, "expert": 2},
    {"expert": 4},
    {"data": 2, "tensor": -1, "expert": 2},
    {"pipeline": 2, "data": 1, "context": 2, "expert": 2},
    {"pipeline": 4},
]


def look_at_layouts() -> list[Any]:
    seen = []
    for sizes in LAYOUTS:
        mesh = Mesh.build(**sizes)
        ranks = {axis: dist.get_process_group_ranks(mesh.group(axis)) for axis in AXES}
        seen.append({axis: [mesh.size(axis), mesh.rank(axis), ranks[axis]] for axis in AXES})
    return seen


def use_torch_device_mesh() -> list[Any]:
    mesh = Mesh.build(data=2, tensor=2, expert=2)
    part = mesh.submesh("tensor")
    assert part.axis_names == ("tensor",)
    sharded = distribute_tensor(torch.arange(8.0), part.device_mesh, [Shard(0)])
    experts = mesh.submesh("expert", "tensor")
    names = [mesh.device_mesh.mesh_dim_names, experts.device_mesh.mesh_dim_names]
    tensor = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(tensor, group=experts.group("expert"))
    return [sharded.to_local().tolist(), names, tensor.item()]


def use_replicas(folder: str) -> list[Any]:
    """data 2 x context 2: every rank is a replica of the weights; they differ in what they saw."""
    mesh = Mesh.build(data=2, context=2)
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    mesh.check_same_parameters(model)
    model(torch.full((1, 3), float(rank))).sum().backward()
    mesh.sum_gradients(model)
    total = mesh.sum_scalars([1.0, rank])

    seen = []
    try:
        mesh.first_rank_first(lambda: 1 // rank)
    except (ZeroDivisionError, RuntimeError) as error:
        seen.append(f"{type(error).__name__}: {error}")
    marker = f"{folder}/prepared"

    def prepare() -> str:
        if rank == 0:
            open(marker, "w").close()
        else:
            open(marker).close()  # fails unless rank 0 was first
        return f"done by {rank}"

    seen.append(mesh.first_rank_first(prepare))
    mesh.barrier()
    if rank == 3:
        model.weight.data[0, 1] += 1
    try:
        mesh.check_same_parameters(model)
    except RuntimeError as error:
        seen.append(str(error))
    return [model.weight.grad.flatten().tolist(), model.bias.grad.tolist(), total, seen]


def work(folder: str) -> dict[str, Any]:
    dist.init_process_group("gloo")
    results = {
        "layouts": look_at_layouts(),
        "device_mesh": use_torch_device_mesh(),
        "replicas": use_replicas(folder),
    }
    try:
        Mesh.build(data=3)
    except ValueError as error:
        results["error"] = str(error)
    dist.destroy_process_group()
    return results


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(4, work, tmp_path_factory.mktemp("mesh"))


@pytest.mark.parametrize("index", range(len(LAYOUTS)))
def test_layouts_of_four(four: list[dict[str, Any]], index: int) -> None:
    """Against an enumeration of the grid: rank = row-major index of the coordinates, in both foldings."""
    sizes = {"data": -1, "context": 1, "tensor": 1, "pipeline": 1, "expert": 1} | LAYOUTS[index]
    known = sizes["context"] * sizes["pipeline"] * max(sizes["data"], 1) * max(sizes["tensor"], 1)
    sizes = {axis: 4 // known if size == -1 else size for axis, size in sizes.items()}
    sizes["expert_data"] = sizes["data"] * sizes["context"] // sizes["expert"]
    for axes in (DENSE_AXES, EXPERT_AXES):
        grid = dict(enumerate(itertools.product(*(range(sizes[axis]) for axis in axes))))
        assert len(grid) == 4
        for rank, place in grid.items():
            for dim, axis in enumerate(axes):
                group = [r for r, p in grid.items() if p[:dim] + p[dim + 1 :] == place[:dim] + place[dim + 1 :]]
                assert four[rank]["layouts"][index][axis] == [sizes[axis], place[dim], group], (rank, axis)


def test_torch_builds_on_the_device_mesh(four: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(four):
        local, names, total = result["device_mesh"]
        assert local == ([0, 1, 2, 3] if rank % 2 == 0 else [4, 5, 6, 7])
        assert names == [list(DENSE_AXES), ["expert", "tensor"]]
        assert total == (2 if rank % 2 == 0 else 4)  # ranks 0 + 2, ranks 1 + 3


def test_replicas_over_data_and_context(four: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(four):
        weight_grad, bias_grad, total, seen = result["replicas"]
        assert weight_grad == [6.0, 6.0, 6.0]
        assert bias_grad == [4.0]
        assert total == [4.0, 6.0]
        failure = "JobError: rank 0 failed: ZeroDivisionError: integer division or modulo by zero"
        assert seen[0] == (failure.partition(": ")[2].partition(": ")[2] if rank == 0 else failure)
        assert seen[1] == f"done by {rank}"
        if rank in (1, 3):  # the data axis pairs ranks 1 and 3, the context axis ranks 2 and 3
            assert seen[2] == "1 of 2 tensors on ranks [1] differ from rank 0's: weight"


def test_the_arithmetic_with_four(four: list[dict[str, Any]]) -> None:
    for result in four:
        assert "data 3 x context 1 x tensor 1 = 3, but there are 4 processes" in result["error"]
