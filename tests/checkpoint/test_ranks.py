"""Two real processes save and load together; when one fails, both say so and nothing appears."""

import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from oarlock.checkpoint import CheckpointError, Shard, load_checkpoint, save_checkpoint, writer
from oarlock.checkpoint.content import Content
from oarlock.checkpoint.export import ExportPlan, _Part
from oarlock.checkpoint.mapped_file import MappedFile
from oarlock.checkpoint.tensor_file import HashedFile
from oarlock.checkpoint.transfers import Copy, Read
from process_group import run_ranks


def tensors_of(rank: int) -> dict[str, dict[str, torch.Tensor]]:
    return {"rng": {"position": torch.tensor([rank, 10 * rank])}, "empty": {}}


def save_and_load(root: str) -> list[Any]:
    rank = dist.get_rank()
    model = {"model": {"w": torch.arange(6.0), "tied": torch.zeros(0)}} if rank == 0 else {}
    for step in (1, 2, 3):
        path = save_checkpoint(
            root,
            step,
            tensors=model,
            state={"step": step} if rank == 0 else None,
            rank_tensors=tensors_of(rank),
            rank_state={"rank": rank, "text": "x" * 1000 * rank},
            keep_last=2,
        )
        assert path.is_dir(), "every rank returns after it was published"
    checkpoint = load_checkpoint(path)
    assert torch.equal(checkpoint.tensors("model")["w"], torch.arange(6.0))
    own = checkpoint.tensors("rng", rank=rank)["position"].tolist()
    result = [str(path), checkpoint.world_size, checkpoint.state, own, checkpoint.rank_state(rank)["rank"]]
    return result


def test_two_ranks(root: Path, results: list[dict[str, Any]]) -> None:
    root /= "save_and_load"
    path = str(root / "step-00000003")
    expected = [[path, 2, {"step": 3}, [0, 0], 0], [path, 2, {"step": 3}, [1, 10], 1]]
    assert [result["save_and_load"] for result in results] == expected
    assert sorted(os.listdir(root)) == ["step-00000002", "step-00000003"]
    checkpoint = load_checkpoint(path)
    assert checkpoint.groups(rank=1) == ["rng", "empty"]
    assert len(checkpoint.rank_state(1)["text"]) == 1000
    with pytest.raises(ValueError, match=r"saved by 2 ranks and has no state for rank 2"):
        checkpoint.tensors("rng", rank=2)


def fail_in_every_way(root: str) -> list[str]:
    """Each attempt fails on one rank only; the other must hear the reason instead of waiting for it."""
    rank = dist.get_rank()
    messages = []

    def attempt(**arguments: Any) -> None:
        try:
            save_checkpoint(root, 1, **{"tensors": {}, **arguments})
        except (CheckpointError, TypeError, ValueError, KeyboardInterrupt) as error:
            messages.append(f"{type(error).__name__}: {error}")
        else:
            messages.append("saved")

    class Interrupting(dict):
        def items(self) -> Any:
            raise KeyboardInterrupt

    attempt(rank_state={"bad": object()} if rank == 1 else None)
    attempt(rank_tensors={"g": {"w": torch.zeros(2, device="meta" if rank == 1 else "cpu")}})
    attempt(rank_tensors=Interrupting(g={}) if rank == 1 else {})
    attempt(files={"missing": "/nowhere/at-all"} if rank == 0 else {})
    if rank == 1:
        real, Path.is_dir = Path.is_dir, lambda self: False
    attempt()
    if rank == 1:
        Path.is_dir = real
    dist.barrier()  # rank 0 removes what was written after both know of the failure
    assert os.listdir(root) == []
    dist.barrier()
    attempt()
    attempt()
    return messages


def test_a_failing_rank_fails_all(root: Path, results: list[dict[str, Any]]) -> None:
    root /= "fail_in_every_way"
    ours, theirs = [result["fail_in_every_way"] for result in results]
    start = f"CheckpointError: saving step 1 into {root} failed, existing checkpoints are untouched: "
    assert theirs[0].startswith("TypeError: rank_state['bad'] is a object")
    assert ours[0].startswith(start + "rank 1: TypeError: rank_state['bad']")
    assert theirs[1].startswith("ValueError: a meta tensor has no data")
    assert ours[1].startswith(start + "rank 1: ValueError: a meta tensor")
    assert theirs[2].startswith("KeyboardInterrupt")
    assert ours[2].startswith(start + "rank 1: KeyboardInterrupt")
    assert ours[3] == theirs[3]
    assert ours[3].startswith(start + "rank 0: No such file or directory (at-all)")
    assert "rank 1: cannot see" in ours[4]
    assert "all ranks must share one file system" in ours[4]
    assert ours[5:] == theirs[5:]
    assert ours[5] == "saved"
    assert "rank 0: a checkpoint of step 1 exists" in ours[6]
    assert os.listdir(root) == ["step-00000001"]


def failing_after(calls: int, real: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """A stand-in for `real` that raises when it was called so often."""
    left = itertools.count(-calls)

    def stand_in(*args: Any, **options: Any) -> Any:
        if next(left) >= 0:
            raise error
        return real(*args, **options)

    return stand_in


def fail_in_an_exchange(root: str) -> list[str]:
    """Rank 1 cannot go on while whole tensors are put together; rank 0 must not wait for gloo to lose patience."""
    rank = dist.get_rank()
    parts = [Shard.box(torch.full((1, 1000), float(rank + i)), (2, 1000), (rank, 0)) for i in range(6)]
    model = dict(zip("abcd", parts, strict=False))
    options = {"tensors": {"optimizer": {"m": parts[4]}, "model": model, "other": {"e": parts[5], "f": parts[4]}}}
    options |= {"hf": {"model": "", "other": ""}, "max_shard_bytes": 8000}
    errors = [RuntimeError("broken"), MemoryError("broken"), OSError(28, "broken"), KeyError("broken")]
    places = [(_Part, "pack"), (_Part, "unpack"), (ExportPlan, "_assemble"), (ExportPlan, "_parts"), (torch, "cat")]
    found = []
    for step, (owner, name) in enumerate([*places, (HashedFile, "write"), (HashedFile, "__exit__")]):
        for late, error in itertools.product((0, 1), errors):
            real = getattr(owner, name)
            if rank == 1:
                setattr(owner, name, failing_after(late, real, error))
            try:
                saved = save_checkpoint(root, step, **options, wait=bool(late))
                found.append(str(saved if isinstance(saved, Path) else saved.result()))
            except (RuntimeError, MemoryError, OSError, KeyError) as caught:
                found.append(f"{type(caught).__name__}: {caught}")
            finally:
                setattr(owner, name, real)
    path = save_checkpoint(root, 99, **options)
    assert load_checkpoint(path).tensors("other")["f"][:, 0].tolist() == [4, 5]
    return found


def test_a_rank_that_fails_in_an_exchange(root: Path, results: list[dict[str, Any]]) -> None:
    ours, theirs = [result["fail_in_an_exchange"] for result in results]
    assert len(ours) == len(theirs) == 7 * 2 * 4
    for here, there in zip(ours, theirs, strict=True):
        assert "broken" in there
        assert here.startswith("CheckpointError: saving step")
        assert ": rank 1: " in here
        assert "broken" in here
        assert "rank 0" not in here
        assert "OtherRankFailed" not in here + there
    assert os.listdir(root / "fail_in_an_exchange") == ["step-00000099"]


def fail_to_load(root: str) -> list[str]:
    rank = dist.get_rank()
    saved = load_checkpoint(save_checkpoint(root, 1, tensors={"m": {"w": torch.ones(4)}}), verify="read")
    found = []

    def attempt(**arguments: Any) -> None:
        try:
            found.append(str(saved.load("m", **{"destinations": {"w": torch.zeros(4)}, **arguments})))
        except (RuntimeError, TypeError, ValueError) as error:
            found.append(f"{type(error).__name__}: {error}")

    attempt(destinations={"w": [0.0] * 4 if rank == 1 else torch.zeros(4)})
    attempt(aoa="w -> w" if rank == 0 else "w - w")
    for owner, name in ((Read, "blocks"), (MappedFile, "check_blocks"), (Copy, "run")):
        real = getattr(owner, name)
        if rank == 1:
            setattr(owner, name, failing_after(0, real, RuntimeError("broken")))
        attempt()
        setattr(owner, name, real)
    attempt()
    return found


def test_a_rank_that_fails_to_load(root: Path, results: list[dict[str, Any]]) -> None:
    ours, theirs = [result["fail_to_load"] for result in results]
    start = "CheckpointError: loading m failed, nothing was changed: rank 1: "
    assert [there.partition(":")[0] for there in theirs[:5]] == ["TypeError", "AOAError", *["RuntimeError"] * 3]
    assert ours[0] == start + theirs[0]
    assert ours[1] == start + theirs[1]
    assert ours[2:4] == [start + "RuntimeError: broken"] * 2
    assert (
        ours[4] == "CheckpointError: loading m broke off, what was to be filled is lost: rank 1: RuntimeError: broken"
    )
    assert ours[5] == theirs[5]
    assert ours[5].startswith("1 tensors")


def save_in_two_groups(root: str) -> list[str]:
    groups = [dist.new_group([rank]) for rank in range(2)]
    rank = dist.get_rank()
    path = save_checkpoint(f"{root}/{rank}", rank, tensors={"g": {"w": torch.ones(rank)}}, group=groups[rank])
    try:
        save_checkpoint(root, 9, tensors={}, group=groups[1 - rank])
    except ValueError as error:
        return [path.name, str(error)]
    raise AssertionError("a process outside the group cannot save with it")


def test_groups_of_ranks_save_apart(root: Path, results: list[dict[str, Any]]) -> None:
    expected = [[f"step-0000000{rank}", "this process is not in the given group of processes"] for rank in (0, 1)]
    assert [result["save_in_two_groups"] for result in results] == expected
    assert load_checkpoint(root / "save_in_two_groups" / "1" / "step-00000001").world_size == 1


def save_copies(root: str) -> list[Any]:
    """Each rank restarts from its own files, on the layout that was saved; on another one it reads what it needs."""
    rank = dist.get_rank()
    whole = {"a": torch.arange(24.0).view(4, 6), "b": torch.arange(9), "c": torch.ones(5, 2), "s": torch.tensor(3.0)}

    def parts(tensors: dict[str, torch.Tensor], swapped: bool = False) -> dict[str, Any]:
        offset = 2 * (1 - rank if swapped else rank)
        rows = Shard.box(tensors["a"][offset : offset + 2].clone(), (4, 6), (offset, 0))
        return {"a": rows, **{name: tensors[name].clone() for name in "bcs"}, "tied": rows}

    found = []
    for step, wait in enumerate((True, False)):
        saved = save_checkpoint(root, step, tensors={"m": parts(whole)}, copies=True, max_shard_bytes=80, wait=wait)
        opened = load_checkpoint(saved if isinstance(saved, Path) else saved.result(), verify="read")
        for swapped in (False, True):
            zeros = parts({name: torch.zeros_like(tensor) for name, tensor in whole.items()}, swapped)
            report = opened.load("m", zeros)
            wanted = parts(whole, swapped)
            assert torch.equal(zeros["a"].tensor, wanted["a"].tensor)
            assert all(torch.equal(zeros[name], wanted[name]) for name in "bcs")
            found.append([len(report.foreign_files or []), any("copy" in name for name in report.files)])
    return found


def test_copies_for_a_restart(root: Path, results: list[dict[str, Any]]) -> None:
    for result in results:
        own, other, *again = result["save_copies"]
        assert own[0] == 0
        assert other[0] > 0
        assert [own, other] == again
    assert any(result["save_copies"][0][1] for result in results)
    path = root / "save_copies" / "step-00000000"
    tensors = load_checkpoint(path).tensors("m")
    assert torch.equal(tensors["a"], torch.arange(24.0).view(4, 6))
    alone = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    report = load_checkpoint(path, verify="read").load("m", alone)
    assert report.foreign_files is None
    assert not any("copy" in name for name in report.files)


def lose_a_rank(root: str) -> str:
    """Rank 1 dies while it writes; its results so far are printed already."""

    def die(*_: object) -> None:
        sys.stdout.flush()
        os._exit(0)

    if dist.get_rank() == 1:
        Content.write = die
    try:
        save_checkpoint(root, 1, tensors={})
    except CheckpointError as error:
        return str(error)
    raise AssertionError("a checkpoint without one of its ranks")


def test_a_lost_rank(root: Path, results: list[dict[str, Any]]) -> None:
    root /= "lose_a_rank"
    message = results[0]["lose_a_rank"]
    assert message.startswith(f"saving step 1 into {root} failed, existing checkpoints are untouched: lost contact")
    assert os.listdir(root) == []


def test_contact_lost_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the ranks talk, the error is one of checkpoints and says what failed."""

    def lost(*_: object) -> None:
        raise RuntimeError("Connection closed by peer\nGLHF")

    monkeypatch.setattr(writer, "exchange", lost)
    with pytest.raises(
        CheckpointError, match=r"saving step 1 .* lost contact with another rank .Connection closed by peer"
    ):
        save_checkpoint(tmp_path, 1, tensors={})
    monkeypatch.undo()
    monkeypatch.setattr(writer, "background_group", lost)
    for step in range(3):  # no place for copies is lost
        with pytest.raises(CheckpointError, match=rf"saving step {step} .* lost contact"):
            save_checkpoint(tmp_path, step, tensors={}, wait=False)


def work(root: str) -> dict[str, Any]:
    """All of the above in one pair of processes, because starting them takes longer than the work."""
    dist.init_process_group("gloo")
    parts = (save_and_load, fail_in_every_way, fail_in_an_exchange, fail_to_load, save_in_two_groups, save_copies)
    results = {part.__name__: part(f"{root}/{part.__name__}") for part in parts}
    if dist.get_rank() == 1:
        print(json.dumps(results))
    results["lose_a_rank"] = lose_a_rank(f"{root}/lose_a_rank")
    dist.destroy_process_group()
    return results


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(root: Path) -> list[dict[str, Any]]:
    return run_ranks(2, work, root)
