"""Files written at once: the kernel's copy and its replacement give the same bytes; one failure ends all."""

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file

from oarlock.checkpoint import open_tensors
from oarlock.checkpoint.at_once import Progress, Stopped, run_at_once
from oarlock.checkpoint.conversion import plan
from oarlock.checkpoint.copied_file import CopiedFile

TENSORS = {f"w{k}": torch.randn(64, 33) for k in range(6)} | {"scalar": torch.tensor(2.0), "none": torch.empty(0, 3)}
PROGRAM = "w0[8:24] -> rows; w1[:, 1:3] -> columns; w2^T -> turned; w3 -> half, dtype=float16"


@pytest.mark.parametrize("refused", [0, errno.EXDEV, errno.ENOSYS, errno.EINVAL])
def test_copied_and_written_bytes_are_the_same(refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors")
    copied: list[int] = []
    real = os.copy_file_range

    def copy_file_range(*args: int) -> int:
        if refused:
            raise OSError(refused, "refused")
        copied.append(real(*args[:2], min(args[2], 1000), *args[3:]))  # a kernel may copy less than it was asked for
        return copied[-1]

    monkeypatch.setattr(os, "copy_file_range", copy_file_range)
    written: list[int] = []
    conversion = plan(open_tensors(tmp_path / "x.safetensors"), PROGRAM)
    conversion.write(tmp_path / "out", max_bytes=10_000, manifest=False, others={}, progress=written.append)
    found = open_tensors(tmp_path / "out").read()
    w = TENSORS
    expected = {"rows": w["w0"][8:24], "columns": w["w1"][:, 1:3], "turned": w["w2"].T, "half": w["w3"].half()}
    expected |= {name: w[name] for name in ("w4", "w5", "scalar", "none")}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    assert sum(written) == sum(tensor.numel() * tensor.element_size() for tensor in expected.values())
    same = sum(expected[name].numel() * 4 for name in ("rows", "w4", "w5", "scalar"))
    assert sum(copied) == (0 if refused else same)


def test_without_the_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    save_file(TENSORS, tmp_path / "x.safetensors")
    conversion = plan(open_tensors(tmp_path / "x.safetensors"))
    conversion.write(tmp_path / "out", max_bytes=9**9, manifest=False, others={}, progress=lambda _: None)
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    save_file(TENSORS, tmp_path / "x.safetensors")
    conversion = plan(open_tensors(tmp_path / "x.safetensors"))
    with pytest.raises(OSError, match="No space left") as caught:
        conversion.write(tmp_path / "out", max_bytes=10_000, manifest=False, others={}, progress=lambda _: None)
    assert caught.value.filename.startswith("model-0000")
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_copied_file_syncs_only_what_is_whole(tmp_path: Path) -> None:
    with CopiedFile(tmp_path / "a") as file:
        file.write(b"abc")
    assert (tmp_path / "a").read_bytes() == b"abc"
    with pytest.raises(FileExistsError), CopiedFile(tmp_path / "a"):
        pass


def test_one_failure_ends_the_others() -> None:
    """Jobs that have not begun never do, and running ones end at their next sign of progress."""
    begun: list[int] = []
    stopped = threading.Event()

    def job(index: int) -> Callable[[Progress], int]:
        def run(progress: Progress) -> int:
            begun.append(index)
            if index == 1:
                raise ValueError("job 1")
            try:
                while True:
                    progress(1)
                    time.sleep(0.001)
            except Stopped:
                stopped.set()
                raise

        return run

    with pytest.raises(ValueError, match="job 1"):
        run_at_once([job(index) for index in range(20)], 2, lambda _: None)
    assert stopped.wait(10)
    assert len(begun) < 20


def test_results_come_in_order_and_progress_one_at_a_time() -> None:
    inside, seen = threading.Lock(), []

    def progress(num_bytes: int) -> None:
        assert inside.acquire(blocking=False)
        seen.append(num_bytes)
        inside.release()

    def job(index: int) -> Callable[[Progress], int]:
        return lambda told: [told(index) for _ in range(50)] and index

    assert run_at_once([job(index) for index in range(8)], 4, progress) == list(range(8))
    assert sorted(seen) == sorted(index for index in range(8) for _ in range(50))
