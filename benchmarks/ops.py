"""The fused CPU kernels of a decoder layer against torch's eager operations and against the memory bandwidth.

    python benchmarks/ops.py [--quick] [--json PATH] [--threads N] [--tokens N] [--width E] [--vocabulary V]

| id                   | value                                                                   |
|----------------------|-------------------------------------------------------------------------|
| ops_NAME_floor_share | time that the memory needs for what the kernel cannot avoid / its time  |
| ops_NAME_vs_torch    | time of torch's eager operations / the kernel's time                    |

The memory moves an array that is read once, one that is changed in place twice, and so a new one: the processor
fetches a line before it overwrites it. A copy, which moves three times its array, gives the rate. All calls run
interleaved and find the caches full of other data. The shortest times count: CPU time where there is one thread (a busy
machine does not disturb it), else wall time.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock import _native, ops
from oarlock.ops import fused

HEAD_DIM = 64
EPS = 1e-6


@dataclass(frozen=True)
class Case:
    """A kernel, what a plain PyTorch model runs for it, and the arrays that it cannot avoid to move."""

    name: str
    kernel: Callable[[], object]
    eager: Callable[[], object]
    num_elements: int
    """Size of one array."""
    num_read: int
    num_new: int = 0
    num_changed: int = 0

    @property
    def num_bytes(self) -> int:
        """What passes between the processor and the memory."""
        return 4 * self.num_elements * (self.num_read + 2 * self.num_new + 2 * self.num_changed)


def main() -> None:
    """Measure, print a table, and write rows {figure, value, detail} if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under 50 s")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--width", type=int, default=256, help="model width, a multiple of 64")
    parser.add_argument("--vocabulary", type=int, default=4096)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    _native.keep_freed_memory()
    torch.manual_seed(0)
    cases = build_cases(args.tokens, args.width, args.width * 11 // 4, args.vocabulary)
    source = torch.randn(2 * args.tokens * args.width)
    target = torch.empty_like(source)
    calls: dict[str, Callable[[], object]] = {"copy": lambda: target.copy_(source)}
    for case in cases:
        calls[case.name] = case.kernel
        calls[case.name + " eager"] = case.eager
    seconds = shortest(calls, rounds=30 if args.quick else 150, threads=args.threads)
    rate = 3 * source.numel() * source.element_size() / seconds["copy"]
    print(
        f"{args.threads} threads, {_native.isa()}, torch {torch.__version__}, {args.tokens} tokens, "
        f"width {args.width}, memory {rate / 1e9:.1f} GB/s"
    )
    rows = [row for case in cases for row in report(case, seconds, rate)]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


def report(case: Case, seconds: dict[str, float], rate: float) -> list[dict[str, object]]:
    """Print a line of the table; returns its figures."""
    ours, eager, floor = seconds[case.name], seconds[case.name + " eager"], case.num_bytes / rate
    detail = (
        f"{case.num_bytes / 1e6:7.1f} MB   floor {floor * 1e3:6.2f} ms   ours {ours * 1e3:6.2f} ms "
        f"({floor / ours:.2f} of the floor's rate)   torch {eager * 1e3:6.2f} ms ({eager / ours:.1f}x)"
    )
    print(f"{case.name:24}{detail}")
    figure = "ops_" + case.name.replace(" ", "_")
    return [
        {"figure": f"{figure}_floor_share", "value": floor / ours, "detail": detail},
        {"figure": f"{figure}_vs_torch", "value": eager / ours, "detail": detail},
    ]


def shortest(calls: dict[str, Callable[[], object]], rounds: int, threads: int) -> dict[str, float]:
    """Shortest seconds of each call, interleaved."""
    # A machine shared with others takes a thread's core away now and then; its CPU time does not run then.
    clock = time.thread_time if threads == 1 else time.perf_counter
    best = dict.fromkeys(calls, float("inf"))
    other_data = torch.zeros(2**24)
    for _ in range(rounds):
        for name, call in calls.items():
            other_data.add_(1)
            begin = clock()
            call()
            best[name] = min(best[name], clock() - begin)
    return best


def backward_of(function: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> Callable[[], object]:
    """The eager backward pass of function(*inputs), again and again on one graph."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    upstream = [torch.randn_like(y) for y in (outputs if isinstance(outputs, tuple) else (outputs,))]
    return lambda: torch.autograd.grad(outputs, leaves, upstream, retain_graph=True)


def build_cases(num_tokens: int, width: int, mlp_width: int, vocabulary: int) -> list[Case]:
    """All kernels at the sizes of a layer."""
    cases = norm_cases(num_tokens, width) + rope_cases(num_tokens, width // HEAD_DIM)
    return cases + swiglu_cases(num_tokens, mlp_width) + [loss_case(512, vocabulary)]


def norm_cases(num_tokens: int, width: int) -> list[Case]:
    x, update, dy, dtotal = (torch.randn(num_tokens, width) for _ in range(4))
    weight = torch.randn(width)
    total, _, inverse_rms = fused.rms_norm(x, weight, EPS, update)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (width,), weight, EPS)

    def add_norm(x: Tensor, update: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + update
        return total, norm(total, weight)

    size = num_tokens * width
    return [
        Case("norm", lambda: fused.rms_norm(x, weight, EPS), lambda: norm(x, weight), size, 1, 1),
        Case(
            "norm backward",
            lambda: fused.rms_norm_backward(dy, total, weight, inverse_rms),
            backward_of(norm, x, weight),
            *(size, 2, 1),
        ),
        Case(
            "add norm", lambda: fused.rms_norm(x, weight, EPS, update), lambda: add_norm(x, update, weight), size, 2, 2
        ),
        Case(
            "add norm backward",
            lambda: fused.rms_norm_backward(dy, total, weight, inverse_rms, dtotal),
            backward_of(add_norm, x, update, weight),
            *(size, 3, 1),
        ),
    ]


def rope_cases(num_tokens: int, num_heads: int) -> list[Case]:
    x, dy = (torch.randn(1, num_tokens, num_heads, HEAD_DIM) for _ in range(2))
    weight = torch.randn(HEAD_DIM)
    cos, sin = ops.rope_tables(torch.arange(num_tokens)[None], HEAD_DIM, 10_000.0)
    wide_cos, wide_sin = (torch.cat((t, t), dim=-1).unsqueeze(2) for t in (cos, sin))
    _, inverse_rms = fused.norm_rope(x, weight, EPS, cos, sin)

    def rotate(x: Tensor) -> Tensor:  # as transformers does it
        a, b = x.chunk(2, dim=-1)
        return x * wide_cos + torch.cat((-b, a), dim=-1) * wide_sin

    def norm_rotate(x: Tensor, weight: Tensor) -> Tensor:
        return rotate(F.rms_norm(x, (HEAD_DIM,), weight, EPS))

    size = x.numel()
    return [
        Case("rope", lambda: fused.rope(x, cos, sin), lambda: rotate(x), size, 1, 1),
        Case("rope backward", lambda: fused.rope(dy, cos, sin, inverse=True), backward_of(rotate, x), size, 1, 1),
        Case(
            "norm rope", lambda: fused.norm_rope(x, weight, EPS, cos, sin), lambda: norm_rotate(x, weight), size, 1, 1
        ),
        Case(
            "norm rope backward",
            lambda: fused.norm_rope_backward(dy, x, weight, inverse_rms, cos, sin),
            backward_of(norm_rotate, x, weight),
            *(size, 2, 1),
        ),
    ]


def swiglu_cases(num_tokens: int, mlp_width: int) -> list[Case]:
    gate, up, dy = (torch.randn(num_tokens, mlp_width) for _ in range(3))

    def swiglu(gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up

    size = gate.numel()
    return [
        Case("swiglu", lambda: fused.swiglu(gate, up), lambda: swiglu(gate, up), size, 2, 1),
        Case(
            "swiglu backward",
            lambda: fused.swiglu_backward(dy, gate, up),
            backward_of(swiglu, gate, up),
            *(size, 3, 2),
        ),
    ]


def loss_case(num_rows: int, vocabulary: int) -> Case:
    """Loss and gradient of one chunk of logits; the gradient replaces the logits, which stay valid logits."""
    logits, targets = torch.randn(num_rows, vocabulary) * 3, torch.randint(0, vocabulary, (num_rows,))
    leaf = logits.clone().requires_grad_()

    def eager() -> Tensor:
        return torch.autograd.grad(F.cross_entropy(leaf, targets), leaf)[0]

    return Case("loss", lambda: fused.softmax_cross_entropy_(logits, targets), eager, logits.numel(), 0, num_changed=1)


if __name__ == "__main__":
    main()
