"""Real processes save on one layout and load on another; every element arrives where the global tensor has it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as OnDim

from oarlock.checkpoint import CheckpointError, Shard, load_checkpoint, save_checkpoint
from process_group import run_ranks

FFN, WIDTH = 12, 5


def whole() -> dict[str, torch.Tensor]:
    """The global tensors."""
    generator = torch.Generator().manual_seed(0)
    return {
        "rows": torch.randn(7, 3, generator=generator),
        "columns": torch.randn(2, 10, generator=generator).bfloat16(),
        "grid": torch.randn(5, 3, generator=generator),
        "few": torch.randn(2, 4, generator=generator),
        "flat": torch.randn(4, 3, 2, generator=generator),
        "gate_up": torch.randn(2 * FFN, WIDTH, generator=generator),
        "same": torch.arange(300_000, dtype=torch.int32),
        "step": torch.tensor(17.0),
    }


def spread(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor | Shard]:
    """This rank's part of them, for any number of ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    line = init_device_mesh("cpu", (size,))
    square = init_device_mesh("cpu", (2, size // 2) if size % 2 == 0 else (1, size))
    flat = tensors["flat"].flatten()
    length = -(-flat.numel() // size)
    padded = torch.cat([flat, torch.full((length * size - flat.numel(),), -1.0)])
    parts = [half.tensor_split(size)[rank] for half in tensors["gate_up"].split(FFN)]
    return {
        "rows": distribute_tensor(tensors["rows"], line, [OnDim(0)]),
        "columns": distribute_tensor(tensors["columns"], line, [OnDim(1)]),
        "grid": distribute_tensor(tensors["grid"], square, [OnDim(0), OnDim(0)]),
        "few": distribute_tensor(tensors["few"], square, [Replicate(), OnDim(0)]),
        "flat": Shard.flat(padded[rank * length : (rank + 1) * length].clone(), (4, 3, 2), min(rank * length, 24)),
        "gate_up": Shard.fused(torch.cat(parts), [FFN, FFN], rank=rank, num_ranks=size),
        "same": tensors["same"].clone(),
        "step": tensors["step"].clone(),
    }


def memory(value: torch.Tensor | Shard) -> torch.Tensor:
    if isinstance(value, Shard):
        return value.tensor
    return value.to_local() if isinstance(value, DTensor) else value


def save(root: str) -> None:
    dist.init_process_group("gloo")
    save_checkpoint(root, 1, tensors={"model": spread(whole())}, max_shard_bytes=300)
    dist.destroy_process_group()


def load(path: str, verify: bool) -> dict[str, Any]:
    dist.init_process_group("gloo")
    expected = spread(whole())
    found = spread({name: torch.zeros_like(tensor) for name, tensor in whole().items()})
    report = load_checkpoint(path, verify="read" if verify else False).load("model", found)
    for name in expected:
        if name == "flat":
            pairs = zip(expected[name].views(), found[name].views(), strict=True)
            assert all(torch.equal(a, b) for (_, a), (_, b) in pairs), name
        else:
            assert torch.equal(memory(expected[name]), memory(found[name])), name
    messages = faults_of_rank_1(path)
    dist.destroy_process_group()
    return {"bytes": report.bytes_needed, "loaded": len(report.loaded), "messages": messages}


def faults_of_rank_1(path: str) -> list[str]:
    """All ranks raise and nothing changes; a load in the same processes works afterwards."""
    messages = []
    saved = load_checkpoint(path, verify="read")
    for change in ({"rows": torch.zeros(3, 7)}, {"rows": torch.zeros(7, 3).double()}, {"rowz": torch.zeros(7, 3)}):
        found = spread({name: torch.zeros_like(tensor) for name, tensor in whole().items()})
        if dist.get_rank() == 1:
            found |= change
        try:
            saved.load("model", found)
        except CheckpointError as error:
            messages.append(str(error))
        assert all(not (memory(value) > 0).any() for value in found.values())
    saved.load("model", spread(whole()))
    return messages


@pytest.fixture(scope="module", params=[(2, 4), (3, 2)], ids=["2 to 4", "3 to 2"])
def ranks(request: pytest.FixtureRequest) -> tuple[int, int]:
    """How many save and how many load."""
    return request.param


@pytest.fixture(scope="module")
def saved(ranks: tuple[int, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("saved")
    run_ranks(ranks[0], save, root)
    return root / "step-00000001"


def test_one_process_reads_all_of_it(saved: Path) -> None:
    tensors = load_checkpoint(saved).tensors("model")
    assert tensors.keys() == whole().keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in whole().items())
    destinations = {
        name: torch.zeros_like(tensor.mT).mT if tensor.dim() == 2 else torch.zeros_like(tensor)
        for name, tensor in whole().items()
    }
    load_checkpoint(saved, verify="read").load("model", destinations)
    assert all(torch.equal(destinations[name], tensor) for name, tensor in whole().items())


def test_each_element_is_stored_once_and_spread_evenly(saved: Path) -> None:
    manifest = json.loads((saved / "oarlock.json").read_text())
    sizes = {name: entry["bytes"] for name, entry in manifest["files"].items() if name.endswith(".safetensors")}
    headers = {name: int.from_bytes((saved / name).read_bytes()[:8], "little") + 8 for name in sizes}
    data = sum(sizes.values()) - sum(headers.values())
    assert data == sum(tensor.nbytes for tensor in whole().values())


def test_other_numbers_of_ranks(saved: Path, ranks: tuple[int, int]) -> None:
    reports = run_ranks(ranks[1], load, saved, ranks[1] == 4)
    least = sum(tensor.nbytes for tensor in whole().values())
    assert sum(report["bytes"] for report in reports) >= least
    assert {report["loaded"] for report in reports} == {len(whole())}
    ours, theirs = (report["messages"] for report in reports[:2])
    assert ours == theirs
    assert "rank 1: rows: the checkpoint has shape [7, 3], the destination [3, 7]" in ours[0]
    assert "rank 1: rows: the checkpoint has torch.float32, the destination torch.float64; pass cast=True" in ours[1]
    assert "rank 1: 1 tensors have no source: rowz (did you mean rows?)" in ours[2]


def damage_one_bit(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 4
    path.write_bytes(raw)


def test_a_flipped_bit_is_found_by_partial_reads(tmp_path: Path) -> None:
    tensor = torch.arange(3 << 20, dtype=torch.float32).view(3, 1 << 20)
    path = save_checkpoint(tmp_path, 1, tensors={"g": {"w": tensor}})
    file = path / "g.safetensors"
    damage_one_bit(file, os.path.getsize(file) - 5)  # in the last row
    first = Shard.box(torch.zeros(1, 1 << 20), (3, 1 << 20), (0, 0))
    load_checkpoint(path, verify="read").load("g", {"w": first})
    assert torch.equal(first.tensor, tensor[:1])
    last_row = Shard.box(torch.zeros(1, 1 << 20), (3, 1 << 20), (2, 0))
    last_columns = Shard.box(torch.zeros(3, 9), (3, 1 << 20), (0, (1 << 20) - 9))
    for box in (last_row, last_columns):
        with pytest.raises(CheckpointError, match=r"g.safetensors: bytes \d+ to \d+: expected digest"):
            load_checkpoint(path, verify="read").load("g", {"w": box})
        assert not box.tensor.any()
    damage_one_bit(file, 30)  # in the header, read by everybody
    with pytest.raises(CheckpointError, match=r"g.safetensors"):
        load_checkpoint(path, verify="read").load("g", {"w": first})
