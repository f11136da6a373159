"""Joining a job from the environment, and every way in which that fails."""

import os
import socket
from typing import Any

import pytest
import torch.distributed as dist

from oarlock.parallel import Mesh, initialize
from process_group import run_ranks


def test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with initialize("cpu") as mesh:
        assert isinstance(mesh, Mesh)
        assert mesh.size("data") == 1
        assert mesh.group("data") is None
        assert not dist.is_initialized()
    with pytest.raises(ValueError, match=r"device must be auto, cpu or cuda, got 'tpu'"), initialize("tpu"):
        pass


def test_half_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(ValueError, match=r"but not WORLD_SIZE, .*MASTER_PORT; start with torchrun"), initialize("cpu"):
        pass


def join() -> list[Any]:
    with initialize("cpu", timeout_seconds=30, tensor=2) as mesh:
        seen = [mesh.size("tensor"), mesh.rank("tensor"), dist.get_backend()]
        try:
            with initialize("cpu"):
                pass
        except RuntimeError as error:
            seen.append(str(error))
    return [*seen, dist.is_initialized()]


def test_two_processes() -> None:
    again = "torch.distributed is initialised already; call initialize() once, before anything else"
    assert run_ranks(2, join) == [[2, rank, "gloo", again, False] for rank in range(2)]


def fail(port_in_use: int) -> list[str]:
    """One process that plays the first rank of a job, then a later rank of a job that nobody started."""
    messages = []

    def attempt(world_size: int, rank: int, port: int, **options: Any) -> None:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_PORT": str(port)}
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # as under Slurm: rank 0 opens the port itself
        try:
            with initialize("cpu", **options):
                messages.append("joined")
        except (RuntimeError, ValueError) as error:
            messages.append(f"{type(error).__name__}: {error}")
        assert not dist.is_initialized()

    attempt(1, 0, port_in_use)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    attempt(2, 1, port, timeout_seconds=1)
    attempt(1, 0, port)
    attempt(1, 0, port, tensor=2)
    return messages


def test_failures() -> None:
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        [messages] = run_ranks(1, fail, port)
    assert messages[0].startswith(f"JobError: port {port} is already in use on this machine; end the other job")
    assert "MASTER_PORT" in messages[0]
    assert messages[1].startswith("JobError: rank 1 of 2 could not join the job at 127.0.0.1:")
    assert "within 1 s" in messages[1]
    assert messages[2] == "joined"
    assert messages[3].startswith("ValueError: data=-1 cannot be inferred: 1 processes")
