"""The figures of `oarlock train`: quality at a fixed budget, and speed against the machine and against transformers.

    python benchmarks/train.py [--quick] [--json PATH] [--threads N]

| id         | value                                                                                                 |
|------------|-------------------------------------------------------------------------------------------------------|
| bpb_vs_xz  | validation bits per byte of the default run / what `xz -9e` needs for the same plays after the others  |
| peak_gib   | largest resident memory of that run                                                                    |
| mm_share   | model FLOPs of a training step / its time / the best fp32 `mm` of the same process                     |
| vs_hf      | tokens per second of a step / those of transformers' Llama with equal weights, packing and optimizer   |

Steps, peers and the matmul that is the yardstick run interleaved; medians count. `--quick` leaves out the
default run, and with it bpb_vs_xz and peak_gib.
"""

import argparse
import itertools
import json
import lzma
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported, as `oarlock train` does
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

import torch
from torch import Tensor

from oarlock import _native, models
from oarlock.models.window import with_window
from oarlock.train.build import build_model, decoder_config, prepare_data
from oarlock.train.config import TrainConfig, load_config
from oarlock.train.data import Batch, PackedLoader, PreparedData
from oarlock.train.data.plays import read_scenes
from oarlock.train.evaluate import batch_mask, summed_loss
from oarlock.train.metrics import read_metrics
from oarlock.train.optim import build_optimizers

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "shakespeare.toml"
CPU = torch.device("cpu")


def main() -> None:
    """Measure, print a table, and write rows {figure, value, detail} if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="speeds only, under 50 s")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    _native.keep_freed_memory()
    isa = torch.backends.cpu.get_cpu_capability()
    print(f"{args.threads} threads, torch {torch.__version__}, {platform.machine()}, {isa}")
    rows = measure_steps(rounds=4 if args.quick else 8)
    if not args.quick:
        rows += measure_default_run()
    print(f"\n{'figure':12}{'value':>9}  detail")
    for row in rows:
        print(f"{row['figure']:12}{row['value']:9.3f}  {row['detail']}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------------------------------ speed of a step


def measure_steps(rounds: int) -> list[dict]:
    """mm_share of the default configuration, and vs_hf for the same sizes in the llama family."""
    with tempfile.TemporaryDirectory() as cache:
        base = ["--data.cache", cache]
        default, default_flops, tokens = training_step(load_config(CONFIG, base))
        peer = ["--model.family", "llama", "--model.sliding_window", "0", "--optimizer.name", "adamw"]
        llama = load_config(CONFIG, [*base, *peer])
        ours, theirs = llama_pair(llama, cache)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    timed: dict[str, Callable[[], object]] = {
        "mm": lambda: torch.mm(a, b),
        "default": default,
        "ours": ours,
        "hf": theirs,
    }
    took = interleaved_medians(timed, rounds)
    peak = 2 * 1024**3 / took["mm"]
    share = default_flops / took["default"] / peak
    return [
        {
            "figure": "mm_share",
            "value": share,
            "detail": f"{default_flops / took['default'] / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s, "
            f"{tokens / took['default']:.0f} tok/s, default configuration with its optimizer",
        },
        {
            "figure": "vs_hf",
            "value": took["hf"] / took["ours"],
            "detail": f"{tokens / took['ours']:.0f} against {tokens / took['hf']:.0f} tok/s, llama, adamw",
        },
    ]


def training_step(config: TrainConfig) -> tuple[Callable[[], object], float, int]:
    """A function that makes one optimizer step, its model FLOPs, and its tokens."""
    data = prepare_data(config.data, config.model)
    architecture = decoder_config(config.model, data.vocab_size, config.data.sequence_length)
    model = build_model(config, architecture, CPU)
    batches = first_batches(data, config)
    masks = [batch_mask(batch, CPU) for batch in batches]

    def mean_visible(window: int | None = None) -> float:
        return statistics.mean(with_window(mask, window).density for mask in masks) * config.data.sequence_length

    num_tokens = batches[0].input_ids.numel()
    flops = model.flops_per_token(mean_visible(), mean_visible) * num_tokens
    turns = itertools.cycle(batches)
    return optimizer_step(model, lambda: our_loss(model, next(turns)), config), flops, num_tokens


def llama_pair(config: TrainConfig, folder: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """The same step by Oarlock and by transformers, from equal weights; refuses to compare unequal losses."""
    from transformers import AutoModelForCausalLM

    data = prepare_data(config.data, config.model)
    model = build_model(config, decoder_config(config.model, data.vocab_size, config.data.sequence_length), CPU)
    models.save(model, Path(folder) / "llama")
    peer = AutoModelForCausalLM.from_pretrained(Path(folder) / "llama", attn_implementation="sdpa", dtype=torch.float32)
    batches = first_batches(data, config)

    def their_loss(batch: Batch) -> Tensor:
        logits = peer(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())

    with torch.no_grad():
        torch.testing.assert_close(our_loss(model, batches[0]), their_loss(batches[0]), atol=1e-4, rtol=0)
    our_turns, their_turns = itertools.cycle(batches), itertools.cycle(batches)
    step = optimizer_step(model, lambda: our_loss(model, next(our_turns)), config)
    return step, optimizer_step(peer, lambda: their_loss(next(their_turns)), config)


def first_batches(data: PreparedData, config: TrainConfig, count: int = 16) -> list[Batch]:
    """Batches to take in turn: a model that knows one by heart has gradients of denormal numbers, which are slow."""
    loader = PackedLoader(data.train, config.data.sequence_length, config.train.batch_size)
    return [loader.next_batch() for _ in range(count)]


def our_loss(model: models.Decoder, batch: Batch) -> Tensor:
    """Mean loss; the mask and its plan are made anew, as in training."""
    return summed_loss(model, batch, batch_mask(batch, CPU)) / batch.num_targets


def optimizer_step(model: torch.nn.Module, loss: Callable[[], Tensor], config: TrainConfig) -> Callable[[], object]:
    """Forward, backward, clipping and update, the same for any model."""
    optimizers = build_optimizers(model, config.optimizer)

    def step() -> None:
        loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_norm)
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()

    return step


def interleaved_medians(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median time of each function over rounds in which all of them run.

    Medians, since a step lasts a hundred times longer than the matmul: on a shared machine its shortest time catches
    a disturbance that the matmul's shortest time escapes.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(rounds):
        for name, function in functions.items():
            for _ in range(20 if name == "mm" else 1):
                began = time.perf_counter()
                function()
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


# ------------------------------------------------------------------------------------------------------ the default run


def measure_default_run() -> list[dict]:
    """Train the default configuration in a process of its own and weigh its bits against xz's."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "oarlock", "train", str(CONFIG), "--train.out", str(out), "--train.sample="]
        subprocess.run([*command, "--data.cache", f"{folder}/cache"], check=True, stdout=subprocess.DEVNULL)
        records = read_metrics(out)
    steps = [r for r in records if r["kind"] == "train"]
    bits = [r for r in records if r["kind"] == "eval"][-1]["bits_per_byte"]
    xz = xz_bits_per_byte()
    last = steps[-1]
    return [
        {
            "figure": "bpb_vs_xz",
            "value": bits / xz,
            "detail": f"{bits:.4f} against {xz:.4f} bits per byte, {last['flops']:.2e} model FLOPs, "
            f"{last['step']} steps in {last['seconds']:.0f} s",
        },
        {
            "figure": "peak_gib",
            "value": max(r["memory_bytes"] for r in steps) / 2**30,
            "detail": "resident memory of the default run",
        },
    ]


def xz_bits_per_byte() -> float:
    """What the validation plays add to `xz -9e` of the training plays, in bits per byte of theirs."""
    seen, held_out = ("".join(d.text for d in read_scenes(held_out=side)).encode() for side in (False, True))
    sizes = [len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)) for data in (seen, seen + held_out)]
    return 8 * (sizes[1] - sizes[0]) / len(held_out)


if __name__ == "__main__":
    main()
