"""FlashMask on the CPU against torch's attentions and against the rate of a plain matrix product.

    python benchmarks/flashmask.py [--quick] [--json PATH] [--threads N] [--heads H]

| id                                 | value                                                                       |
|------------------------------------|-----------------------------------------------------------------------------|
| d019_vs_dense, d004_vs_dense       | forward + backward of SDPA with a dense bool mask / ours; causal documents, |
|                                    | S=4096, three (density .19) and twelve (.04)                                |
| full_vs_sdpa, causal_vs_sdpa       | forward + backward of SDPA without a mask and is_causal / ours, S=4096      |
| causal_fwd_mm, causal_bwd_mm,      | useful FLOP/s (two products forward, five backward, visible pairs only) /   |
| doc_.._mm, doc12_.._mm             | FLOP/s of torch.mm; S=4096, D=128, three and twelve documents               |
| flex_s2048, flex_s4096             | compiled FlexAttention's forward / ours, the worst mask of density <= .3    |
| flex_s2048_dense, flex_s4096_dense | the same for the denser mask                                                |
| bf16_bwd_vs_sdpa                   | backward of SDPA in bfloat16, is_causal / ours                              |
| threads_cpu                        | CPU-seconds with two threads / with one, the worse of many and one head     |

All calls of a group run in turns in one process; the shortest times count: CPU time of the thread where there is one
thread (a busy machine does not disturb it), else wall time. Batch 1, float32 unless said.
"""

import argparse
import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock import _native
from oarlock.attention import ColumnMask, flashmask_attention

THREE = (0.49, 0.28, 0.23)
TWELVE = (0.09, 0.08, 0.07, 0.1, 0.085, 0.075, 0.08, 0.09, 0.07, 0.095, 0.085, 0.08)
Times = dict[str, float]
Row = dict[str, object]


def main() -> None:
    """Measure, print the tables, and write rows {figure, value, detail} if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under 50 s, without FlexAttention and the table of masks")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--heads", type=int, help="default 8, and 2 with --quick")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    _native.keep_freed_memory()
    torch.manual_seed(0)
    heads = args.heads or (2 if args.quick else 8)
    print(f"{args.threads} threads, {_native.isa()}, torch {torch.__version__}, {heads} heads")
    seconds = 8.0 if args.quick else 60.0
    rows = against_sdpa(heads, seconds, args.threads)
    rows += against_mm(heads, seconds, args.threads)
    rows += in_bfloat16(heads, seconds / 2, args.threads)
    rows += with_two_threads(seconds / 2, args.threads)
    if not args.quick:
        rows += against_flex(heads, args.threads)
        table_of_masks(heads, args.threads)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


# ---- masks and calls -------------------------------------------------------------------------------------------------


def lengths(seqlen: int, shares: tuple[float, ...]) -> list[int]:
    """Lengths of documents with these shares of the sequence."""
    sizes = [int(seqlen * share) for share in shares]
    return [*sizes[:-1], seqlen - sum(sizes[:-1])]


def twelve_masks(seqlen: int, heads: int) -> dict[str, ColumnMask]:
    """The masks of the FlashMask paper, with its parameters."""
    documents = lengths(seqlen, THREE)
    groups = [[n // 2, *[n // 6] * 2, n - n // 2 - 2 * (n // 6)] for n in documents]
    evicted = torch.arange(seqlen) + 1 + torch.randint(0, seqlen // 2, (1, heads, seqlen))
    return {
        "full": ColumnMask.full(seqlen),
        "causal": ColumnMask.plain_causal(seqlen),
        "sliding window": ColumnMask.sliding_window(seqlen, left=seqlen // 16),
        "causal document": ColumnMask.causal_document(documents),
        "document": ColumnMask.document(documents),
        "share question": ColumnMask.share_question(groups),
        "global + window": ColumnMask.global_window(seqlen, num_global=16, left=seqlen // 16, right=seqlen // 16),
        "causal blockwise": ColumnMask.causal_blockwise(documents),
        "prefix LM": ColumnMask.prefix_lm(seqlen, seqlen // 2),
        "prefix document": ColumnMask.prefix_document(documents, [n // 2 for n in documents]),
        "QK-sparse": ColumnMask.qk_sparse(
            seqlen, [(i * seqlen // 8, i * seqlen // 8 + seqlen // 16) for i in range(8)]
        ),
        "random eviction": ColumnMask.key_eviction(evicted.clamp(max=seqlen)),
    }


class Attention:
    """Forward and backward of one attention on fresh tensors, as two calls that can be repeated."""

    def __init__(self, function: Callable[..., Tensor], seqlen: int, heads: int, dim: int, dtype=torch.float32) -> None:
        self.function = function
        self.leaves = [torch.randn(1, seqlen, heads, dim, dtype=dtype).requires_grad_() for _ in range(3)]
        self.out = function(*self.leaves)
        self.seed = torch.randn_like(self.out)

    def forward(self) -> None:
        self.out = self.function(*self.leaves)

    def backward(self) -> None:
        torch.autograd.grad(self.out, self.leaves, self.seed, retain_graph=True)


def ours(mask: ColumnMask) -> Callable[..., Tensor]:
    """flashmask_attention with this mask."""

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = flashmask_attention(query, key, value, mask)
        assert isinstance(out, Tensor)
        return out

    return function


def sdpa(**options: object) -> Callable[..., Tensor]:
    """torch's scaled_dot_product_attention."""

    def function(*tensors: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in tensors), **options)  # type: ignore[arg-type]
        return out.transpose(1, 2)

    return function


def shortest(calls: dict[str, Callable[[], object]], seconds: float, threads: int, least: int = 2) -> Times:
    """Shortest time of each call in turns, for about this long and at least so many turns."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    best = dict.fromkeys(calls, float("inf"))
    started, turn = time.perf_counter(), 0
    while turn < least or time.perf_counter() - started < seconds:
        for name, call in calls.items():
            begin = clock()
            call()
            best[name] = min(best[name], clock() - begin)
        turn += 1
    return best


def both_ways(attentions: dict[str, Attention]) -> dict[str, Callable[[], object]]:
    """The calls "NAME fwd" and "NAME bwd" of each."""
    return {
        f"{name} {way}": getattr(attention, method)
        for name, attention in attentions.items()
        for way, method in (("fwd", "forward"), ("bwd", "backward"))
    }


def total(times: Times, name: str) -> float:
    return times[f"{name} fwd"] + times[f"{name} bwd"]


def report(figure: str, value: float, detail: str) -> Row:
    """Print a figure; returns its row."""
    print(f"{figure:20}{value:8.2f}   {detail}")
    return {"figure": figure, "value": value, "detail": detail}


# ---- figures ---------------------------------------------------------------------------------------------------------


def against_sdpa(heads: int, seconds: float, threads: int) -> list[Row]:
    seqlen, dim = 4096, 64
    masks = {
        "d019": ColumnMask.causal_document(lengths(seqlen, THREE)),
        "d004": ColumnMask.causal_document(lengths(seqlen, TWELVE)),
        "full": ColumnMask.full(seqlen),
        "causal": ColumnMask.plain_causal(seqlen),
    }
    peers = {
        "dense": sdpa(attn_mask=masks["d019"].to_dense()),  # its time does not depend on the mask
        "sdpa full": sdpa(),
        "sdpa causal": sdpa(is_causal=True),
    }
    functions = {**{name: ours(mask) for name, mask in masks.items()}, **peers}
    attentions = {name: Attention(function, seqlen, heads, dim) for name, function in functions.items()}
    times = shortest(both_ways(attentions), seconds, threads)
    rows = []
    for name, mask in masks.items():
        peer = "dense" if name.startswith("d0") else f"sdpa {name}"
        detail = (
            f"S={seqlen} D={dim} density {mask.density:.3f}: ours {total(times, name) * 1e3:.1f} ms, "
            f"{peer} {total(times, peer) * 1e3:.1f} ms"
        )
        figure = f"{name}_vs_dense" if peer == "dense" else f"{name}_vs_sdpa"
        rows.append(report(figure, total(times, peer) / total(times, name), detail))
    return rows


def against_mm(heads: int, seconds: float, threads: int) -> list[Row]:
    seqlen, dim, size = 4096, 128, 1024
    masks = {
        "causal": ColumnMask.plain_causal(seqlen),
        "doc": ColumnMask.causal_document(lengths(seqlen, THREE)),
        "doc12": ColumnMask.causal_document(lengths(seqlen, TWELVE)),
    }
    a, b, c = torch.randn(3, size, size).unbind()
    calls = both_ways({name: Attention(ours(mask), seqlen, heads, dim) for name, mask in masks.items()})
    times = shortest({**calls, "mm": lambda: torch.mm(a, b, out=c)}, seconds, threads)
    peak = 2 * size**3 / times["mm"]
    rows = []
    for name, mask in masks.items():
        for way in ("fwd", "bwd"):
            rate = mask.flops(heads, dim, backward=way == "bwd") / times[f"{name} {way}"]
            detail = f"S={seqlen} D={dim}: {rate / 1e9:.1f} useful GFLOP/s, torch.mm {peak / 1e9:.1f}"
            rows.append(report(f"{name}_{way}_mm", rate / peak, detail))
    return rows


def in_bfloat16(heads: int, seconds: float, threads: int) -> list[Row]:
    seqlen, dim = 2048, 64
    functions = {"ours": ours(ColumnMask.plain_causal(seqlen)), "sdpa": sdpa(is_causal=True)}
    attentions = {name: Attention(f, seqlen, heads, dim, torch.bfloat16) for name, f in functions.items()}
    times = shortest(both_ways(attentions), seconds, threads)
    detail = f"S={seqlen} D={dim}, causal: ours {times['ours bwd'] * 1e3:.1f} ms, SDPA {times['sdpa bwd'] * 1e3:.1f} ms"
    return [report("bf16_bwd_vs_sdpa", times["sdpa bwd"] / times["ours bwd"], detail)]


def with_two_threads(seconds: float, threads: int) -> list[Row]:
    ratios = {}
    for heads in (8, 1):
        attention = Attention(ours(ColumnMask.causal_document(lengths(4096, THREE))), 4096, heads, 64)
        best = {1: float("inf"), 2: float("inf")}
        started = time.perf_counter()
        while time.perf_counter() - started < seconds / 2 or max(best.values()) == float("inf"):
            for count in best:
                torch.set_num_threads(count)
                begin = time.process_time()
                attention.forward()
                attention.backward()
                best[count] = min(best[count], time.process_time() - begin)
        ratios[heads] = best[2] / best[1]
    torch.set_num_threads(threads)
    detail = "three causal documents, S=4096 D=64: " + ", ".join(f"{h} heads {r:.3f}" for h, r in ratios.items())
    return [report("threads_cpu", max(ratios.values()), detail)]


def against_flex(heads: int, threads: int) -> list[Row]:
    from torch.nn.attention.flex_attention import flex_attention

    dim, rows = 64, []
    for seqlen in (2048, 4096):
        masks = {name: twelve_masks(seqlen, heads)[name] for name in ("causal document", "share question", "prefix LM")}
        tensors = [torch.randn(1, seqlen, heads, dim) for _ in range(3)]
        calls: dict[str, Callable[[], object]] = {}
        for name, mask in masks.items():
            torch._dynamo.reset()  # with dynamic shapes the generated C++ does not compile
            compiled = torch.compile(flex_attention, dynamic=False)
            block_mask = mask.to_flex_block_mask()
            flipped = [x.transpose(1, 2) for x in tensors]
            calls[f"flex {name}"] = functools.partial(compiled, *flipped, block_mask=block_mask)
            calls[f"ours {name}"] = functools.partial(ours(mask), *tensors)
            with torch.no_grad():
                calls[f"flex {name}"]()
        with torch.no_grad():
            times = shortest(calls, 20.0, threads, least=3)
        ratios = {name: times[f"flex {name}"] / times[f"ours {name}"] for name in masks}
        for figure, is_sparse in ((f"flex_s{seqlen}", True), (f"flex_s{seqlen}_dense", False)):
            chosen = {n: r for n, r in ratios.items() if (masks[n].density <= 0.3) == is_sparse}
            detail = f"forward, D={dim}: " + ", ".join(
                f"{n} {masks[n].density:.2f}: {times[f'flex {n}'] * 1e3:.1f} / {times[f'ours {n}'] * 1e3:.1f} ms"
                for n in chosen
            )
            rows.append(report(figure, min(chosen.values()), detail))
    return rows


def table_of_masks(heads: int, threads: int) -> None:
    """Useful GFLOP/s of the twelve masks, and the time of SDPA with a dense mask over ours."""
    for seqlen in (2048, 4096, 8192):
        for dim in (64, 128):
            masks = twelve_masks(seqlen, heads)
            attentions = {name: Attention(ours(mask), seqlen, heads, dim) for name, mask in masks.items()}
            attentions["dense"] = Attention(sdpa(attn_mask=masks["causal"].to_dense()), seqlen, heads, dim)
            times = shortest(both_ways(attentions), 0.0, threads, least=3)
            print(f"\nS={seqlen} D={dim}      density   fwd GF/s  bwd GF/s   x dense SDPA fwd+bwd")
            for name, mask in masks.items():
                rates = [
                    mask.flops(heads, dim, backward=way == "bwd") / times[f"{name} {way}"] / 1e9
                    for way in ("fwd", "bwd")
                ]
                ratio = total(times, "dense") / total(times, name)
                print(f"{name:20}{mask.density:7.3f}{rates[0]:11.1f}{rates[1]:10.1f}{ratio:10.1f}")


if __name__ == "__main__":
    main()
