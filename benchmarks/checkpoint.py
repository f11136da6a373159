"""Checkpoints against torch DCP and megatron-core: saving on two ranks, loading on four with another layout.

    python benchmarks/checkpoint.py [--quick] [--json PATH] [--mcore PYTHON] [--folder DIR]

| id                    | value                                                                                       |
|-----------------------|---------------------------------------------------------------------------------------------|
| load_vs_dcp           | wall time of torch DCP's load / ours without checksums; the slowest rank counts             |
| load_verified_vs_dcp  | the same, ours with all checksums verified                                                  |
| load_vs_dcp_hf        | wall time of DCP's Hugging Face reader / ours without checksums                             |
| load_vs_mcore         | wall time of megatron-core's load / ours without checksums                                  |
| save_cpu_vs_dcp       | CPU-seconds of all ranks: ours (with checksums) / torch DCP                                 |
| save_cpu_vs_mcore     | CPU-seconds of all ranks: ours / megatron-core                                              |
| load_extra_mib        | largest anonymous memory of a rank while it loads, beyond what it had with its destination  |
| plan_vs_dcp           | CPU time to find the reads of 4,000 tensors in 64 pieces each / DCP's                       |
| aoa_compile_cpu_s     | CPU-seconds to compile 61 layers x 64 experts (11,712 source tensors)                       |

Two ranks save 32 matrices of 2048 x 2048 float32 (512 MiB), sharded by rows; four ranks load them sharded by columns.
gloo, one thread a rank, files in memory (/dev/shm by default) so that the disk does not decide; both sides sync their
files. The contestants take turns, each in fresh processes; minima count. The floor is a copy of the same bytes from
the files into new tensors.

megatron-core needs an interpreter of its own that also has this torch: `--mcore /path/to/venv/bin/python` (with
megatron-core 0.16.1, packaging and psutil); without it its ids are absent.
"""

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported

import torch
import torch.distributed as dist
from torch import Tensor

from _checkpoint_planning import Row, aoa_row, plan_row, row
from _peak_memory import peak_memory

NUM_TENSORS, SIZE = 32, 2048
SAVERS, LOADERS = 2, 4


def main() -> None:
    """Measure, print a table, and write rows {figure, value, detail} if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under 50 s: a quarter of the bytes, two turns")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there")
    parser.add_argument("--mcore", type=Path, metavar="PYTHON", help="interpreter with megatron-core")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where the checkpoints are written")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(*args.worker)
        return
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, 1 thread a rank, {os.cpu_count()} CPUs")
    num_tensors = NUM_TENSORS // 4 if args.quick else NUM_TENSORS
    rows = [plan_row(), aoa_row()]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        rows += contest(Path(folder), num_tensors, 2 if args.quick else 3, args.mcore)
    for entry in rows:
        print(f"{entry['figure']:22s} {entry['value']:8.3f}   {entry['detail']}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


# ---- the contest -----------------------------------------------------------------------------------------------------


def contest(folder: Path, num_tensors: int, turns: int, mcore: Path | None) -> list[Row]:
    """Every contestant saves and loads, in turns; the figures from the minima."""
    pythons = {"ours": Path(sys.executable), "dcp": Path(sys.executable), "dcp_hf": Path(sys.executable)}
    if mcore is not None:
        pythons["mcore"] = mcore
    saves: dict[str, list[Row]] = {}
    loads: dict[str, list[Row]] = {}
    for _ in range(turns):
        for name, python in pythons.items():
            path = folder / name
            shutil.rmtree(path, ignore_errors=True)
            saves.setdefault(name, []).append(launch(python, SAVERS, "save", name, path, num_tensors))
            loaders = ["ours", "verified", "floor"] if name == "ours" else [name]
            for loader in loaders:
                loads.setdefault(loader, []).append(launch(python, LOADERS, "load", loader, path, num_tensors))
            shutil.rmtree(path)
            shutil.rmtree(f"{path}-before")
    wall = {name: min(run["wall"] for run in runs) for name, runs in loads.items()}
    cpu = {name: min(run["cpu"] for run in runs) for name, runs in saves.items()}
    print(f"\n{'':12s}{'save wall s':>12s}{'save CPU s':>12s}{'load wall s':>12s}{'load CPU s':>12s}")
    for name in dict.fromkeys([*saves, *loads]):
        of_save = [min(run[key] for run in saves[name]) for key in ("wall", "cpu")] if name in saves else [None, None]
        of_load = [min(run[key] for run in loads[name]) for key in ("wall", "cpu")]
        print(f"{name:12s}" + "".join("           -" if x is None else f"{x:12.3f}" for x in (*of_save, *of_load)))
    print()
    rows = []
    for figure, top, bottom in (
        ("load_vs_dcp", "dcp", "ours"),
        ("load_verified_vs_dcp", "dcp", "verified"),
        ("load_vs_dcp_hf", "dcp_hf", "ours"),
        ("load_vs_mcore", "mcore", "ours"),
    ):
        if top in wall:
            rows.append(row(figure, wall[top] / wall[bottom], f"{wall[top]:.3f} s / {wall[bottom]:.3f} s"))
    for figure, bottom in (("save_cpu_vs_dcp", "dcp"), ("save_cpu_vs_mcore", "mcore")):
        if bottom in cpu:
            rows.append(row(figure, cpu["ours"] / cpu[bottom], f"{cpu['ours']:.3f} s / {cpu[bottom]:.3f} s"))
    extra = max(run["extra"] for run in (*loads["ours"], *loads["verified"]))
    rows.append(row("load_extra_mib", extra, "of one rank, anonymous memory"))
    return rows


def launch(python: Path, num_ranks: int, task: str, name: str, path: Path, num_tensors: int) -> Row:
    """One task of a contestant in fresh processes: wall of the slowest rank, CPU-seconds of all, extra MiB of one."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    command = [str(python), __file__, "--worker", f"{task}:{name}", str(path), str(num_tensors)]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(num_ranks),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    processes = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(num_ranks)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{task} of {name} failed")
    results = [json.loads(output.splitlines()[-1]) for output in outputs]
    return {
        "wall": max(result["wall"] for result in results),
        "cpu": sum(result["cpu"] for result in results),
        "extra": max(result["extra"] for result in results),
    }


# ---- a rank ----------------------------------------------------------------------------------------------------------


def work(what: str, path: str, num_tensors: str) -> None:
    """Run one task on this rank and print its costs."""
    warnings.simplefilter("ignore")
    task, name = what.split(":")
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    count = SIZE // size
    shape = (count, SIZE) if task == "save" else (SIZE, count)
    local = {f"w{i:02d}": torch.zeros(shape) for i in range(int(num_tensors))}
    if task == "save":
        for i, tensor in enumerate(local.values()):
            tensor.copy_(expected(i)[rank * count : (rank + 1) * count])
        ACTIONS[task, name]({"w00": local["w00"]}, path + "-before", rank, size)()  # starts writers that stay
        dist.barrier()
    action = ACTIONS[task, name](local, path, rank, size)
    gc.collect()  # going through what the imports made takes 60 ms, and would hit whoever allocates at that moment
    # no second thread beside a save: megatron-core forks its writers
    with peak_memory() if task == "load" else contextlib.nullcontext([0]) as peak:
        dist.barrier()
        before, start = cpu_seconds(), time.perf_counter()
        action()
        wall, cpu = time.perf_counter() - start, cpu_seconds() - before
    if task == "load" and name != "floor":
        for i, tensor in enumerate(local.values()):
            assert torch.equal(tensor, expected(i)[:, rank * count : (rank + 1) * count]), (name, i)
    dist.barrier()
    print("\n" + json.dumps({"wall": wall, "cpu": cpu, "extra": peak[0] / 2**20}), flush=True)
    for process in multiprocessing.active_children():  # megatron-core's writers, which would hold the output open
        process.kill()
    os._exit(0)  # some contestants leave threads behind


def expected(i: int) -> Tensor:
    """The values of matrix `i`."""
    return torch.arange(SIZE * SIZE, dtype=torch.float32).view(SIZE, SIZE).add_(i)


def cpu_seconds() -> float:
    """CPU time of this process, of its finished children and of those that run."""
    seconds = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # its own and its finished children's
    return seconds


Action = Callable[[], object]
ACTIONS: dict[tuple[str, str], Callable[[dict[str, Tensor], str, int, int], Action]] = {}


def action(task: str, *names: str) -> Callable:
    """Register what prepares a task of a contestant."""

    def add(prepare: Callable) -> Callable:
        for name in names:
            ACTIONS[task, name] = prepare
        return prepare

    return add


@action("save", "ours")
def our_save(local: dict[str, Tensor], path: str, rank: int, size: int) -> Action:
    from oarlock.checkpoint import Shard, save_checkpoint

    shards = {name: Shard.box(t, (SIZE, SIZE), (rank * SIZE // size, 0)) for name, t in local.items()}
    return lambda: save_checkpoint(path, 1, tensors={"model": shards})


@action("load", "ours")
def our_load(local: dict[str, Tensor], path: str, rank: int, size: int, verify: Any = False) -> Action:
    from oarlock.checkpoint import Shard, latest_checkpoint, load_checkpoint

    shards = {name: Shard.box(t, (SIZE, SIZE), (0, rank * SIZE // size)) for name, t in local.items()}
    return lambda: load_checkpoint(latest_checkpoint(path), verify=verify).load("model", shards)


@action("load", "verified")
def our_verified_load(local: dict[str, Tensor], path: str, rank: int, size: int) -> Action:
    return our_load(local, path, rank, size, "read")


@action("load", "floor")
def bare_copy(local: dict[str, Tensor], path: str, rank: int, size: int) -> Action:
    """As many bytes as a rank loads, contiguous, from the files' pages into its destinations."""
    files = sorted(Path(path).glob("*/*.safetensors"))
    per_file = len(local) // len(files)

    def copy() -> None:
        pages = [torch.from_file(str(f), size=f.stat().st_size, dtype=torch.uint8) for f in files]
        for i, tensor in enumerate(local.values()):
            start = rank * tensor.nbytes + (i % per_file) * SIZE * SIZE
            tensor.view(-1).view(torch.uint8).copy_(pages[i // per_file][start : start + tensor.nbytes])

    return copy


def sharded(local: dict[str, Tensor], dim: int) -> dict[str, Any]:
    """The local tensors as DTensors that are cut along a dim."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {name: DTensor.from_local(t, mesh, [Shard(dim)], run_check=False) for name, t in local.items()}


@action("save", "dcp")
def dcp_save(local: dict[str, Tensor], path: str, rank: int, size: int) -> Action:
    import torch.distributed.checkpoint as dcp

    state = sharded(local, 0)
    return lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(path))  # syncs its files


@action("load", "dcp")
def dcp_load(local: dict[str, Tensor], path: str, rank: int, size: int) -> Action:
    import torch.distributed.checkpoint as dcp

    state = sharded(local, 1)
    return lambda: dcp.load(state, storage_reader=dcp.FileSystemReader(path))


@action("save", "dcp_hf")
def dcp_hf_save(local: dict[str, Tensor], path: str, rank: int, size: int) -> Action:
    import torch.distributed.checkpoint as dcp

    state = sharded(local, 0)
    return lambda: dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(path, save_distributed=True))


@action("load", "dcp_hf")
def dcp_hf_load(local: dict[str, Tensor], path: str, rank: int, size: int) -> Action:
    import torch.distributed.checkpoint as dcp

    state = sharded(local, 1)
    return lambda: dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(path))


def mcore_state(local: dict[str, Tensor], dim: int, rank: int, size: int) -> dict[str, Any]:
    """megatron-core's description of the local tensors; its two calls of CUDA do nothing here."""
    from megatron.core.dist_checkpointing import ShardedTensor

    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: torch.device("cpu")
    return {n: ShardedTensor.from_rank_offsets(n, t, (dim, rank, size), replica_id=0) for n, t in local.items()}


@action("save", "mcore")
def mcore_save(local: dict[str, Tensor], path: str, rank: int, size: int) -> Action:
    from megatron.core import dist_checkpointing

    state = mcore_state(local, 0, rank, size)
    if rank == 0:
        Path(path).mkdir()
    return lambda: dist_checkpointing.save(state, path)


@action("load", "mcore")
def mcore_load(local: dict[str, Tensor], path: str, rank: int, size: int) -> Action:
    from megatron.core import dist_checkpointing

    state = mcore_state(local, 1, rank, size)

    def load() -> None:
        loaded = dist_checkpointing.load(state, path)
        assert loaded.keys() == local.keys()
        for name, tensor in loaded.items():
            local[name] = tensor

    return load


if __name__ == "__main__":
    main()
