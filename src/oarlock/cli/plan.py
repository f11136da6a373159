"""`oarlock plan CONFIG.toml`: parameters, FLOPs, memory and time of a run, without allocating anything of its size."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oarlock.models import DecoderConfig
    from oarlock.train.config import TrainConfig
    from oarlock.train.data.packing import Packing
    from oarlock.train.estimate import Estimate


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "plan",
        help="parameters, FLOPs and memory of a configuration, without allocating",
        description="Plan the run that CONFIG.toml describes, with the overrides that `oarlock train` takes.",
    )
    parser.add_argument("config", type=Path, help="TOML file, as for oarlock train")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="data-parallel ranks (1)")
    parser.add_argument(
        "--mean-visible",
        type=float,
        metavar="KEYS",
        help="keys that a token sees on average; default (S + 1) / 2, the most; packed documents see fewer",
    )
    parser.add_argument(
        "--read-data",
        action="store_true",
        help="take the keys from the packing of the corpus, as the run does (tokenises it if the cache lacks it)",
    )
    parser.add_argument(
        "--peak", type=float, metavar="FLOP/S", help="matmul peak of one rank; measured here by default"
    )
    parser.add_argument("--share", type=float, default=0.6, metavar="SHARE", help="share of the peak reached (0.6)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.set_defaults(run=run, accepts_overrides=True)


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    from oarlock.train.build import choose_device, decoder_config
    from oarlock.train.config import load_config
    from oarlock.train.estimate import as_dict, estimate

    config = load_config(args.config, args.overrides)
    if args.read_data and args.mean_visible is not None:
        raise ValueError("--read-data measures what --mean-visible gives; leave one of them out")
    vocab_size, mean_visible, mean_within = planned_vocab_size(config), args.mean_visible, None
    if args.read_data:
        vocab_size, packing = _read_data(config)
        mean_visible, mean_within = packing.mean_visible, packing.mean_visible_within
    architecture = decoder_config(config.model, vocab_size, config.data.sequence_length)
    plan = estimate(
        config, architecture, world_size=args.world_size, mean_visible=mean_visible, mean_within=mean_within
    )
    peak = args.peak
    if peak is None:
        peak = _measured_peak(config, str(choose_device(config.train.device)))
    seconds = plan.seconds(peak, args.share)
    if args.json:
        print(json.dumps(as_dict(plan) | {"peak": peak, "share": args.share, "seconds": seconds}, indent=1))
    else:
        source = "given" if args.peak is not None else "measured here"
        learned = not (args.read_data or config.data.tokenizer or config.model.directory or config.model.config)
        print(plan_text(plan, config, architecture, vocab_size if learned else None))
        print(_time_text(plan, peak, source, args.share, seconds))
    return 0


def planned_vocab_size(config: "TrainConfig") -> int:
    """Entries of the tokenizer that the run will have, as far as the configuration tells; the corpus is not read.

    A model read from a folder or a config.json brings its own number of embeddings; 1 fits any.
    """
    if config.model.directory or config.model.config:
        return 1
    if not config.data.tokenizer:
        return config.data.vocab_size
    path = Path(config.data.tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"data.tokenizer = {config.data.tokenizer!r}: no such tokenizer.json")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        ids = [*fields["model"]["vocab"].values(), *(token["id"] for token in fields.get("added_tokens", []))]
        return max(ids) + 1
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a tokenizer.json with a vocabulary: {error!r}") from None


def _read_data(config: "TrainConfig") -> "tuple[int, Packing]":
    """(entries of the tokenizer, packing of the first epoch)."""
    from oarlock.train.data import PackedLoader
    from oarlock.train.tasks import choose_task

    data = choose_task(config).prepare()
    loader = PackedLoader(data.train, config.data.sequence_length, config.train.batch_size, config.train.seed)
    return data.vocab_size, loader.packing


def plan_text(
    plan: "Estimate", config: "TrainConfig", architecture: "DecoderConfig", vocab_size: int | None = None
) -> str:
    """The plan as text; `vocab_size` where the tokenizer is still to be learned."""
    from oarlock.train.units import format_bytes, format_count, format_scientific

    counts, train = plan.parameters, config.train
    lines = [
        f"Model      {architecture.model_type}",
        _row("parameters", format_count(counts.total), f"{counts.total:,}"),
        _row("embedding", format_count(counts.embedding), f"all others {format_count(counts.non_embedding)}"),
    ]
    if vocab_size is not None:
        lines.append(_row("vocabulary", f"{vocab_size:,}", "at most: the corpus may have fewer; --read-data"))
    if counts.active != counts.total:
        lines.append(_row("active per token", format_count(counts.active)))
    kept = "latents and shared keys" if architecture.family.latent_attention else "keys and values"
    lines.append(_row("cache per token", format_bytes(plan.cache_bytes_per_token), f"{kept} in bf16, to generate"))
    seen = f"{plan.mean_visible:,.0f} keys on average"
    seen += "".join(f", {mean:,.0f} within {window:,}" for window, mean in plan.mean_within.items())
    ranks = f"{plan.world_size} rank{'s' if plan.world_size > 1 else ''}"
    batch = f"{ranks} x {train.accumulation} micro-batches of {train.batch_size} x {config.data.sequence_length:,}"
    lines += [
        "",
        "Work",
        _row("FLOPs per token", format_count(plan.flops_per_token), f"each sees {seen}"),
        _row("tokens per step", format_count(plan.tokens_per_step), batch),
        _row("steps", f"{plan.num_steps:,}"),
        _row("tokens", format_count(plan.tokens)),
        _row("FLOPs", format_scientific(plan.flops)),
        "",
        f"{'Memory of each rank':24}{'activations kept':>18}{'recomputed':>18}",
    ]
    kept, recomputed = plan.memory_kept, plan.memory_recomputed
    for label, name in (
        ("parameters", "parameters"),
        ("gradients", "gradients"),
        ("optimizer state", "optimizer_state"),
        ("activations", "activations"),
        ("fused loss", "loss"),
        ("backward pass", "backward"),
        ("optimizer step", "optimizer_step"),
        ("peak", "peak"),
    ):
        pair = [format_bytes(getattr(memory, name)) for memory in (kept, recomputed)]
        lines.append(f"  {label:22}{pair[0]:>18}{pair[1]:>18}")
    chosen = "recomputed" if plan.checkpointing else "kept"
    lines += [
        f"  configured: activations {chosen}. The parts do not all live at once. Tensors only: a process adds 0.3 GiB",
        "  for Python and torch and, on the CPU, what its allocator keeps (a fifth to a half of the peak).",
        "",
    ]
    return "\n".join(lines)


def _time_text(plan: "Estimate", peak: float, source: str, share: float, seconds: float) -> str:
    from oarlock.train.units import format_count, format_duration

    per_step = seconds / plan.num_steps
    rate = f"{format_count(peak)[:-1]} {format_count(peak)[-1]}FLOP/s"
    return "\n".join(
        [
            "Time",
            _row("whole run", format_duration(seconds), f"{per_step:.3g} s per step"),
            f"  at {share:.0%} of {rate} per rank ({source}), without evaluation and saving",
        ]
    )


def _row(label: str, value: str, note: str = "") -> str:
    return f"  {label:22}{value:>18}   {note}".rstrip()


def _measured_peak(config: "TrainConfig", device: str) -> float:
    import torch

    from oarlock.ops.peak import matmul_peak

    dtype = torch.float32 if config.train.dtype == "fp32" else torch.bfloat16
    return matmul_peak(dtype, device, config.train.threads or None)
