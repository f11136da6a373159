"""Traces of allocations of training steps at a GPU's sizes, recorded on `meta`: no GPU and no memory is needed.

    python benchmarks/memory_traces.py [--out build/memory-traces] [NAME ...]

- ac-skew-0.3, ac-skew-0.5, ac-skew-1.0: every layer recomputed; the experts' loads are log-normal with that sigma
- keep-all: nothing recomputed, sigma 0.5, as in what follows
- 1f1b: first of four pipeline stages, 8 microbatches, one forward one backward; experts in one grouped product
- interleaved: the same with two chunks of the model per stage
- varying-length: microbatches of 0.3 to 1 times the tokens
- foreach: AdamW over lists of all parameters
- rl: rollouts with growing key-value caches; the optimizer's state leaves and comes back in between
- three-streams: recomputed; experts' tokens are exchanged on stream 1, parameters gathered by layer on stream 2
- eager: one device, 8 layers and 8 experts of width 4096; attention composed of matrices of tokens x tokens, all logits
  at once

One rank of a fine-grained mixture of experts: 12 of its 48 layers, 16 of its 128 experts, 8 experts per token, width
2048, bf16 weights, float32 gradients, AdamW's state shared by 8 ranks, logits of 1024 tokens at a time. Except where
said, every expert is a module of its own. What kernels take inside one operation and communication libraries for
themselves is not seen. The same seed gives the same trace; another version of torch may give another.
"""

import argparse
import gc
import random
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from oarlock.memory import Trace, TraceRecorder

EXCHANGE, GATHER = 1, 2  # streams beside the one that computes, 0
NUM_RANKS = 8  # that share the optimizer's state


@dataclass(frozen=True)
class Sizes:
    tokens: int = 16_384
    width: int = 2048
    expert_width: int = 768
    num_layers: int = 12
    num_experts: int = 16
    top_k: int = 8
    num_heads: int = 16
    vocabulary: int = 151_936


WIDE = Sizes(8192, 4096, 1536, 8, 8, 4, 32, 32_000)


class Loads:
    """How many tokens each expert of a layer gets: the host knows it before the layer runs, as with routing."""

    def __init__(self, sizes: Sizes, skew: float, seed: int) -> None:
        self.sizes, self.skew, self.random = sizes, skew, random.Random(seed)

    def draw(self, tokens: int) -> list[int]:
        weights = [self.random.lognormvariate(0, self.skew) for _ in range(self.sizes.num_experts)]
        total = tokens * self.sizes.top_k * self.random.lognormvariate(0, self.skew / 2)  # of all ranks' tokens, ours
        return [max(1, int(total * weight / sum(weights))) for weight in weights]


class Expert(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.up = nn.Linear(sizes.width, 2 * sizes.expert_width, bias=False)
        self.down = nn.Linear(sizes.expert_width, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class GroupedProduct(torch.autograd.Function):
    """x [rows, in] by expert, times weights [experts, out, in]: one kernel, one buffer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weights)
        return x.new_empty(x.shape[0], weights.shape[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weights = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weights)


class GroupedExperts(nn.Module):
    """All experts of a layer at once."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(sizes.num_experts, 2 * sizes.expert_width, sizes.width))
        self.down = nn.Parameter(torch.empty(sizes.num_experts, sizes.width, sizes.expert_width))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = GroupedProduct.apply(x, self.up).chunk(2, -1)
        return GroupedProduct.apply(F.silu(gate) * up, self.down)


class Layer(nn.Module):
    """Attention, then experts whose tokens arrive in one buffer."""

    def __init__(self, sizes: Sizes, recorder: TraceRecorder, *, streams: bool, eager: bool, grouped: bool) -> None:
        super().__init__()
        self.sizes, self.recorder, self.streams, self.eager = sizes, recorder, streams, eager
        self.norms = nn.ModuleList(nn.RMSNorm(sizes.width) for _ in range(2))
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)
        self.gate = nn.Linear(sizes.width, 8 * sizes.num_experts, bias=False)
        experts = [GroupedExperts(sizes)] if grouped else [Expert(sizes) for _ in range(sizes.num_experts)]
        self.experts = nn.ModuleList(experts)

    def forward(self, x: Tensor, loads: list[int]) -> Tensor:
        tokens, width = x.shape
        heads = self.sizes.num_heads
        gathered = self.gather() if self.streams else None
        q, k, v = (t.view(1, tokens, heads, -1).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        if self.eager:  # on meta torch composes it of matrices
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # the kernel that a GPU would choose
            attended = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        x = x + self.out(attended.transpose(1, 2).reshape(tokens, width))
        del q, k, v, attended
        hidden = self.norms[1](x)
        weights = F.softmax(self.gate(hidden).float(), -1)
        index = torch.zeros(sum(loads), dtype=torch.long)
        with self.recorder.stream(EXCHANGE) if self.streams else nullcontext():
            arrived = hidden[index]
        if self.streams:
            self.recorder.use(arrived, 0)
        parts = arrived.split(loads) if len(self.experts) > 1 else (arrived,)
        results = [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        with self.recorder.stream(EXCHANGE) if self.streams else nullcontext():
            sent = torch.cat(results) if len(results) > 1 or self.streams else results[0]
        del results
        combined = torch.zeros_like(hidden).index_add(0, index, sent)
        del gathered
        return x + combined * weights[:, :1].to(combined.dtype)

    def gather(self) -> list[Tensor]:
        """The layer's parameters as they come from the other ranks, in one buffer each, on a stream of their own."""
        with self.recorder.stream(GATHER):
            buffers = [torch.empty_like(p) for p in self.parameters()]
        for buffer in buffers:
            self.recorder.use(buffer, 0)
        return buffers


class Model(nn.Module):
    def __init__(self, sizes: Sizes, recorder: TraceRecorder, *, first: bool, last: bool, **options: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width) if first else None
        self.layers = nn.ModuleList(Layer(sizes, recorder, **options) for _ in range(sizes.num_layers))
        self.norm = nn.RMSNorm(sizes.width) if last else None
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False) if last else None

    def forward(self, x: Tensor, loads: list[list[int]], *, recompute: bool) -> Tensor:
        if self.embed is not None:
            x = self.embed(x)
        for layer, load in zip(self.layers, loads, strict=True):
            x = checkpoint(layer, x, load, use_reentrant=False) if recompute else layer(x, load)
        return x if self.norm is None else self.norm(x)


def accumulate(parameter: Tensor, into: Tensor) -> None:
    """As soon as a gradient is there, into the float32 one."""
    assert parameter.grad is not None
    into.add_(parameter.grad)
    parameter.grad = None


class Training:
    """A model, its master weights and AdamW. `plain`: as on a single device, nothing shared, gradients in bf16."""

    def __init__(
        self,
        recorder: TraceRecorder,
        sizes: Sizes,
        *,
        skew: float,
        seed: int,
        recompute: bool = True,
        foreach: bool = False,
        streams: bool = False,
        eager: bool = False,
        grouped: bool = False,
        plain: bool = False,
        num_chunks: int = 0,
    ) -> None:
        self.recorder, self.sizes, self.recompute = recorder, sizes, recompute
        self.loads = Loads(sizes, skew, seed)
        self.random = random.Random(seed + 1)
        self.loss_chunk = sizes.tokens if eager else 1024
        whole = num_chunks == 0
        self.chunks = nn.ModuleList(
            Model(sizes, recorder, first=i == 0, last=whole, streams=streams, eager=eager, grouped=grouped).bfloat16()
            for i in range(num_chunks or 1)
        )
        self.plain = plain
        self.gradients = [] if plain else [torch.zeros(p.shape) for p in self.chunks.parameters()]
        for parameter, gradient in zip(self.chunks.parameters(), self.gradients, strict=False):
            parameter.register_post_accumulate_grad_hook(partial(accumulate, into=gradient))
        num_ranks = 1 if plain else NUM_RANKS
        self.masters = [torch.empty(-(-p.numel() // num_ranks)) for p in self.chunks.parameters()]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-3, foreach=foreach)

    def forward(self, chunk: int, x: Tensor) -> Tensor:
        with self.recorder.label("forward"):
            loads = [self.loads.draw(x.shape[0]) for _ in range(self.sizes.num_layers)]
            return self.chunks[chunk](x, loads, recompute=self.recompute)

    def microbatch(self, tokens: int) -> None:
        ids = torch.zeros(tokens, dtype=torch.long)
        hidden = self.forward(0, ids)
        head = self.chunks[0].head
        with self.recorder.label("loss"):  # in chunks, each with its backward: the logits never exist at once
            leaf = hidden.detach().requires_grad_()
            for part, target in zip(leaf.split(self.loss_chunk), ids.split(self.loss_chunk), strict=True):
                F.cross_entropy(head(part).float(), target).backward()
        with self.recorder.label("backward"):
            hidden.backward(leaf.grad)

    def step(self) -> None:
        with self.recorder.label("optimizer"):
            for master, parameter in zip(self.masters, self.chunks.parameters(), strict=True):
                master.grad = torch.empty_like(master)  # reduced and scattered, or cast
                parameter.grad = None
            for gradient in self.gradients:
                gradient.zero_()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            for master in self.masters:
                master.bfloat16()  # gathered into the parameters
        gc.collect()


def train(training: Training, num_steps: int, num_microbatches: int, shortest: float = 1.0) -> None:
    for _ in range(num_steps):
        for _ in range(num_microbatches):
            training.microbatch(int(training.sizes.tokens * training.random.uniform(shortest, 1)))
        training.step()


def schedule(num_stages: int, num_chunks: int, num_microbatches: int) -> Iterator[tuple[bool, int, int]]:
    """(forward, chunk, microbatch) in the order of the first stage."""
    total = num_chunks * num_microbatches
    warm_up = num_stages - 1 if num_chunks == 1 else 2 * (num_stages - 1) + (num_chunks - 1) * num_stages

    def unit(i: int, *, forward: bool) -> tuple[bool, int, int]:
        group, inside = divmod(i, num_stages * num_chunks)
        chunk, rank = divmod(inside, num_stages)
        return forward, chunk if forward else num_chunks - 1 - chunk, group * num_stages + rank

    warm_up = min(warm_up, total)
    yield from (unit(i, forward=True) for i in range(warm_up))
    for i in range(total - warm_up):
        yield unit(warm_up + i, forward=True)
        yield unit(i, forward=False)
    yield from (unit(i, forward=False) for i in range(total - warm_up, total))


def pipeline(training: Training, num_steps: int, num_chunks: int) -> None:
    tokens, width = training.sizes.tokens, training.sizes.width
    for _ in range(num_steps):
        running: dict[tuple[int, int], Tensor] = {}
        for forward, chunk, microbatch in schedule(4, num_chunks, 8):
            if forward:
                if chunk == 0:
                    x = torch.zeros(tokens, dtype=torch.long)
                else:
                    x = torch.empty(tokens, width, dtype=torch.bfloat16, requires_grad=True)  # received
                running[chunk, microbatch] = training.forward(chunk, x)
                del x
            else:
                y = running.pop((chunk, microbatch))
                with training.recorder.label("backward"):
                    torch.autograd.backward(y, torch.empty_like(y))
                del y
        training.step()


def rollout(training: Training, batch: int, prompt: int, num_tokens: int) -> None:
    """Answers of varying lengths; a token each for the whole batch, whose caches grow by concatenation."""
    sizes = training.sizes
    with training.recorder.label("rollout"), torch.no_grad():
        weights = [torch.empty_like(p) for p in training.chunks.parameters()]
        caches = [
            torch.empty(2, batch, prompt, sizes.num_heads // 4, 128, dtype=torch.bfloat16)
            for _ in range(sizes.num_layers)
        ]
        for _ in range(num_tokens):
            x = torch.empty(caches[0].shape[1], sizes.width, dtype=torch.bfloat16)
            for i in range(sizes.num_layers):
                new = torch.empty(2, x.shape[0], 16, *caches[i].shape[3:], dtype=torch.bfloat16)
                caches[i] = torch.cat([caches[i], new], 2)
                x = x + torch.empty(x.shape[0], 3 * sizes.width, dtype=torch.bfloat16)[:, : sizes.width] * 2
            torch.empty(x.shape[0], sizes.vocabulary).softmax(-1)
            if training.random.random() < 0.3:  # a few have ended
                rest = max(4, int(caches[0].shape[1] * training.random.uniform(0.8, 1)))
                caches = [cache[:, :rest].contiguous() for cache in caches]
        del weights, caches


def reinforce(training: Training, num_iterations: int) -> None:
    """Rollouts while the training state is on the host, then training."""
    state: list[Tensor] = []
    for iteration in range(num_iterations):
        shapes = [t.shape for t in state]
        with training.recorder.label("offload"):
            for tensor in state:
                tensor.data = torch.empty(0)
        rollout(training, batch=48, prompt=int(1024 * training.random.uniform(0.5, 1)), num_tokens=48)
        with training.recorder.label("reload"):
            for tensor, shape in zip(state, shapes, strict=True):
                tensor.data = torch.empty(shape)
        train(training, 1, 3, 0.3)
        if iteration == 0:
            moments = [
                t for s in training.optimizer.state.values() for t in s.values() if isinstance(t, Tensor) and t.ndim
            ]
            state = [t for t in moments if t.device.type == "meta"] + training.masters + training.gradients


def scenes(sizes: Sizes, wide: Sizes, num_steps: int) -> dict[str, Callable[[TraceRecorder], None]]:
    """What each trace records."""
    half = replace(sizes, tokens=sizes.tokens // 2)
    chunk = replace(half, num_layers=max(half.num_layers // 2, 1))

    def moe(seed: int, skew: float, of: Sizes = sizes, **options: bool) -> Callable[[TraceRecorder], None]:
        return lambda r: train(Training(r, of, skew=skew, seed=seed, **options), num_steps, 3)

    def stage(seed: int, of: Sizes, num_chunks: int) -> Callable[[TraceRecorder], None]:
        return lambda r: pipeline(
            Training(r, of, skew=0.5, seed=seed, recompute=False, grouped=True, num_chunks=num_chunks),
            num_steps,
            num_chunks,
        )

    return {
        "ac-skew-0.3": moe(1, 0.3),
        "ac-skew-0.5": moe(2, 0.5),
        "ac-skew-1.0": moe(3, 1.0),
        "keep-all": moe(4, 0.5, half, recompute=False),
        "1f1b": stage(5, replace(half, tokens=half.tokens // 2), 1),
        "interleaved": stage(6, replace(chunk, tokens=half.tokens // 2), 2),
        "varying-length": lambda r: train(Training(r, sizes, skew=0.5, seed=7), num_steps, 3, 0.3),
        "foreach": moe(8, 0.5, foreach=True),
        "rl": lambda r: reinforce(Training(r, sizes, skew=0.5, seed=9), num_steps),
        "three-streams": moe(10, 0.5, streams=True),
        "eager": moe(11, 0.5, wide, eager=True, plain=True),
    }


NAMES = tuple(scenes(Sizes(), WIDE, 1))


def record(name: str, sizes: Sizes | None = None, num_steps: int = 2) -> Trace:
    """The trace of that name; with other sizes if given."""
    scene = scenes(sizes or Sizes(), sizes or WIDE, num_steps)[name]
    collects = gc.isenabled()
    gc.collect()
    gc.disable()  # cycles are collected once a step, wherever the process stands otherwise
    try:
        with TraceRecorder("meta") as recorder, torch.device("meta"):
            scene(recorder)
            return recorder.trace()
    finally:
        if collects:
            gc.enable()


def main() -> None:
    """Record the traces that are named, or all, and say what they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("build/memory-traces"), metavar="FOLDER")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or NAMES:
        started = time.perf_counter()
        trace = record(name)
        trace.save(args.out / f"{name}.npz")
        seconds = time.perf_counter() - started
        print(f"{name:15s} {len(trace):7,} events, peak {trace.peak_bytes() / 2**30:6.2f} GiB, {seconds:.1f} s")


if __name__ == "__main__":
    main()
