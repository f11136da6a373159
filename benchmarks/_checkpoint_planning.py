"""The parts of benchmarks/checkpoint.py that need one process: planning reads, compiling programs."""

import gc
import time
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


def row(figure: str, value: float, detail: str) -> Row:
    """A row of the result."""
    return {"figure": figure, "value": round(value, 4), "detail": detail}


def plan_row(num_tensors: int = 4000, num_pieces: int = 64) -> Row:
    """The reads of one rank of column shards from pieces of rows: every piece of every tensor is one."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    from oarlock.checkpoint.boxes import Box
    from oarlock.checkpoint.loading import LoadPlan
    from oarlock.checkpoint.mapped_file import MappedFile
    from oarlock.checkpoint.shards import Shard
    from oarlock.checkpoint.stored import StoredPiece, StoredTensor

    height, width = 8 * num_pieces, 256
    names = [f"t{i}" for i in range(num_tensors)]
    chunks = [ChunkStorageMetadata(torch.Size([8 * r, 0]), torch.Size([8, width])) for r in range(num_pieces)]
    properties = TensorProperties(dtype=torch.float32)
    metadata = {name: TensorStorageMetadata(properties, torch.Size([height, width]), chunks) for name in names}
    wanted = [ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([height, 4]))]
    files = [MappedFile(Path(f"{r}.safetensors")) for r in range(num_pieces)]
    pieces = tuple(StoredPiece(file, f"t@{8 * r},0", Box((8 * r, 0), (8, width))) for r, file in enumerate(files))
    stored = {name: StoredTensor(torch.float32, (height, width), pieces) for name in names}
    shards = {name: Shard.box(torch.empty(height, 4), (height, width), (0, 0)) for name in names}

    def of_dcp() -> int:
        return sum(len(create_read_items_for_chunk_list(name, metadata[name], wanted)) for name in names)

    def ours() -> int:
        plan = LoadPlan(stored, shards, strict="all", cast=False)
        plan.by_name()
        plan.finish()
        return sum(1 for transfer in plan.transfers for _ in transfer.reads)

    best = {}
    for _ in range(3):
        for name, count in (("dcp", of_dcp), ("ours", ours)):
            gc.collect()
            start = time.process_time()
            assert count() == num_tensors * num_pieces
            best[name] = min(best.get(name, 1e9), time.process_time() - start)
    return row("plan_vs_dcp", best["ours"] / best["dcp"], f"{best['ours']:.3f} s / {best['dcp']:.3f} s")


def aoa_row(num_layers: int = 61, num_experts: int = 64) -> Row:
    """Per-expert matrices, transposed, with gate and up as one."""
    from oarlock.checkpoint.aoa import AOA, TensorSpec

    shapes = {"gate_proj": (8, 16), "up_proj": (8, 16), "down_proj": (16, 8)}
    source = {
        f"model.layers.{i}.mlp.experts.{e}.{kind}.weight": TensorSpec(shape, torch.bfloat16)
        for i in range(num_layers)
        for e in range(num_experts)
        for kind, shape in shapes.items()
    }
    expert = "model.layers.$LAYER_ID.mlp.experts.$EXPERT_ID"
    text = (
        f"{expert}.gate_proj.weight^T, {expert}.up_proj.weight^T -> {expert}.gate_up, axis=1\n"
        f"{expert}.down_proj.weight^T -> {expert}.down"
    )
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        program = AOA(text).compile(source)
        best = min(best, time.process_time() - start)
    assert len(program.tensors) == 2 * num_layers * num_experts
    return row("aoa_compile_cpu_s", best, f"{len(source)} source tensors, {len(program.tensors)} results")
