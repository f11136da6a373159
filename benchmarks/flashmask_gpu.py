"""FlashMask's Triton kernels on a GPU: results against float64, then speed beside FlexAttention and SDPA.

    python benchmarks/flashmask_gpu.py [--quick] [--json PATH] [--seconds N] [--sweep] [--device cuda]

| id                             | value                                                                |
|--------------------------------|----------------------------------------------------------------------|
| gpu_error                      | the worst error of out, dQ, dK, dV / that of the dense computation   |
|                                | in bfloat16, over the twelve masks                                   |
| gpu_fwd_d64, ..._d128          | useful TFLOP/s of the forward, geometric mean of the twelve masks    |
| gpu_bwd_d64, ..._d128          | the same for the backward                                            |
| gpu_vs_flex_d64, ..._d128      | time of FlexAttention (compiled) / ours, forward + backward, the     |
|                                | worst of the masks                                                   |
| gpu_vs_sdpa_d64, ..._d128      | time of SDPA (dense bool mask) / ours, forward + backward, the worst |

S=8192, batch 4, 32 heads, bfloat16; useful: visible pairs only, two products forward and five backward. Medians of runs
between CUDA events. What does not fit into the time (--seconds) is left out and said so; figures are then absent.
With --device cpu everything is tiny, interpreted and meaningless: it shows that the script runs.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

if "cpu" in sys.argv or "--device=cpu" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import torch
from torch import Tensor

from flashmask import lengths, sdpa, twelve_masks
from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.request import Options

Row = dict[str, object]


@dataclass(frozen=True)
class Size:
    """What is measured, and what is only checked."""

    device: str
    batch: int
    heads: int
    seqlen: int
    checked_seqlen: int
    dims: tuple[int, ...]


CUDA = Size("cuda", batch=4, heads=32, seqlen=8192, checked_seqlen=1024, dims=(64, 128))
CPU = Size("cpu", batch=1, heads=2, seqlen=64, checked_seqlen=48, dims=(16,))


def main() -> None:
    """Check, measure, print the tables, and write rows {figure, value, detail} if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under 50 s: only D=128, and no peers")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there")
    parser.add_argument("--seconds", type=float, default=170, help="stop measuring after about this long")
    parser.add_argument("--sweep", action="store_true", help="measure other tile sizes and schedules instead")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args()
    started = time.monotonic()
    size = CPU if args.device == "cpu" else CUDA
    dims = size.dims[-1:] if args.quick else size.dims
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {device_name(size.device)}", flush=True)
    if args.sweep:
        sweep(size)
        return
    rows, failed = check(size, dims)
    deadline = started + args.seconds
    rows += measure(size, dims, deadline, with_peers=not args.quick)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"took {time.monotonic() - started:.0f} s")
    if failed:
        sys.exit(f"wrong results: {', '.join(failed)}")


def device_name(device: str) -> str:
    return "CPU, interpreted" if device == "cpu" else torch.cuda.get_device_name()


def report(figure: str, value: float, detail: str) -> Row:
    """Print a figure; returns its row."""
    print(f"{figure:20}{value:8.2f}   {detail}", flush=True)
    return {"figure": figure, "value": value, "detail": detail}


# ---- results ---------------------------------------------------------------------------------------------------------


def check(size: Size, dims: tuple[int, ...]) -> tuple[list[Row], list[str]]:
    """The errors of all masks and dims, and what is wrong. Processes in parallel also fill Triton's cache."""
    names = list(twelve_masks(size.checked_seqlen, size.heads))
    tasks = [(size, dim, name) for dim in dims for name in names]
    if size.device == "cpu":
        results = [errors_of(*task) for task in tasks]
    else:
        workers = min(8, os.cpu_count() or 1)
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            results = list(pool.map(errors_of, *zip(*tasks, strict=True)))
    print(f"\nerror / that of bfloat16 in dense operations; S={size.checked_seqlen}")
    print(f"{'':20}{'D':>5}" + "".join(f"{x:>8}" for x in ("out", "dQ", "dK", "dV")))
    failed = []
    for (_, dim, name), errors in zip(tasks, results, strict=True):
        print(f"{name:20}{dim:5}" + "".join(f"{x:8.2f}" for x in errors))
        if not max(errors) <= 2:  # the usual rule for attention kernels; a NaN fails it too
            failed.append(f"{name} D={dim}")
    worst = max(max(errors) for errors in results)
    return [report("gpu_error", worst, "times the error of the dense computation in bfloat16")], failed


def errors_of(size: Size, dim: int, name: str) -> list[float]:
    """Errors of out, dQ, dK, dV against float64, each over the error of the dense computation in bfloat16."""
    torch.manual_seed(0)
    heads = min(size.heads, 4)
    mask = twelve_masks(size.checked_seqlen, heads)[name].to(size.device)
    shape = (2 if size.device == "cuda" else 1, size.checked_seqlen, heads, dim)
    inputs = [torch.randn(shape, device=size.device).bfloat16() for _ in range(3)]
    seed = torch.randn(shape, device=size.device).bfloat16()

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = flashmask_attention(query, key, value, mask, backend="triton")
        assert isinstance(out, Tensor)
        return out

    def dense(*tensors: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in tensors)
        visible = mask.to_dense()
        blind = ~visible.any(-1, keepdim=True)
        scores = (q @ k.mT).mul(dim**-0.5).masked_fill(~visible, -torch.inf).masked_fill(blind, 0)
        compute = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.to(compute).softmax(-1).to(scores.dtype).masked_fill(blind, 0)
        return (weights @ v).transpose(1, 2)

    def results(function: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        out = function(*leaves)
        return [out, *torch.autograd.grad(out, leaves, seed.to(dtype))]

    exact = results(dense, torch.float64)
    rough, got = results(dense, torch.bfloat16), results(ours, torch.bfloat16)
    return [
        ((x.double() - z).abs().max() / ((y.double() - z).abs().max() + 1e-3)).item()
        for x, y, z in zip(got, rough, exact, strict=True)
    ]


# ---- speed -----------------------------------------------------------------------------------------------------------


class Attention:
    """Forward and backward of one attention on given tensors, as two calls that can be repeated."""

    def __init__(self, function: Callable[..., Tensor], inputs: list[Tensor], seed: Tensor) -> None:
        self.function, self.seed = function, seed
        self.leaves = [x.detach().requires_grad_() for x in inputs]
        self.out = function(*self.leaves)

    def forward(self) -> None:
        self.out = self.function(*self.leaves)

    def backward(self) -> None:
        torch.autograd.grad(self.out, self.leaves, self.seed, retain_graph=True)

    def times(self) -> tuple[float, float]:
        """Seconds of the forward and of the backward."""
        return median_time(self.forward, self.leaves[0]), median_time(self.backward, self.leaves[0])


def median_time(call: Callable[[], object], on: Tensor, budget: float = 0.25) -> float:
    """Seconds of a call, the median of as many as fit into the budget, at least three."""
    if on.device.type == "cpu":
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    times: list[float] = []
    for turn in range(30):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        if turn > 0:  # the first one warms up
            times.append(begin.elapsed_time(end) / 1e3)
        if len(times) >= 3 and sum(times) > budget:
            break
    return sorted(times)[len(times) // 2]


def flex_function(mask: ColumnMask, heads: int, is_compiled: bool) -> Callable[..., Tensor]:
    """FlexAttention with the exact block lists of a mask."""
    from torch.nn.attention.flex_attention import flex_attention

    block_mask = mask.to_flex_block_mask(heads)
    function = torch.compile(flex_attention, dynamic=False, fullgraph=True) if is_compiled else flex_attention

    def attention(*tensors: Tensor) -> Tensor:
        out = function(*(x.transpose(1, 2) for x in tensors), block_mask=block_mask)
        assert isinstance(out, Tensor)
        return out.transpose(1, 2)

    return attention


def measure(size: Size, dims: tuple[int, ...], deadline: float, *, with_peers: bool) -> list[Row]:
    """Ours on all masks first, then the peers as long as there is time."""
    times: dict[tuple[str, str, int], tuple[float, float]] = {}
    masks = {name: mask.to(size.device) for name, mask in twelve_masks(size.seqlen, size.heads).items()}

    def run(who: str, name: str, dim: int, make: Callable[[], Callable[..., Tensor]]) -> None:
        if time.monotonic() > deadline:
            return
        torch.manual_seed(0)
        shape = (size.batch, size.seqlen, size.heads, dim)
        *inputs, seed = (torch.randn(shape, device=size.device, dtype=torch.bfloat16) for _ in range(4))
        try:
            times[who, name, dim] = Attention(make(), inputs, seed).times()
        except Exception as error:  # a peer that fails must not take our figures along
            if who == "ours":
                raise
            print(f"{who}, {name}, D={dim}: {type(error).__name__}: {str(error).splitlines()[0][:100]}", flush=True)

    for dim in dims:
        for name, mask in masks.items():
            run("ours", name, dim, lambda mask=mask: lambda *x: flashmask_attention(*x, mask, backend="triton"))  # type: ignore[misc]
    if with_peers:
        causal = masks["causal document"].to_dense()
        for dim in dims:
            run("sdpa", "dense mask", dim, lambda: sdpa(attn_mask=causal))
            run("sdpa", "full", dim, sdpa)
            run("sdpa", "causal", dim, lambda: sdpa(is_causal=True))
        del causal
        for name, mask in masks.items():
            for dim in dims:
                if size.device == "cuda":
                    run("flex", name, dim, lambda mask=mask: flex_function(mask, size.heads, True))
    return [row for dim in dims for row in tables(size, dim, masks, times)]


def tables(size: Size, dim: int, masks: dict[str, ColumnMask], times: dict[tuple[str, str, int], tuple]) -> list[Row]:
    """Useful TFLOP/s of all masks, and how many times longer the peers take, forward and backward together."""
    print(f"\nS={size.seqlen} D={dim} batch {size.batch} heads {size.heads}: useful TFLOP/s, and times of peers / ours")
    print(f"{'':20}{'density':>9}{'fwd':>9}{'bwd':>9}{'flex fwd':>10}{'flex bwd':>10}{'x flex':>8}{'x sdpa':>8}")
    rates: dict[str, list[float]] = {"fwd": [], "bwd": []}
    ratios: dict[str, list[float]] = {"flex": [], "sdpa": []}
    for name, mask in masks.items():
        if ("ours", name, dim) not in times:
            print(f"{name:20}{mask.density:9.3f}   not measured: out of time")
            continue
        flops = [mask.flops(size.heads, dim, batch=size.batch, backward=way == "bwd") / 1e12 for way in rates]
        ours = times["ours", name, dim]
        line = f"{name:20}{mask.density:9.3f}"
        for way, work, seconds in zip(rates, flops, ours, strict=True):
            rates[way].append(work / seconds)
            line += f"{work / seconds:9.1f}"
        flex = times.get(("flex", name, dim))
        line += "".join(f"{w / t:10.1f}" for w, t in zip(flops, flex, strict=True)) if flex else f"{'-':>10}{'-':>10}"
        # SDPA has kernels of its own for these two; with a dense mask its time does not depend on the mask.
        sdpa_times = times.get(("sdpa", name if name in ("full", "causal") else "dense mask", dim))
        for who, peer in (("flex", flex), ("sdpa", sdpa_times)):
            if peer is None:
                line += f"{'-':>8}"
            else:
                ratios[who].append(sum(peer) / sum(ours))
                line += f"{ratios[who][-1]:8.2f}"
        print(line, flush=True)
    rows = []
    for way, values in rates.items():
        if len(values) == len(masks):
            mean = math.exp(sum(map(math.log, values)) / len(values))
            rows.append(report(f"gpu_{way}_d{dim}", mean, f"useful TFLOP/s, {min(values):.0f} to {max(values):.0f}"))
    for who, values in ratios.items():
        if len(values) == len(masks):
            rows.append(report(f"gpu_vs_{who}_d{dim}", min(values), f"up to {max(values):.2f}"))
    return rows


# ---- other tile sizes ------------------------------------------------------------------------------------------------


def sweep(size: Size) -> None:
    """Times of the kernels with other tiles and schedules, on two masks; the first line of each is what is used."""
    from oarlock.attention.backends.triton import launch
    from oarlock.attention.backends.triton.tiles import Tiles

    masks = {
        "causal": ColumnMask.plain_causal(size.seqlen, device=size.device),
        "documents": ColumnMask.causal_document(lengths(size.seqlen, (0.49, 0.28, 0.23))).to(size.device),
    }
    shapes = [(128, 128, 8, 3), (128, 64, 4, 3), (128, 64, 8, 3), (64, 128, 8, 3), (64, 128, 8, 2), (64, 64, 4, 3)]
    choices = [None, *(Tiles(*shape) for shape in shapes)] if size.device == "cuda" else [None, Tiles(32, 32, 4, 1)]
    for dim in size.dims:
        for name, mask in masks.items():
            shape = (size.batch, size.seqlen, size.heads, dim)
            q, k, v, seed = (torch.randn(shape, device=size.device, dtype=torch.bfloat16) for _ in range(4))
            options = Options(mask, dim**-0.5)
            out, lse = launch.forward(q, k, v, options)
            saved = (seed, None, q, k, v, out, lse, options)
            schedules = {"persistent": launch.DEFAULT, "a program per tile": launch.Schedule(programs=2**30, quota=1)}
            for tiles in choices:
                for how, schedule in schedules.items():
                    if size.device == "cpu" and how != "persistent":
                        continue
                    chosen = {"tiles": tiles, "schedule": schedule}
                    try:
                        forward = median_time(lambda c=chosen: launch.forward(q, k, v, options, **c), q)  # noqa: B023
                        backward = median_time(lambda c=chosen: launch.backward(*saved, **c), q)  # noqa: B023
                    except Exception as error:  # tiles that do not fit
                        print(f"{name:12}{dim:5}  {tiles}: {type(error).__name__}", flush=True)
                        continue
                    rates = [
                        mask.flops(size.heads, dim, batch=size.batch, backward=is_backward) / seconds / 1e12
                        for is_backward, seconds in ((False, forward), (True, backward))
                    ]
                    print(f"{name:12}{dim:5}  fwd {rates[0]:7.1f}  bwd {rates[1]:7.1f}  {tiles}, {how}", flush=True)


if __name__ == "__main__":
    main()
