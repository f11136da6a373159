"""Tensors on their way between ranks: bytes against the least possible, memory of a merge, reads of an exchange.

    python benchmarks/checkpoint_sync.py [--quick] [--json PATH]

| id                   | value                                                                                        |
|----------------------|----------------------------------------------------------------------------------------------|
| sync_bytes           | bytes that reshard moves / the least that must move; the worst of four changes of layout     |
| sync_vs_gather       | time to gather every whole tensor on every rank and cut it / time of a reshard plan's run    |
| sync_vs_bare         | time of a reshard plan's run / of sending the same bytes, packed already                     |
| export_extra_tensors | memory of a rank that merges, beyond its bucket of max_bytes / size of a tensor              |
| exchange_reads       | pages of the files that all ranks look at in a load with exchange / pages that are needed    |
| convert_vs_transformers | time of transformers to load a model with fused experts and save them singly / ours       |
| convert_memory       | largest anonymous memory of ours in that / of transformers                                   |

The least: for every rank the elements that its destinations need and its sources do not hold, once each, in the smaller
of the two dtypes. It is counted apart from the plan, with one number per element. gloo on one machine, one thread a
rank; the contestants for time take turns in the same processes, minima count.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported

import torch
import torch.distributed as dist
from torch import Tensor

from _peak_memory import peak_memory

Row = dict[str, Any]
MIB = 1 << 20


def main() -> None:
    """Measure, print a table, and write rows {figure, value, detail} if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under 90 s: smaller tensors, fewer turns")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, options = args.worker
        dist.init_process_group("gloo")
        print("\n" + json.dumps(WORKERS[name](**json.loads(options))), flush=True)
        dist.destroy_process_group()
        return
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, 1 thread a rank, {os.cpu_count()} CPUs")
    rows = [row for figure in FIGURES for row in figure(args.quick)]
    for row in rows:
        print(f"{row['figure']:22s} {row['value']:8.3f}   {row['detail']}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


def row(figure: str, value: float, detail: str) -> Row:
    """A row of the result."""
    return {"figure": figure, "value": round(value, 4), "detail": detail}


def launch(num_ranks: int, worker: str, **options: Any) -> list[Any]:
    """What a worker returns on every rank, in fresh processes."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    command = [sys.executable, __file__, "--worker", worker, json.dumps(options)]
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
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise SystemExit(f"{worker} {options} failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


# ---- live sync -------------------------------------------------------------------------------------------------------

PROGRAM = """
l.$L.q, l.$L.k, l.$L.v -> m.$L.qkv, fused_qkv, num_heads=8, num_key_value_groups=4, axis=0, dtype={dtype}
l.$L.gate_up -> m.$L.gate, m.$L.up, axis=0, dtype={dtype}
l.$L.down^T -> m.$L.down, dtype={dtype}
embed -> head, dtype={dtype}
embed -> embed, dtype={dtype}
"""
CHANGES = {
    "2 x 2 to 4, in place": (4, "float32"),
    "4 flat slices to 2 others, bf16": (6, "bfloat16"),
    "2 replicas of 2 to 2 others": (6, "float32"),
    "pipeline of 2 x 2 to all": (4, "float32"),
}


def sync(quick: bool) -> list[Row]:
    """The four changes of layout, and the time of the first."""
    width, num_layers = (256, 2) if quick else (512, 4)
    worst, rows = 0.0, []
    print(f"\n{'change':34s}{'moved MiB':>11s}{'least MiB':>11s}{'busiest sender':>16s}{'plan s':>9s}{'run s':>9s}")
    for change, (num_ranks, _) in CHANGES.items():
        found = launch(num_ranks, "sync", change=change, width=width, num_layers=num_layers)
        moved, least = sum(found[0]["received"]), sum(rank["least"] for rank in found)
        worst = max(
            worst, *(rank["received"][i] / max(1, rank["least"]) for i, rank in enumerate(found) if rank["least"])
        )
        share = max(found[0]["sent"]) / max(1, moved)
        plan, run, gather, bare = (max(rank[key] for rank in found) for key in ("plan", "run", "gather", "bare"))
        print(f"{change:34s}{moved / MIB:11.2f}{least / MIB:11.2f}{share:16.2f}{plan:9.3f}{run:9.3f}")
        if not rows:
            rows.append(row("sync_vs_gather", gather / run, f"{gather:.3f} s / {run:.3f} s"))
            rows.append(row("sync_vs_bare", run / bare, f"{run:.3f} s / {bare:.3f} s"))
    print()
    return [row("sync_bytes", worst, f"of one rank, the worst of {len(CHANGES)} changes"), *rows]


def source_shapes(width: int, num_layers: int) -> dict[str, tuple[int, ...]]:
    """A decoder's weights."""
    shapes = {"q": (width, width), "k": (width // 2, width), "v": (width // 2, width)}
    shapes |= {"gate_up": (6 * width, width), "down": (width, 3 * width)}
    layers = {f"l.{n}.{name}": shape for n in range(num_layers) for name, shape in shapes.items()}
    return layers | {"embed": (8 * width, width)}


def sync_worker(change: str, width: int, num_layers: int) -> Any:
    """Plan, run, and count on this rank."""
    from oarlock.checkpoint import plan_reshard
    from oarlock.checkpoint.aoa import AOA, TensorSpec

    rank = dist.get_rank()
    text = PROGRAM.format(dtype=CHANGES[change][1])
    shapes = source_shapes(width, num_layers)
    program = AOA(text).compile({name: TensorSpec(shape, torch.float32) for name, shape in shapes.items()}, None)
    wanted = {name: (relation.shape, relation.dtype) for name, relation in program.tensors.items()}
    generator = torch.Generator().manual_seed(0)
    src, dst = layouts(change, rank, {n: torch.randn(s, generator=generator) for n, s in shapes.items()}, wanted)
    start = time.perf_counter()
    plan = plan_reshard(src, dst, aoa=text)
    planned = time.perf_counter() - start
    peers = {"run": plan.run, "bare": bare(plan), "gather": lambda: gathered(src, dst, program)}
    seconds = dict.fromkeys(peers, 1e9)
    for _ in range(3):
        for name, action in peers.items():
            dist.barrier()
            start = time.perf_counter()
            action()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    plan.run()
    least = least_bytes(change, rank, shapes, wanted, program)
    return {"received": plan.report.received, "sent": plan.report.sent, "least": least, "plan": planned} | seconds


def layouts(change: str, rank: int, whole: Mapping[str, Tensor], wanted: Mapping[str, Any]) -> tuple[Any, Any]:
    """What the rank holds of the source, and memory for its part of the destination."""
    src: dict[str, Any] = {}
    dst: dict[str, Any] = {}
    for name, tensor in whole.items():
        match change:
            case "2 x 2 to 4, in place":
                src[name] = grid(tensor, (2, 2), divmod(rank, 2))
            case "4 flat slices to 2 others, bf16":
                if rank < 4:
                    src[name] = flat(tensor, 4, rank)
            case "2 replicas of 2 to 2 others":
                if rank < 4:
                    src[name] = grid(tensor, (2, 1), (rank % 2, 0))
            case _:
                early = name == "embed" or int(name.split(".")[1]) % 2 == 0
                if early == (rank < 2):
                    src[name] = grid(tensor, (1, 2), (0, rank % 2))
    for name, (shape, dtype) in wanted.items():
        memory = torch.zeros((), dtype=dtype).expand(shape)  # only its layout counts
        dim = 1 if name.endswith("down") else 0
        match change:
            case "2 x 2 to 4, in place":
                dst[name] = rows_of(memory, 4, rank, dim)
            case "pipeline of 2 x 2 to all":
                dst[name] = torch.empty(shape, dtype=dtype)
            case _:
                if rank >= 4:
                    dst[name] = rows_of(memory, 2, rank - 4, dim)
    return src, dst


def grid(tensor: Tensor, parts: tuple[int, int], place: tuple[int, int]) -> Any:
    """One box of a tensor that is cut evenly along both dims."""
    from oarlock.checkpoint import Shard

    size = [n // p for n, p in zip(tensor.shape, parts, strict=True)]
    offset = [n * k for n, k in zip(size, place, strict=True)]
    box = tensor[offset[0] : offset[0] + size[0], offset[1] : offset[1] + size[1]]
    return Shard.box(box.clone(), tensor.shape, offset)


def rows_of(tensor: Tensor, parts: int, place: int, dim: int) -> Any:
    """One part of a tensor that is cut evenly along a dim, in memory of its own."""
    return grid(tensor, (parts, 1) if dim == 0 else (1, parts), (place, 0) if dim == 0 else (0, place))


def flat(tensor: Tensor, parts: int, place: int) -> Any:
    """One slice of the elements in row-major order."""
    from oarlock.checkpoint import Shard

    length = -(-tensor.numel() // parts)
    return Shard.flat(tensor.flatten()[place * length : (place + 1) * length].clone(), tensor.shape, place * length)


def least_bytes(change: str, rank: int, shapes: Mapping[str, Any], wanted: Mapping[str, Any], program: Any) -> int:
    """Elements that the rank needs and does not hold, each counted once, times the smaller of the two dtypes' sizes."""
    numbered, start = {}, 0
    for name, shape in shapes.items():
        count = torch.Size(shape).numel()
        numbered[name] = torch.arange(start, start + count, dtype=torch.float64).view(shape)
        start += count
    counted = {name: (shape, torch.float64) for name, (shape, _) in wanted.items()}
    src, dst = layouts(change, rank, numbered, counted)
    needed, held = torch.zeros(start, dtype=torch.bool), torch.zeros(start, dtype=torch.bool)
    exact = exact_elements(program, numbered)
    for name, value in dst.items():
        for box, _ in views(value):
            needed[exact[name][box.slices].long().flatten()] = True
    for value in src.values():
        for _, view in views(value):
            held[view.long().flatten()] = True
    [dtype] = {dtype for _, dtype in wanted.values()}
    return int((needed & ~held).sum()) * min(4, dtype.itemsize)


def exact_elements(program: Any, numbered: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The destination made of numbered elements, without casts."""
    from oarlock.checkpoint.aoa import AOA, TensorSpec

    specs = {name: TensorSpec.of(tensor) for name, tensor in numbered.items()}
    return AOA(PROGRAM.format(dtype="float64")).compile(specs, None).apply(numbered)


def views(value: Any) -> Iterator[tuple[Any, Tensor]]:
    """The boxes of a rank's part, with their memory."""
    from oarlock.checkpoint.shards import shard_of

    return shard_of(value).views()


def bare(plan: Any) -> Callable[[], None]:
    """Send as many bytes between the same ranks, from and into memory that is there."""
    rank, traffic = dist.get_rank(), plan._routes.traffic
    sends = {to: torch.zeros(n, dtype=torch.uint8) for to, n in enumerate(traffic[rank]) if n}
    receives = {sender: torch.zeros(line[rank], dtype=torch.uint8) for sender, line in enumerate(traffic) if line[rank]}

    def action() -> None:
        operations = [dist.P2POp(dist.isend, tensor, peer) for peer, tensor in sends.items()]
        operations += [dist.P2POp(dist.irecv, tensor, peer) for peer, tensor in receives.items()]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()

    return action


def gathered(src: Mapping[str, Any], dst: Mapping[str, Any], program: Any) -> None:
    """What is usual: every rank gets every whole tensor, makes what the program says and takes its part."""
    from oarlock.checkpoint.shards import shard_of

    whole = {}
    for name, spec in program.source.items():
        own = [(box.offset, box.size) for box, _ in views(src[name])] if name in src else []
        boxes: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(boxes, own)
        whole[name] = torch.empty(spec.shape, dtype=spec.dtype)
        held = dict(zip(own, (view for _, view in views(src[name])), strict=True)) if own else {}
        for sender, told in enumerate(boxes):
            for offset, size in told:
                part = held[offset, size].contiguous() if sender == dist.get_rank() else torch.empty(size)
                dist.broadcast(part, sender)
                whole[name][tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))] = part
    made = program.apply(whole)
    for name, value in dst.items():
        for box, view in shard_of(value).views():
            view.copy_(made[name][box.slices])


# ---- merging ---------------------------------------------------------------------------------------------------------


def merging(quick: bool) -> list[Row]:
    """Whole tensors on the first of three ranks."""
    size, count = (1024, 12) if quick else (2048, 16)
    tensor, bucket = size * size * 4, 3 * size * size * 4
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(MIB)  # what is freed goes back to the system at once, and is not counted
    found = launch(3, "merging", size=size, count=count, max_bytes=bucket)[0]
    del os.environ["MALLOC_MMAP_THRESHOLD_"]
    value = (found["peak"] - bucket) / tensor
    detail = f"{found['peak'] / MIB:.1f} MiB with max_bytes = {bucket / MIB:.0f} MiB, {count} of {tensor / MIB:.0f} MiB"
    return [row("export_extra_tensors", max(0.0, value), detail)]


def merging_worker(size: int, count: int, max_bytes: int) -> Any:
    """The highest anonymous memory of this rank beyond its state."""
    from oarlock.checkpoint import Shard, iter_full

    rank, ranks = dist.get_rank(), dist.get_world_size()
    cut = [size * k // ranks for k in range(ranks + 1)]
    rows = slice(cut[rank], cut[rank + 1])
    state = {
        f"w{n:02d}": Shard.box(torch.full((size, size), float(n))[rows].clone(), (size, size), (cut[rank], 0))
        for n in range(count)
    }
    dict(iter_full({"warm": torch.ones(3)}))
    with peak_memory() as peak:
        for name, tensor in iter_full(state, max_bytes=max_bytes, to=[0]):
            assert bool((tensor == float(name[1:])).all())
    return {"peak": peak[0]}


# ---- loading with an exchange ----------------------------------------------------------------------------------------


def exchanging(quick: bool) -> list[Row]:
    """Four ranks load what two have saved: all of it each, and strips of columns; digests are verified."""
    size, count = 2048, 12 if quick else 16
    worst = 0.0
    print(f"{'load':28s}{'needed MiB':>12s}{'read MiB':>12s}{'with exchange':>15s}{'most by one rank':>18s}")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        launch(2, "save", folder=folder, size=size, count=count)
        for kind in ("replicas", "columns"):
            found = {
                mode: launch(4, "load", folder=folder, size=size, count=count, kind=kind, exchange=mode)
                for mode in (False, True)
            }
            needed = size * size * 4 * count
            plain, shared = (sum(found[mode]) for mode in (False, True))
            worst = max(worst, shared / needed)
            columns = f"{needed / MIB:12.1f}{plain / MIB:12.1f}{shared / MIB:15.1f}{max(found[True]) / MIB:18.1f}"
            print(f"{kind:28s}" + columns)
    print()
    return [row("exchange_reads", worst, "of replicas and of columns on four ranks, the larger one")]


def save_worker(folder: str, size: int, count: int) -> None:
    """Rows of matrices, half of them on each rank."""
    from oarlock.checkpoint import Shard, save_checkpoint

    rank = dist.get_rank()
    half = torch.arange(size * size, dtype=torch.float32).view(size, size)[rank * size // 2 : (rank + 1) * size // 2]
    tensors = {f"w{n:02d}": Shard.box(half + n, (size, size), (rank * size // 2, 0)) for n in range(count)}
    save_checkpoint(folder, 1, tensors={"model": tensors})


def load_worker(folder: str, size: int, count: int, kind: str, exchange: bool) -> int:
    """Bytes of the files' pages that this process has looked at."""
    from oarlock.checkpoint import Shard, latest_checkpoint, load_checkpoint

    rank, width = dist.get_rank(), size if kind == "replicas" else size // dist.get_world_size()
    start = 0 if kind == "replicas" else rank * width
    wanted = {f"w{n:02d}": Shard.box(torch.zeros(size, width), (size, size), (0, start)) for n in range(count)}
    path = latest_checkpoint(folder)
    assert path is not None
    saved = load_checkpoint(path, verify="read")
    saved.load("model", wanted, exchange=exchange)
    expected = torch.arange(size * size, dtype=torch.float32).view(size, size)[:, start : start + width]
    assert all(torch.equal(shard.tensor, expected + int(name[1:])) for name, shard in wanted.items())
    resident, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = line.endswith(".safetensors")
        elif inside and line.startswith("Rss:"):
            resident += int(line.split()[1]) * 1024
    return resident


# ---- conversion ------------------------------------------------------------------------------------------------------

EXPERTS = "model.layers.$L.mlp.experts"
NUM_EXPERTS, WIDTH = 32, 512
UNFUSE = f"""
{EXPERTS}.gate_up_proj[:, :{WIDTH}] -> {EXPERTS}.*.gate_proj.weight, stack=0 where * in 0:{NUM_EXPERTS}
{EXPERTS}.gate_up_proj[:, {WIDTH}:] -> {EXPERTS}.*.up_proj.weight, stack=0 where * in 0:{NUM_EXPERTS}
{EXPERTS}.down_proj -> {EXPERTS}.*.down_proj.weight, stack=0 where * in 0:{NUM_EXPERTS}
"""


def conversion(quick: bool) -> list[Row]:
    """A Qwen3-MoE with fused experts becomes a folder of files of 128 MB, by `oarlock convert` and by transformers."""
    num_layers, turns = 4, 1 if quick else 3
    runs: dict[str, list[Any]] = {"transformers": [], "ours": []}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        [size] = launch(1, "fused_model", folder=f"{folder}/fused", num_layers=num_layers)
        for turn in range(turns):
            for contestant in runs:
                out = f"{folder}/{contestant}"
                shutil.rmtree(out, ignore_errors=True)
                runs[contestant] += launch(1, "conversion", contestant=contestant, source=f"{folder}/fused", out=out)
            if turn == 0:
                launch(1, "same_folders", first=f"{folder}/transformers", second=f"{folder}/ours")
    (theirs, ours), (their_peak, our_peak) = (
        [min(run[what] for run in runs[name]) for name in runs] for what in ("seconds", "peak")
    )
    what = f"{size / MIB:.0f} MiB"
    return [
        row("convert_vs_transformers", theirs / ours, f"{theirs:.2f} s / {ours:.2f} s for {what}"),
        row(
            "convert_memory", our_peak / their_peak, f"{our_peak / MIB:.0f} MiB / {their_peak / MIB:.0f} MiB for {what}"
        ),
    ]


def fused_model_worker(folder: str, num_layers: int) -> int:
    """Write the source; the size of its tensors."""
    from safetensors.torch import save_file
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {"vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 1024, "moe_intermediate_size": WIDTH}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128}
    config = Qwen3MoeConfig(
        num_hidden_layers=num_layers, num_experts=NUM_EXPERTS, num_experts_per_tok=4, **sizes, **heads
    )
    with torch.device("meta"):
        outline = Qwen3MoeForCausalLM(config).state_dict()
    state = {name: torch.randn(tensor.shape, dtype=torch.bfloat16) for name, tensor in outline.items()}
    config.architectures = ["Qwen3MoeForCausalLM"]
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    save_file(state, f"{folder}/model.safetensors", {"format": "pt"})
    return sum(tensor.numel() * 2 for tensor in state.values())


def conversion_worker(contestant: str, source: str, out: str) -> Any:
    """Seconds and memory of one conversion, imports apart."""
    if contestant == "ours":
        import oarlock.checkpoint.conversion
        import oarlock.cli.convert
        import oarlock.cli.inspect
        import oarlock.models.weights
        import oarlock.train.units
        from oarlock.cli.main import main as oarlock

        program = Path(f"{out}.aoa")
        program.write_text(UNFUSE)
        begun = time.perf_counter()
        with peak_memory() as peak:
            assert oarlock(["convert", source, out, "--aoa", str(program), "--max-shard-size", "128MB"]) == 0
    else:
        from transformers import Qwen3MoeForCausalLM

        begun = time.perf_counter()
        with peak_memory() as peak:
            model = Qwen3MoeForCausalLM.from_pretrained(source, dtype="auto")
            del model._weight_conversions  # else it would save the experts as fused as they came
            model.save_pretrained(out, max_shard_size="128MB")
    return {"seconds": time.perf_counter() - begun, "peak": peak[0]}


def same_folders_worker(first: str, second: str) -> None:
    """Both have written the same tensors."""
    from oarlock.checkpoint import open_tensors

    one, other = open_tensors(first), open_tensors(second)
    assert one.tensors.keys() == other.tensors.keys()
    assert any("experts.31.gate_proj" in name for name in one.tensors)
    for name in one.tensors:
        assert torch.equal(one.read([name])[name], other.read([name])[name]), name


FIGURES = (sync, merging, exchanging, conversion)
WORKERS: dict[str, Callable[..., Any]] = {
    "sync": sync_worker,
    "merging": merging_worker,
    "save": save_worker,
    "load": load_worker,
    "fused_model": fused_model_worker,
    "conversion": conversion_worker,
    "same_folders": same_folders_worker,
}


if __name__ == "__main__":
    main()
