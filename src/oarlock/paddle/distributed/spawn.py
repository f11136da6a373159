"""`spawn`: start the processes of a program from within it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from oarlock.parallel import leave


def spawn(
    func: Callable[..., Any],
    args: Iterable[Any] = (),
    nprocs: int = -1,
    join: bool = True,
    daemon: bool = False,
    **options: Any,
) -> Any:
    """Run `func(*args)` in several processes of this machine, each with a rank of its own for `init_parallel_env`.

    Args:
        func: a function at the top of a module.
        args: its arguments, the same in each process.
        nprocs: how many; -1 for one per GPU, or one.
        join: wait for them.
        daemon: end them with this process.
        options: `backend`, "nccl" or "gloo" ("auto" by default); others are taken.

    Returns:
        what has the processes, to `join()`; None where they were waited for.

    Raises:
        ValueError: a number of processes that is not positive.
        ProcessRaisedException: one of them failed; the others are ended.
    """
    if nprocs == -1:
        nprocs = max(torch.cuda.device_count(), 1)
    if nprocs < 1:
        raise ValueError(f"nprocs = {nprocs}: give a positive number, or -1 for one process per GPU")
    # A store of this process: a port that the processes open themselves could be taken before they do.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    shared = {
        "WORLD_SIZE": str(nprocs),
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    if options.get("backend", "auto") != "auto":
        shared["PADDLE_DISTRI_BACKEND"] = options["backend"]
    context = start_processes(
        _run, (func, tuple(args), shared), nprocs=nprocs, join=join, daemon=daemon, start_method="spawn"
    )
    if context is not None:
        context.store = store  # pyright: ignore[reportAttributeAccessIssue] - lives as long as they may need it
    return context


def _run(rank: int, func: Callable[..., Any], args: tuple[Any, ...], shared: dict[str, str]) -> None:
    os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    func(*args)
    if dist.is_initialized():
        leave()
