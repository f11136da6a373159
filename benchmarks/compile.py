"""What compiling costs and brings: python benchmarks/compile.py [--quick] [--json PATH] [--threads N]

| id               | value                                                                                            |
|------------------|--------------------------------------------------------------------------------------------------|
| breaks           | graph breaks in the loss of the default model, with packed documents                             |
| first_step_cold  | seconds of the first training step of a process, its blocks compiled, with no cache anywhere     |
| first_step_warm  | the same where a process before it has saved what it compiled (`CompileCache`)                   |
| warm_vs_cold     | the second / the first                                                                           |
| recompiles       | compilations in the five steps after that, each with other documents                             |
| recompiles_eval  | further ones in the first two evaluations                                                        |
| vs_eager         | tokens per second of a compiled step / of an eager one, interleaved in one process, medians      |

Each first step is that of a process of its own, with an empty folder for the compiler's files. `--quick`: sequences of
512 tokens instead of 8,192, which leaves the times of the first step nearly as they are.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as functional
from torch import Tensor

from oarlock.attention import ColumnMask
from oarlock.compile import CompileCache, Watch, compile_blocks, explain
from oarlock.models import Decoder
from oarlock.train.build import decoder_config
from oarlock.train.config import load_config

CONFIG = Path(__file__).parents[1] / "configs" / "shakespeare.toml"
VOCABULARY = 4096
STEPS, EVALUATIONS = 5, 2


def main() -> None:
    """Measure, print a table, and write rows {figure, value, detail} if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short sequences, under 50 s")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--first-step", metavar="STORE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")  # of tracing
    length = 512 if args.quick else 8192
    if args.first_step:
        print(json.dumps(run_process(args.first_step, length, measure_more=not Path(args.first_step).exists())))
        return
    rows = measure(length, args.threads, ["--quick"] if args.quick else [])
    for row in rows:
        print(f"{row['figure']:16} {row['value']:8.3g}  {row['detail']}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measure(length: int, threads: int, options: list[str]) -> list[dict[str, object]]:
    """Two processes after one another, which share nothing but the folder of the cache."""
    loss, model = new_model(length)
    report = explain(loss, *batch(length, 0))
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        found = []
        for name in ("cold", "warm"):
            command = [sys.executable, __file__, "--first-step", str(store), "--threads", str(threads), *options]
            environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / name)}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
    cold, warm = found
    if (cold["hit"], warm["hit"]) != (False, True):
        raise RuntimeError(f"the second process should find what the first compiled: {cold}, {warm}")
    where = f"{length:,} tokens, {threads} threads"
    values = {
        "breaks": (report.num_breaks, f"{report.num_graphs} graph with {report.num_ops} operations"),
        "first_step_cold": (cold["seconds"], f"{len(model.layers)} blocks, {where}"),
        "first_step_warm": (warm["seconds"], "with the loading of the cache"),
        "warm_vs_cold": (warm["seconds"] / cold["seconds"], ""),
        "recompiles": (cold["recompiles"], f"in {STEPS} steps, each with other documents"),
        "recompiles_eval": (cold["recompiles_eval"], f"in {EVALUATIONS} evaluations"),
        "vs_eager": (cold["vs_eager"], where),
    }
    return [{"figure": figure, "value": value, "detail": detail} for figure, (value, detail) in values.items()]


def run_process(store: str, length: int, measure_more: bool) -> dict[str, float]:
    """The life of one process: cache, first step, further steps and evaluations, and speeds."""
    loss, model = new_model(length)
    compile_blocks(model, model.layers)
    batches = [batch(length, number) for number in range(1 + STEPS)]
    began = time.perf_counter()
    with CompileCache(store, model) as cache:
        loss(*batches[0]).backward()
        found = {"seconds": time.perf_counter() - began, "hit": bool(cache.hit)}
    if measure_more:  # behind the block: the entry has what the first step compiled
        with Watch() as watch:
            for each in batches[1:]:
                loss(*each).backward()
        found["recompiles"] = len(watch.report.recompiles)
        with Watch() as watch, torch.no_grad():
            for each in batches[:EVALUATIONS]:
                loss(*each)
        found["recompiles_eval"] = len(watch.report.recompiles)
        eager, _ = new_model(length)
        found["vs_eager"] = ratio(lambda: eager(*batches[0]).backward(), lambda: loss(*batches[0]).backward(), 5)
    return found


def new_model(length: int) -> tuple[Callable[[Tensor, Tensor, ColumnMask], Tensor], Decoder]:
    """The default model and its loss."""
    config = load_config(CONFIG)
    model = Decoder(decoder_config(config.model, VOCABULARY, length))
    model.initialize(torch.Generator().manual_seed(0))

    def loss(ids_BS: Tensor, positions_BS: Tensor, mask: ColumnMask) -> Tensor:
        hidden_BSE = model(ids_BS, position_ids=positions_BS, mask=mask)
        return functional.cross_entropy(model.logits(hidden_BSE).flatten(0, 1), ids_BS.flatten())

    return loss, model


def batch(length: int, number: int) -> tuple[Tensor, Tensor, ColumnMask]:
    """Tokens, positions and mask of one sequence of four packed documents."""
    generator = torch.Generator().manual_seed(number)
    ids_BS = torch.randint(VOCABULARY, (1, length), generator=generator)
    cuts = torch.randperm(length - 1, generator=generator)[:3].add(1).sort().values.tolist()
    lengths = [end - begin for begin, end in itertools.pairwise([0, *cuts, length])]
    positions_BS = torch.cat([torch.arange(each) for each in lengths]).expand_as(ids_BS)
    return ids_BS, positions_BS, ColumnMask.causal_document([lengths])


def ratio(base: Callable[[], object], other: Callable[[], object], rounds: int) -> float:
    """Median time of the first / of the second, interleaved."""
    seconds: dict[Callable[[], object], list[float]] = {base: [], other: []}
    for _, function in itertools.product(range(rounds), (base, other)):
        began = time.perf_counter()
        function()
        seconds[function].append(time.perf_counter() - began)
    return statistics.median(seconds[base]) / statistics.median(seconds[other])


if __name__ == "__main__":
    main()
