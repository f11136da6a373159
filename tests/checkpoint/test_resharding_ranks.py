"""Real processes over gloo: meshes of DTensors change their layout in memory, several times with one plan."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as OnDim

from oarlock.checkpoint import CheckpointError, Shard, plan_reshard, reshard
from process_group import run_ranks

ALL = [0, 1, 2, 3]
PROGRAM = """
q, k, v -> qkv, fused_qkv, num_heads=4, num_key_value_groups=2, axis=0
gate_up -> gate, up, axis=0, dtype=bfloat16
down^T -> down
embed -> embed
"""


def whole() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (16, 6), "k": (8, 6), "v": (8, 6), "gate_up": (20, 6), "down": (6, 10), "embed": (11, 6)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def converted(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The program, by hand."""
    q, k, v = (tensors[name].view(2, -1, 6) for name in "qkv")
    gate, up = tensors["gate_up"].bfloat16().chunk(2)
    qkv = torch.cat([q, k, v], 1).reshape(-1, 6)
    return {"qkv": qkv, "gate": gate, "up": up, "down": tensors["down"].T, "embed": tensors["embed"]}


def on_mesh(tensor: Tensor, mesh: DeviceMesh, placements: list[Any]) -> DTensor:
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def two_by_two_to_four() -> dict[str, Any]:
    """Data x tensor parallel, to tensor parallel over all four ranks, through a program; a fifth has nothing."""
    square, line = DeviceMesh("cpu", torch.tensor(ALL).view(2, 2)), DeviceMesh("cpu", ALL)
    placements = {"embed": [Replicate(), OnDim(0)], "down": [OnDim(0), OnDim(1)], "q": [Replicate(), Replicate()]}
    values = whole()
    src = {n: on_mesh(t, square, placements.get(n, [OnDim(0), OnDim(0)])) for n, t in values.items()}
    dst = {n: on_mesh(torch.zeros_like(t), line, [OnDim(0)]) for n, t in converted(values).items()}
    plan = plan_reshard(src, dst, aoa=PROGRAM, strict="destination", staging_bytes=500)
    for _ in range(2):
        report = plan.run()
        for name, expected in converted({n: t * 1.0 for n, t in values.items()}).items():
            assert dist.get_rank() == 4 or torch.equal(dst[name].full_tensor(), expected), name
        for name, tensor in values.items():
            values[name] = tensor.mul(2)
            src[name].to_local().mul_(2)
    return {"sent": report.sent, "received": report.received}


def three_to_two() -> int:
    """Flat ZeRO slices of three ranks to tensor parallelism over two others, optimizer state and all."""
    rank = dist.get_rank()
    values = {f"{slot}/{name}": t for slot in ("exp_avg", "master") for name, t in whole().items()}
    src: dict[str, Tensor | Shard] = {}
    if rank < 3:
        for name, tensor in values.items():
            length = -(-tensor.numel() // 3)
            part = tensor.flatten()[rank * length : (rank + 1) * length].clone()
            src[name] = Shard.flat(part, tensor.shape, rank * length)
        src |= {f"step/{name}": torch.tensor(5.0) for name in whole()}
    dst: dict[str, Tensor | Shard] = {}
    wanted = {f"{s}/{n}": t for s in ("exp_avg", "master") for n, t in _uncast(whole()).items()}
    if rank >= 3:
        for name, tensor in wanted.items():
            part = torch.zeros_like(tensor.tensor_split(2)[rank - 3])
            dst[name] = Shard.box(part, tensor.shape, (0 if rank == 3 else len(tensor.tensor_split(2)[0]), 0))
        dst |= {f"step/{name}": torch.tensor(0.0) for name in _uncast(whole())}
    report = reshard(src, dst, aoa=PROGRAM, slots=True)
    for name, value in dst.items():
        if name.startswith("step/"):
            assert value == 5
        else:
            assert isinstance(value, Shard)
            assert torch.equal(value.tensor, wanted[name].tensor_split(2)[rank - 3]), name
    return report.received[rank]


def _uncast(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    gate, up = tensors["gate_up"].chunk(2)
    return converted(tensors) | {"gate": gate, "up": up}


def one_dies() -> str:
    """Rank 1 leaves before its plan runs; the others hear of it."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    src = {"w": Shard.box(torch.full((2,), float(rank)), (2 * size,), (2 * rank,))}
    plan = plan_reshard(src, {"w": torch.zeros(2 * size)})
    if rank == 1:
        return "gone"
    try:
        plan.run()
    except CheckpointError as error:
        return str(error)
    return "nothing was raised"


def in_a_group() -> list[float]:
    """Only ranks 1 and 2 take part; peers are told by their place in the group."""
    group = dist.new_group([1, 2])
    tensor = torch.zeros(3)
    if dist.get_rank() in (1, 2):
        assert isinstance(group, dist.ProcessGroup)
        last = dist.get_rank() == 2
        reshard({"w": torch.ones(3)} if last else {}, {} if last else {"w": tensor}, group)
    return tensor.tolist()


def all_of_them() -> list[Any]:
    dist.init_process_group("gloo")
    results = [two_by_two_to_four(), three_to_two(), in_a_group()]
    dist.destroy_process_group()
    return results


def test_meshes_and_groups() -> None:
    moved, received, grouped = zip(*run_ranks(5, all_of_them, timeout=120), strict=True)
    assert all(report == moved[0] for report in moved)
    assert sum(moved[0]["sent"]) > 0
    total = sum(t.nbytes for t in whole().values())
    assert received[:3] == (0, 0, 0)
    assert sum(received) == 2 * total + 2 * 4 * 4, "gate and up share a step"
    assert list(grouped) == [[0] * 3, [1] * 3, [0] * 3, [0] * 3, [0] * 3]


def test_a_rank_that_is_gone() -> None:
    first, gone, third = run_ranks(3, one_dies, timeout=60)
    assert gone == "gone"
    assert "lost contact with another rank" in first
    assert "lost contact with another rank" in third
