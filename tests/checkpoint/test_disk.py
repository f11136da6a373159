"""A disk that is full, read-only or forbidden: one clear error, nothing of the old touched, nothing of the new left."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from oarlock.checkpoint import CheckpointError, list_checkpoints, load_checkpoint, save_checkpoint
from oarlock.checkpoint import directory as directory_module

SOURCE = Path(__file__).parents[2] / "src"


def mount(path: Path, options: str) -> None:
    path.mkdir(exist_ok=True)
    result = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(path)], capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {result.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("mounting a small tmpfs needs root")
    path = tmp_path / "disk"
    mount(path, "size=2m")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def group(num_bytes: int) -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {"w": torch.ones(num_bytes, dtype=torch.uint8)}}


def test_full_disk(small_disk: Path) -> None:
    first = save_checkpoint(small_disk, 1, tensors=group(900_000))
    before = os.statvfs(small_disk).f_bfree
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(small_disk, 2, tensors=group(1_500_000), keep_last=1)
    message = str(caught.value)
    assert f"saving step 2 into {small_disk} failed, existing checkpoints are untouched" in message
    assert "No space left on device (model.safetensors)" in message
    assert "GiB free" in message
    assert os.listdir(small_disk) == ["step-00000001"]
    assert os.statvfs(small_disk).f_bfree == before
    load_checkpoint(first)
    assert list_checkpoints(small_disk) == [first]
    save_checkpoint(small_disk, 3, tensors=group(900_000), keep_last=1)
    assert os.listdir(small_disk) == ["step-00000003"]


def test_disk_full_at_any_file(small_disk: Path) -> None:
    """The space that is left decides at which file, up to the manifest, the disk is full; all is undone each time."""
    first = save_checkpoint(small_disk, 1, tensors=group(100_000))
    filler = small_disk / "filler"
    failed_at = set()
    for pages in range(0, 40, 3):
        if len(list_checkpoints(small_disk)) == 2:
            break
        free = os.statvfs(small_disk).f_bfree
        filler.write_bytes(b"x" * 4096 * (free - pages))
        try:
            save_checkpoint(
                small_disk,
                2,
                tensors=group(30_000),
                state="s" * 20_000,
                rank_tensors={"rng": {"t": torch.ones(20_000, dtype=torch.uint8)}},
                rank_state="r" * 20_000,
            )
        except CheckpointError as error:
            failed_at.add(str(error).partition("(")[2].partition(")")[0])
            assert sorted(os.listdir(small_disk)) == ["filler", "step-00000001"]
        load_checkpoint(first)
        filler.unlink()
    assert {"model.safetensors", "rng-rank-0.safetensors", "rank-0.json", "oarlock.json"} <= failed_at
    assert load_checkpoint(list_checkpoints(small_disk)[-1]).step == 2, "with enough space it went through"


def test_read_only_disk(small_disk: Path) -> None:
    first = save_checkpoint(small_disk, 1, tensors=group(10))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(CheckpointError, match=r"saving step 2 .* existing checkpoints are untouched: Read-only"):
        save_checkpoint(small_disk, 2, tensors=group(10))
    load_checkpoint(first)


WITHOUT_PERMISSION = """
import os, sys, torch
from oarlock.checkpoint import CheckpointError, save_checkpoint, load_checkpoint
if not os.geteuid():
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
root, first = sys.argv[1:]
try:
    save_checkpoint(root, 2, tensors={"g": {"w": torch.ones(1)}})
except CheckpointError as error:
    print(error)
load_checkpoint(first)
"""


def test_no_permission(tmp_path: Path) -> None:
    root = tmp_path / "root"
    # The folder of all runs is private to this user, wherever a worker of pytest-xdist puts its own below it.
    pytest_root = next((p for p in tmp_path.parents if p.name.startswith("pytest-of-")), tmp_path)
    first = save_checkpoint(root, 1, tensors=group(10))
    for folder in (root, *[p for p in root.parents if p.is_relative_to(pytest_root)]):
        folder.chmod(0o555 if folder == root else 0o755)
    command = [sys.executable, "-c", WITHOUT_PERMISSION, str(root), str(first)]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    root.chmod(0o755)
    assert result.returncode == 0, result.stderr
    expected = f"saving step 2 into {root} failed, existing checkpoints are untouched: Permission denied"
    assert result.stdout.startswith(expected), result.stdout
    assert os.listdir(root) == ["step-00000001"]


def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    left_over = tmp_path / ".tmp-step-00000001-0123456789ab"
    left_over.mkdir()
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match=r"has no locks"):
        save_checkpoint(tmp_path, 2, tensors=group(10))
    assert left_over.is_dir(), "without a lock nobody knows whether it is still being written"
    monkeypatch.undo()
    save_checkpoint(tmp_path, 3, tensors=group(10))
    assert sorted(os.listdir(tmp_path)) == ["step-00000002", "step-00000003"]


def test_only_own_left_overs_are_removed(tmp_path: Path) -> None:
    keep = [".tmp-step-1", ".trash", "step-notes", ".git", ".tmp-mine-0123456789ab"]
    gone = [".tmp-step-00000007-0123456789ab", ".trash-step-00000007.1-0123456789ab"]
    for name in keep + gone:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    save_checkpoint(tmp_path, 1, tensors=group(1))
    assert sorted(os.listdir(tmp_path)) == sorted([*keep, "step-00000001"])


def test_names_that_are_only_like_ours_are_left_alone(tmp_path: Path) -> None:
    theirs = ["step-1", "step-0000001", "step-000000001", "step-00000001.0", "step-00000001.01", "step-\u0661"]
    for name in theirs:
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000001").touch()  # not a directory
    (tmp_path / ".trash-step-00000001-0123456789ab").touch()
    for step in (2, 3):
        path = save_checkpoint(tmp_path, step, tensors=group(1), keep_last=1)
    assert list_checkpoints(tmp_path) == [path]
    assert sorted(os.listdir(tmp_path)) == sorted([*theirs, "step-00000001", "step-00000003"])


def test_a_checkpoint_that_was_moved_and_linked(tmp_path: Path) -> None:
    """Deleting it deletes the link, and later saves go on."""
    first = save_checkpoint(tmp_path / "run", 1, tensors=group(1))
    kept = first.rename(tmp_path / "kept")
    first.symlink_to(kept)
    assert list_checkpoints(tmp_path / "run") == [first]
    for step in (2, 3):
        save_checkpoint(tmp_path / "run", step, tensors=group(1), keep_last=1)
    assert os.listdir(tmp_path / "run") == ["step-00000003"]
    load_checkpoint(kept)


def test_a_failed_deletion_is_only_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    save_checkpoint(tmp_path, 1, tensors=group(1))
    monkeypatch.setattr(directory_module, "_discard", refuse)
    with pytest.warns(UserWarning, match=r"step 2 is saved .* could not be deleted: Operation not permitted"):
        path = save_checkpoint(tmp_path, 2, tensors=group(1), keep_last=1)
    load_checkpoint(path)


def test_an_interrupt_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(directory_module, "publish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 1, tensors=group(1))
    assert os.listdir(tmp_path) == []
