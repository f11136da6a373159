"""Run a function of a test module in several real processes, set up as torchrun would."""

import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

SOURCE = Path(__file__).parents[1] / "src"


def run_ranks(world_size: int, worker: Callable[..., Any], *args: Any, timeout: float = 180) -> list[Any]:
    """What `worker(*args)` returns on each rank (JSON both ways); fails with the output if a rank fails or hangs.

    The store lives in this process, at a port that the system picks, so no port is ever taken twice.
    """
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=timeout), wait_for_workers=False)
    path = Path(inspect.getfile(worker))
    program = (
        f"import json, os, sys; sys.path[:0] = [{str(path.parent)!r}, {str(Path(__file__).parent)!r}]; "
        f"import {path.stem} as module; value = module.{worker.__name__}(*json.loads(sys.argv[1])); "
        # Torch now and then aborts while its threads are torn down at exit ("terminate called without an active
        # exception"), when everything is done: the rank leaves without that.
        "print('\\n' + json.dumps(value), flush=True); os._exit(0)"
    )
    command = [sys.executable, "-W", "error", "-c", program, json.dumps(args, default=str)]
    shared = os.environ | {
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    processes = [
        subprocess.Popen(
            command,
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    deadline = time.monotonic() + timeout
    try:
        outputs = [process.communicate(timeout=max(1.0, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    for rank, (process, (out, err)) in enumerate(zip(processes, outputs, strict=True)):
        assert process.returncode == 0, f"rank {rank} failed with {process.returncode}:\n{out}\n{err}"
    return [json.loads(out.strip().rpartition("\n")[2]) for out, _ in outputs]
