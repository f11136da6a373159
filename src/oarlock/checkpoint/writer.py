"""Saving: agree on who writes what, write everything under a temporary name, sync, then publish by one rename."""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

import torch.distributed as dist

from oarlock.checkpoint import directory
from oarlock.checkpoint.agreement import all_or_none, describe_error, in_touch
from oarlock.checkpoint.background import LINE, PendingSave, background_group
from oarlock.checkpoint.content import (
    Content,
    Described,
    GroupContent,
    TensorGroups,
    copy_content,
    describe,
    own_content,
    pieces_of,
    read_files,
)
from oarlock.checkpoint.distribution import GroupPlan, Table, distribute, exchange
from oarlock.checkpoint.export import ExportPlan, plan_export
from oarlock.checkpoint.manifest import (
    MANIFEST_NAME,
    CheckpointError,
    FileEntry,
    Manifest,
    check_json,
    decode_copies,
    decode_table,
    encode_manifest,
)
from oarlock.checkpoint.tensor_file import HashedFile
from oarlock.ranks import Ranks

T = TypeVar("T")

DEFAULT_SHARD_BYTES = 4 << 30


class SaveOptions(TypedDict, total=False):
    """The optional arguments of save_checkpoint."""

    state: Any
    rank_tensors: TensorGroups | None
    rank_state: Any
    files: Mapping[str, bytes | str | PathLike[str]] | None
    hf: Mapping[str, str] | None
    copies: bool
    keep_last: int | None
    overwrite: bool
    max_shard_bytes: int
    group: dist.ProcessGroup | None


@overload
def save_checkpoint(
    root: str | PathLike[str],
    step: int,
    *,
    tensors: TensorGroups,
    wait: Literal[True] = True,
    **options: Unpack[SaveOptions],
) -> Path: ...


@overload
def save_checkpoint(
    root: str | PathLike[str],
    step: int,
    *,
    tensors: TensorGroups,
    wait: Literal[False],
    **options: Unpack[SaveOptions],
) -> PendingSave: ...


@overload
def save_checkpoint(
    root: str | PathLike[str],
    step: int,
    *,
    tensors: TensorGroups,
    wait: bool,
    **options: Unpack[SaveOptions],
) -> Path | PendingSave: ...


def save_checkpoint(
    root: str | PathLike[str],
    step: int,
    *,
    tensors: TensorGroups,
    state: Any = None,
    rank_tensors: TensorGroups | None = None,
    rank_state: Any = None,
    files: Mapping[str, bytes | str | PathLike[str]] | None = None,
    hf: Mapping[str, str] | None = None,
    copies: bool = False,
    keep_last: int | None = None,
    overwrite: bool = False,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    group: dist.ProcessGroup | None = None,
    wait: bool = True,
) -> Path | PendingSave:
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
        hf: groups to store as whole tensors under other names, as Hugging Face's libraries read them: group -> program
            in the AOA language (docs/aoa.md) from the group's names to theirs, "" for the same names. Such a group
            comes with `<group>.safetensors.index.json`; called `model`, with a `config.json` in `files`, it makes the
            directory a checkpoint of Hugging Face. The group is loaded by its own names all the same; what the program
            drops or casts is lost. Each file is written by one rank, to which the others send what it lacks.
        copies: each rank also writes what it holds and others write, into `<group>-copy-<r>.safetensors`. A load by as
            many ranks, with each tensor spread as it was, then reads no file of another rank. Not for groups in `hf`.
        keep_last: after publishing, delete all but this many newest checkpoints up to this step; None keeps all.
        overwrite: replace a checkpoint of the same step; there is no moment at which neither is complete.
        max_shard_bytes: largest file of tensors (a single larger tensor gets a file of its own).
        group: the processes that save together; None = all of them, or this one without torch.distributed.
        wait: False = return as soon as everything is copied, and go on in the background, after the saves that went
            before. The tensors may change at once. Call `result` of what is returned before torch.distributed is shut
            down; Python itself waits before it exits.

    Returns:
        The directory of the new checkpoint; with wait=False a :class:`PendingSave`, which has it when it is done.

    Raises:
        CheckpointError: the step exists, another process saves here, the disk is full, a permission is missing, or
            another rank failed; checkpoints that existed are untouched and the unfinished one is removed. Or an
            earlier save in the background has failed, which nobody has been told yet.
        ValueError, TypeError: an argument that cannot be saved (a state that is not JSON, a bad group name).
    """
    root, ranks = Path(root), Ranks(group)
    failure = f"saving step {step} into {root} failed, existing checkpoints are untouched"
    described: list[tuple[dict[str, Described], dict[str, Described], dict[str, bytes]]] = []

    def look() -> str | None:
        earlier = LINE.failure(wait=wait)
        _check_arguments(step, tensors, state, rank_state, hf or {}, keep_last, max_shard_bytes)
        given = read_files(files or {}) if ranks.rank == 0 else {}
        if rank_state is not None:
            given[f"rank-{ranks.rank}.json"] = json.dumps(rank_state).encode()
        described.append((describe(tensors), describe(rank_tensors or {}), given))
        return earlier

    earlier = all_or_none(ranks, look, failure)
    if told := next((text for text in earlier if text is not None), None):
        LINE.settle()
        raise CheckpointError(told)
    shared, own, given = described.pop()
    with in_touch(failure):
        tables = exchange(ranks, {name: content.table for name, content in shared.items()})
    contents: list[Content] = []
    arena = None if wait else LINE.arena()

    def gather() -> None:
        plans = _plan(tables, hf or {}, max_shard_bytes)
        content = Content(
            step=step,
            rank=ranks.rank,
            state=state,
            groups={
                name: GroupContent(plan, pieces_of(plan, ranks.rank, shared[name].shards if name in shared else {}))
                for name, plan in plans.items()
            },
            own_groups={name: own_content(name, own[name], ranks.rank, max_shard_bytes) for name in own},
            copies={
                name: copy_content(name, shared[name], plan, ranks.rank, max_shard_bytes)
                for name, plan in plans.items()
                if copies and name in shared and isinstance(plan, GroupPlan)
            },
            files=given,
        )
        if arena is not None:
            content = content.with_tensors(iter(arena.copy(list(content.tensors()))))
        contents.append(content)

    options: dict[str, Any] = {"keep_last": keep_last, "overwrite": overwrite, "copies": copies}
    if arena is None:
        all_or_none(ranks, gather, failure)
        return _write(root, ranks, contents.pop(), failure, **options)
    try:
        all_or_none(ranks, gather, failure)
        with in_touch(failure):
            own_ranks = Ranks(background_group(group))
    except BaseException:
        arena.free.set()
        raise
    action = partial(_write, root, own_ranks, contents.pop(), failure, **options)
    return LINE.submit(step, arena, action)


def _write(
    root: Path, ranks: Ranks, content: Content, failure: str, *, keep_last: int | None, overwrite: bool, copies: bool
) -> Path:
    """Write and publish; all ranks do."""
    step = content.step
    with ExitStack() as cleanup:

        def prepare() -> str | None:
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
        all_or_none(ranks, partial(_check_visible, temporary), failure)
        reports = all_or_none(ranks, lambda: _with_advice(lambda: content.write(temporary, ranks), root), failure)

        def publish() -> str | None:
            if ranks.rank > 0:
                return None
            plans = {group: held.plan for group, held in content.groups.items()}
            manifest = Manifest(
                step=step,
                world_size=ranks.size,
                state=content.state,
                files={name: _file_entry(*entry) for report in reports for name, entry in report["files"].items()},
                tensors={group: plan.entries for group, plan in plans.items()},
                rank_tensors=tuple(decode_table(report["rank_tensors"]) for report in reports),
                copies=tuple(decode_copies(report["copies"]) for report in reports) if copies else (),
                programs={group: plan.program for group, plan in plans.items() if isinstance(plan, ExportPlan)},
            )
            with HashedFile(temporary / MANIFEST_NAME) as file:
                file.write(encode_manifest(manifest))
            path = directory.publish(temporary, root, step)
            if keep_last is not None:
                _retain(root, step, keep_last)
            return str(path)

        return Path(all_or_none(ranks, lambda: _with_advice(publish, root), failure)[0])


def _plan(
    tables: Sequence[Mapping[str, Table]], hf: Mapping[str, str], max_shard_bytes: int
) -> dict[str, GroupPlan | ExportPlan]:
    plans: dict[str, GroupPlan | ExportPlan] = {}
    for group in dict.fromkeys(group for table in tables for group in table):
        held = [table.get(group, {}) for table in tables]
        if group in hf:
            plans[group] = plan_export(group, hf[group], held, max_shard_bytes)
        else:
            plans[group] = distribute(group, held, max_shard_bytes)
    return plans


def _file_entry(num_bytes: int, digest: str, blocks: Sequence[str]) -> FileEntry:
    return FileEntry(num_bytes, digest, tuple(blocks))


def _check_arguments(
    step: int,
    tensors: TensorGroups,
    state: Any,
    rank_state: Any,
    hf: Mapping[str, str],
    keep_last: int | None,
    max_shard_bytes: int,
) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step must be an integer >= 0, got {step!r}")
    if keep_last is not None and keep_last < 1:
        raise ValueError(f"keep_last must be None or >= 1, got {keep_last}")
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes must be >= 1, got {max_shard_bytes}")
    if unknown := [group for group in hf if group not in tensors]:
        raise ValueError(f"hf names the group {unknown[0]!r}, but `tensors` has {', '.join(tensors) or 'none'}")
    check_json(state, "state")
    check_json(rank_state, "rank_state")


def _check_visible(temporary: Path) -> None:
    if not temporary.is_dir():
        raise CheckpointError(f"cannot see {temporary}; all ranks must share one file system for checkpoints")


def _retain(root: Path, step: int, keep_last: int) -> None:
    try:
        directory.retain(root, step, keep_last)
    except OSError as error:
        message = f"step {step} is saved in {root}, but an older checkpoint could not be deleted: "
        warnings.warn(message + describe_error(error), stacklevel=2)


def _with_advice(action: Callable[[], T], root: Path) -> T:
    """Run `action`; an OSError becomes a CheckpointError that says what is left of the disk."""
    try:
        return action()
    except OSError as error:
        free = os.statvfs(root)
        gib = free.f_bavail * free.f_frsize / 2**30
        raise CheckpointError(f"{describe_error(error)}; {root} has {gib:.3f} GiB free") from error
