"""Context parallelism: plans for 8 to 64 simulated ranks, and real gloo processes against one thread.

    python benchmarks/context_parallel.py [--quick] [--json PATH]

| id              | value                                                                                          |
|-----------------|------------------------------------------------------------------------------------------------|
| balance         | visible pairs of the busiest rank / mean, the worst of all document sets and numbers of ranks  |
| kv_vs_allgather | keys sent / keys of an all-gather, the worst of the causal document sets                       |
| path_vs_zigzag  | critical path of zigzag shards with an all-gather / ours, the mean of the skewed sets          |
| plan_seconds    | time to plan 128K rows for 64 ranks and to build one rank's exchange, the longest              |
| gloo_speedup    | forward + backward of one thread / of 2 ranks of one thread each                               |
| gloo_speedup_4  | the same with 4 ranks on this machine's cores                                                  |

Document sets are drawn as in the FlashMask paper: 3 to 7 documents in 16K tokens, 10 to 14 in 32K, 11 to 15 in 128K,
five sets each; every rank has at least 16 blocks of 128 rows. Skewed sets have one document of 30 % or 50 % of the
tokens among sixteen. The critical path of a rank is max(local pairs, key_cost * keys received) + other pairs: receiving
overlaps with the rank's own keys. It is taken at key_cost 0 and 222 pairs (32 query and 8 key heads of 128 in bf16,
400 TFLOP/s, 450 GB/s); zigzag may hide its all-gather behind all that it computes.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported

import numpy as np
import torch
import torch.distributed as dist

from oarlock import _native
from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.context_parallel import ContextPlan, attend_context_parallel, plan_context_parallel

BLOCKS_PER_RANK, BLOCK = 16, 128
SETS = ((16384, 3, 7), (32768, 10, 14), (131072, 11, 15))
RANKS = (8, 16, 32, 64)
KEY_COSTS = (0, 222)
SEQLEN, HEADS, DIM = 16384, 4, 64
Row = dict[str, object]


def main() -> None:
    """Measure, print the tables, and write rows {figure, value, detail} if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under 50 s: fewer document sets and turns")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    num_sets = 2 if args.quick else 5
    rows = [*of_documents(num_sets), of_skewed(num_sets), of_planning()]
    for num_ranks, figure in ((2, "gloo_speedup"), (4, "gloo_speedup_4")):
        rows.append(of_processes(num_ranks, figure, turns=3 if args.quick else 8))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


def report(figure: str, value: float, detail: str) -> Row:
    """Print a figure; returns its row."""
    print(f"{figure:18}{value:8.3f}   {detail}", flush=True)
    return {"figure": figure, "value": value, "detail": detail}


# ---- simulated plans -------------------------------------------------------------------------------------------------


def documents(seqlen: int, low: int, high: int, seed: int) -> list[int]:
    """So many documents with borders anywhere."""
    generator = np.random.default_rng(seed)
    count = int(generator.integers(low, high + 1))
    borders = np.sort(generator.choice(np.arange(1, seqlen), count - 1, replace=False))
    return np.diff(np.concatenate([[0], borders, [seqlen]])).tolist()


def skewed(seqlen: int, share: float, seed: int) -> list[int]:
    """One long document somewhere among fifteen short ones."""
    long = int(seqlen * share)
    short = documents(seqlen - long, 15, 15, seed)
    place = int(np.random.default_rng(seed).integers(0, 16))
    return [*short[:place], long, *short[place:]]


def of_documents(num_sets: int) -> list[Row]:
    print(f"{'mask':18}{'rows':>7}{'ranks':>6}   balance (zigzag)   keys sent (zigzag)")
    worst, shares = 0.0, []
    for seqlen, low, high in SETS:
        for num_ranks in (r for r in RANKS if r * BLOCKS_PER_RANK * BLOCK <= seqlen):
            lengths = [documents(seqlen, low, high, seed) for seed in range(num_sets)]
            masks = {
                "causal document": [ColumnMask.causal_document(n) for n in lengths],
                "document": [ColumnMask.document(n) for n in lengths],
                "share question": [ColumnMask.share_question([share(n) for n in lengths_]) for lengths_ in lengths],
            }
            for name, drawn in masks.items():
                plans = [plan_context_parallel(mask, num_ranks=num_ranks) for mask in drawn]
                zigzag = [plan_context_parallel(mask, num_ranks=num_ranks, method="dualchunk") for mask in drawn]
                balance, sent = ([max(f(p) for p in ps) for ps in (plans, zigzag)] for f in (balance_of, share_of))
                print(
                    f"{name:18}{seqlen:7}{num_ranks:6}{balance[0]:10.3f} ({balance[1]:.2f})"
                    f"{sent[0]:14.2f} ({sent[1]:.2f})"
                )
                worst = max(worst, balance[0])
                if name == "causal document":
                    shares += [share_of(plan) for plan in plans]
    detail = f"worst of {num_sets} sets each, three masks, 8 to 64 ranks"
    mean = f"worst; mean {sum(shares) / len(shares):.2f}, causal documents, 8 to 64 ranks"
    return [report("balance", worst, detail), report("kv_vs_allgather", max(shares), mean)]


def share(length: int) -> list[int]:
    """A prompt and three answers."""
    answer = length // 6
    return [length - 3 * answer, *[answer] * 3]


def balance_of(plan: ContextPlan) -> float:
    return plan.balance


def share_of(plan: ContextPlan) -> float:
    return plan.kv_share()


def of_skewed(num_sets: int) -> Row:
    ratios, same_exchange = [], []
    for num_ranks in RANKS:
        seqlen = num_ranks * BLOCKS_PER_RANK * BLOCK
        for long in (0.3, 0.5):
            for seed in range(num_sets):
                mask = ColumnMask.causal_document(skewed(seqlen, long, seed))
                plan = plan_context_parallel(mask, num_ranks=num_ranks)
                zigzag = plan_context_parallel(mask, num_ranks=num_ranks, method="dualchunk")
                everything = seqlen * (num_ranks - 1) / num_ranks
                for cost in KEY_COSTS:
                    gathered = max(float(zigzag.pairs().max()), cost * everything)
                    ratios.append(gathered / critical_path(plan, cost))
                    same_exchange.append(critical_path(zigzag, cost) / critical_path(plan, cost))
    detail = (
        f"mean; worst {min(ratios):.2f}, {len(ratios)} cases, 8 to 64 ranks; "
        f"zigzag with our exchange instead: worst {min(same_exchange):.2f}, mean {np.mean(same_exchange):.2f}"
    )
    return report("path_vs_zigzag", float(np.mean(ratios)), detail)


def critical_path(plan: ContextPlan, key_cost: float) -> float:
    """In pairs; receiving overlaps with the rank's own keys."""
    masks = [plan.exchange(rank=rank).local_mask for rank in range(plan.num_ranks)]
    local = np.array([int(mask.visible_per_row().sum()) for mask in masks], float)
    received = plan.kv_rows().sum(1).numpy()
    return float((np.maximum(local, key_cost * received) + plan.pairs().numpy() - local).max())


def of_planning() -> Row:
    spent = []
    for seed in range(3):
        mask = ColumnMask.causal_document(documents(131072, 11, 15, seed))
        began = time.perf_counter()
        plan = plan_context_parallel(mask, num_ranks=64)
        planned = time.perf_counter()
        plan.exchange(rank=5)
        spent.append((time.perf_counter() - began, planned - began))
    total, planning = max(spent)
    return report("plan_seconds", total, f"S=128K, 64 ranks, one thread: plan {planning:.2f} s, exchange the rest")


# ---- real processes --------------------------------------------------------------------------------------------------


def of_processes(num_ranks: int, figure: str, turns: int) -> Row:
    """Start the ranks and read what the first one has measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = []
    for rank in range(num_ranks):
        env = shared | {"RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
        command = [sys.executable, __file__, "worker", str(turns)]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=300)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    if any(process.returncode for process in ranks):
        raise RuntimeError(f"a rank failed: {[process.returncode for process in ranks]}")
    alone, together, balance, share_ = json.loads(outputs[0])
    detail = (
        f"{num_ranks} ranks, {os.cpu_count()} cores, three causal documents, S={SEQLEN}, {HEADS} heads of {DIM}, fp32: "
        f"{alone * 1e3:.0f} / {together * 1e3:.0f} ms, balance {balance:.3f}, {share_:.0%} of the keys sent"
    )
    return report(figure, alone / together, detail)


def worker(turns: int) -> None:
    """One rank; the first also times the whole alone, in turns, while the others wait."""
    torch.set_num_threads(1)
    _native.keep_freed_memory()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mask = ColumnMask.causal_document([int(SEQLEN * 0.49), int(SEQLEN * 0.28), SEQLEN - int(SEQLEN * 0.77)])
    plan = plan_context_parallel(mask, dist.group.WORLD)
    whole = [torch.randn(1, SEQLEN, HEADS, DIM) for _ in range(4)]
    parts = [plan.shard(x, 1) for x in whole]
    best = {"alone": float("inf"), "together": float("inf")}
    for _ in range(turns):
        if plan.rank == 0:
            best["alone"] = min(best["alone"], timed(lambda q, k, v: flashmask_attention(q, k, v, mask), whole))
        dist.barrier()
        seconds = timed(lambda q, k, v: attend_context_parallel(q, k, v, mask, plan)[0], parts)
        slowest = torch.tensor(seconds)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        best["together"] = min(best["together"], float(slowest))
    if plan.rank == 0:
        print(json.dumps([*best.values(), plan.balance, plan.kv_share()]))
    dist.destroy_process_group()


def timed(attention, tensors: list[torch.Tensor]) -> float:
    """Seconds of a forward and a backward."""
    query, key, value = (x.detach().requires_grad_() for x in tensors[:3])
    began = time.perf_counter()
    attention(query, key, value).backward(tensors[3])
    return time.perf_counter() - began


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(int(sys.argv[2]))
    else:
        main()
