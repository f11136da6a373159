"""Saving: validate, write everything under a temporary name, sync, then publish by one rename."""

import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from oarlock.checkpoint import directory
from oarlock.checkpoint.agreement import all_or_none, describe
from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.distribution import GroupPlan, Table, describe_shards, distribute, exchange
from oarlock.checkpoint.manifest import (
    MANIFEST_NAME,
    CheckpointError,
    FileEntry,
    Manifest,
    check_json,
    check_plain_name,
    decode_table,
    encode_entry,
    encode_manifest,
    piece_name,
)
from oarlock.checkpoint.shards import Shard, shard_of
from oarlock.checkpoint.tensor_file import HashedFile, write_tensor_file
from oarlock.digest import check_has_bytes
from oarlock.ranks import Ranks

TensorGroups = Mapping[str, Mapping[str, Tensor | Shard]]

DEFAULT_SHARD_BYTES = 4 << 30


def save_checkpoint(
    root: str | PathLike[str],
    step: int,
    *,
    tensors: TensorGroups,
    state: Any = None,
    rank_tensors: TensorGroups | None = None,
    rank_state: Any = None,
    files: Mapping[str, bytes | str | PathLike[str]] | None = None,
    keep_last: int | None = None,
    overwrite: bool = False,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    group: dist.ProcessGroup | None = None,
) -> Path:
    """Save a checkpoint as `root/step-XXXXXXXX`: complete, durable and verified by digests, or not there at all.

    With several processes every rank calls it with the same root and step (on a file system that all of them share)
    and its own parts of `tensors`; what several hold is written once, spread evenly. Rank 0 writes `state` and `files`,
    each rank its own `rank_tensors` and `rank_state`. If one rank fails, all raise and nothing is published.

    Args:
        root: folder of checkpoints; created if missing.
        step: training step, >= 0; names the checkpoint.
        tensors: group -> name -> tensor of any dtype, shape, strides and device: whole, a DTensor, or a
            :class:`Shard`. A group becomes the file `<group>.safetensors`, or several. Names that share one tensor
            (tied weights) store it once and share it again after loading.
        state: JSON-able state of the run. Tuples come back as lists.
        rank_tensors: like `tensors`, for tensors that differ between ranks: `<group>-rank-<r>.safetensors`.
        rank_state: JSON-able state that differs between ranks: `rank-<r>.json`.
        files: small files to keep in the checkpoint, such as `config.json`: name -> content (bytes) or path to copy.
        keep_last: after publishing, delete all but this many newest checkpoints up to this step; None keeps all.
        overwrite: replace a checkpoint of the same step; there is no moment at which neither is complete.
        max_shard_bytes: largest file of tensors (a single larger tensor gets a file of its own).
        group: the processes that save together; None = all of them, or this one without torch.distributed.

    Returns:
        The directory of the new checkpoint.

    Raises:
        CheckpointError: the step exists, another process saves here, the disk is full, a permission is missing, or
            another rank failed; checkpoints that existed are untouched and the unfinished one is removed.
        ValueError, TypeError: an argument that cannot be saved (a state that is not JSON, a bad group name).
    """
    root = Path(root)
    ranks = Ranks(group)
    failure = f"saving step {step} into {root} failed, existing checkpoints are untouched"
    with ExitStack() as cleanup:

        def prepare() -> str | None:
            _check_arguments(step, state, rank_state, keep_last, max_shard_bytes)
            if ranks.rank > 0:
                return None
            if cleanup.enter_context(directory.locked(root)):
                directory.tidy(root)
            if not overwrite and any(directory.step_of(p) == step for p in directory.list_checkpoints(root)):
                raise CheckpointError(f"a checkpoint of step {step} exists; pass overwrite=True to replace it")
            temporary = directory.new_temporary(root, step)
            cleanup.callback(shutil.rmtree, temporary, ignore_errors=True)
            return temporary.name

        temporary = root / all_or_none(ranks, prepare, failure)[0]

        described: list[dict[str, _Group]] = []
        all_or_none(ranks, lambda: described.append(_describe(tensors, temporary)), failure)
        shared = described[0]
        tables = exchange(ranks, {group: content.table for group, content in shared.items()})

        def write() -> dict[str, Any]:
            part = _Part(temporary)
            for group, plan in _distribute(tables, max_shard_bytes).items():
                part.add_group(plan, ranks.rank, shared[group].shards if group in shared else {})
                plans[group] = plan
            if ranks.rank == 0:
                for name, content in (files or {}).items():
                    part.add_file(check_plain_name(name, "file"), content)
            own = {}
            for group, content in _describe(rank_tensors or {}, temporary).items():
                plan = distribute(f"{group}-rank-{ranks.rank}", [content.table], max_shard_bytes)
                part.add_group(plan, 0, content.shards)
                own[group] = {name: encode_entry(entry) for name, entry in plan.entries.items()}
            if rank_state is not None:
                part.add_file(f"rank-{ranks.rank}.json", json.dumps(rank_state).encode())
            return {"files": part.files, "rank_tensors": own}

        plans: dict[str, GroupPlan] = {}
        reports = all_or_none(ranks, lambda: _with_advice(write, root), failure)

        def publish() -> str | None:
            if ranks.rank > 0:
                return None
            manifest = Manifest(
                step=step,
                world_size=ranks.size,
                state=state,
                files={name: _file_entry(*entry) for report in reports for name, entry in report["files"].items()},
                tensors={group: plan.entries for group, plan in plans.items()},
                rank_tensors=tuple(decode_table(report["rank_tensors"]) for report in reports),
            )
            with HashedFile(temporary / MANIFEST_NAME) as file:
                file.write(encode_manifest(manifest))
            path = directory.publish(temporary, root, step)
            if keep_last is not None:
                _retain(root, step, keep_last)
            return str(path)

        return Path(all_or_none(ranks, lambda: _with_advice(publish, root), failure)[0])


def _file_entry(num_bytes: int, digest: str, blocks: Sequence[str]) -> FileEntry:
    return FileEntry(num_bytes, digest, tuple(blocks))


@dataclass(frozen=True)
class _Group:
    """What this rank holds of a group."""

    shards: dict[str, Shard]
    table: Table


def _describe(groups: TensorGroups, temporary: Path) -> dict[str, _Group]:
    if not temporary.is_dir():
        raise CheckpointError(f"cannot see {temporary}; all ranks must share one file system for checkpoints")
    described = {}
    for group, tensors in groups.items():
        check_plain_name(group, "group of tensors")
        if "__metadata__" in tensors:
            raise ValueError(f"group {group!r}: '__metadata__' is reserved by safetensors; rename the tensor")
        shards = {name: shard_of(value) for name, value in tensors.items()}
        for shard in shards.values():
            check_has_bytes(shard.tensor)
        described[group] = _Group(shards, describe_shards(shards, _find_ties(shards)))
    return described


def _distribute(tables: Sequence[Mapping[str, Table]], max_shard_bytes: int) -> dict[str, GroupPlan]:
    groups = dict.fromkeys(group for table in tables for group in table)
    return {group: distribute(group, [table.get(group, {}) for table in tables], max_shard_bytes) for group in groups}


class _Part:
    """The files that one rank adds to the checkpoint, with what the manifest says about them (JSON-able)."""

    def __init__(self, temporary: Path) -> None:
        self._temporary = temporary
        self.files: dict[str, list[Any]] = {}

    def add_file(self, name: str, content: bytes | str | PathLike[str]) -> None:
        data = content if isinstance(content, bytes) else Path(content).read_bytes()
        with HashedFile(self._temporary / name) as file:
            file.write(data)
        self._record(name, file.entry)

    def add_group(self, plan: GroupPlan, rank: int, shards: Mapping[str, Shard]) -> None:
        """Write this rank's files of a group, and on its first rank the index of all."""
        for file in plan.files:
            if file.rank == rank:
                content = {}
                for name, box in file.pieces:
                    shard = shards[name]
                    content[piece_name(name, shard.shape, box)] = _piece_of(shard, box)
                self._record(file.name, write_tensor_file(self._temporary / file.name, content))
        if plan.files[0].rank == rank and (weight_map := plan.weight_map):
            index = {"metadata": {"total_size": plan.num_bytes}, "weight_map": weight_map}
            self.add_file(f"{plan.group}.safetensors.index.json", json.dumps(index, indent=1).encode())

    def _record(self, name: str, entry: FileEntry) -> None:
        self.files[name] = [entry.bytes, entry.digest, entry.blocks]


def _piece_of(shard: Shard, box: Box) -> Tensor:
    if not box.volume:
        return torch.empty(box.size, dtype=shard.dtype)
    return next(view for other, view in shard.views() if other == box)


def _check_arguments(step: int, state: Any, rank_state: Any, keep_last: int | None, max_shard_bytes: int) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step must be an integer >= 0, got {step!r}")
    if keep_last is not None and keep_last < 1:
        raise ValueError(f"keep_last must be None or >= 1, got {keep_last}")
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes must be >= 1, got {max_shard_bytes}")
    check_json(state, "state")
    check_json(rank_state, "rank_state")


def _find_ties(shards: Mapping[str, Shard]) -> dict[str, str]:
    """Names whose tensor is, element for element, the memory of an earlier name's: name -> earlier name."""
    first: dict[tuple[Any, ...], str] = {}
    ties = {}
    for name, shard in shards.items():
        tensor = shard.tensor
        if tensor.numel() == 0:
            continue
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        earlier = first.setdefault((*memory, tensor.is_conj(), tensor.is_neg(), shard.shape, shard.pieces), name)
        if earlier != name:
            ties[name] = earlier
    return ties


def _retain(root: Path, step: int, keep_last: int) -> None:
    try:
        directory.retain(root, step, keep_last)
    except OSError as error:
        message = f"step {step} is saved in {root}, but an older checkpoint could not be deleted: {describe(error)}"
        warnings.warn(message, stacklevel=2)


def _with_advice(action: Any, root: Path) -> Any:
    """Run `action`; an OSError becomes a CheckpointError that says what is left of the disk."""
    try:
        return action()
    except OSError as error:
        free = os.statvfs(root)
        gib = free.f_bavail * free.f_frsize / 2**30
        raise CheckpointError(f"{describe(error)}; {root} has {gib:.3f} GiB free") from error
