"""`oarlock convert SRC DST`: rewrite a checkpoint, a Hugging Face folder, torch DCP or a GGUF file as another."""

import argparse
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oarlock.checkpoint import TensorSource
    from oarlock.checkpoint.conversion import Conversion

_COPIED = (
    *("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt"),
    *("added_tokens.json", "chat_template*", "preprocessor_config.json"),
)
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_DTYPES = ("float64", "float32", "float16", "bfloat16")
_MAX_LISTED = 5
_MAX_COMPANION_BYTES = 200_000_000


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "convert",
        help="rewrite a checkpoint or a Hugging Face folder as another",
        description="Rewrite tensors of any format that Oarlock reads, some rows at a time. DST appears complete, or "
        "not at all.",
    )
    parser.add_argument(
        "source", type=Path, metavar="SRC", help="checkpoint, Hugging Face folder, DCP, .safetensors, .gguf, Paddle"
    )
    parser.add_argument("destination", type=Path, metavar="DST", help="folder to create")
    layout = parser.add_mutually_exclusive_group()
    layout.add_argument("--aoa", type=Path, metavar="FILE", help="program from SRC's names to DST's (docs/aoa.md)")
    layout.add_argument(
        "--family", metavar="TYPE", help="names of this family: with --to hf from a Decoder's, with sharded to them"
    )
    parser.add_argument(
        "--to",
        choices=("hf", "sharded", "paddle"),
        default="hf",
        help="Hugging Face folder, checkpoint, or safetensors for Paddle (hf)",
    )
    parser.add_argument("--group", default="model", metavar="NAME", help="group of a checkpoint, such as ema (model)")
    parser.add_argument("--dtype", choices=_DTYPES, help="cast tensors of floats; default: as stored")
    parser.add_argument("--max-shard-size", type=parse_size, default=4 * 10**9, metavar="SIZE", help="per file (4GB)")
    parser.add_argument("--dry-run", action="store_true", help="only print the report")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Convert and print the report."""
    import torch

    from oarlock.checkpoint.conversion import plan, unnamed

    if args.destination.exists():
        raise ValueError(f"{args.destination} exists; name a folder that does not")
    source, others, notes = _opened(args)
    dtype = getattr(torch, args.dtype) if args.dtype else None
    conversion = plan(source, _program(args, source), dtype)
    if args.to == "hf" and (names := unnamed(conversion)):
        found = conversion.outputs[names[0]].dtype
        raise ValueError(f"safetensors has no name for {found} of {names[0]!r}; cast it by --aoa, or use --to sharded")
    if args.to == "paddle":
        from oarlock.checkpoint.paddle.folder import flex_file, for_paddle

        conversion = for_paddle(conversion)
        others |= flex_file(conversion, args.max_shard_size)
    if not args.dry_run:
        total = sum(output.num_bytes for output in conversion.outputs.values())
        with _bar(total) as progress:
            conversion.write(
                args.destination,
                max_bytes=args.max_shard_size,
                manifest=args.to == "sharded",
                others=others,
                progress=progress,
            )
    lines = [*_report(args, conversion, list(others)), *_against_config(args, conversion, others), *notes]
    print("\n".join(lines))
    return 0


def parse_size(text: str) -> int:
    """Bytes of a size such as 4GB, 500MB or 2GiB; argparse's error for anything else."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?I?B)?", text.strip().upper())
    unit = (match[2] or "") if match else ""
    if match is None or unit not in _UNITS or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 4GB, 500MB or 2GiB")
    return int(match[1]) * _UNITS[unit]


def _opened(args: argparse.Namespace) -> tuple["TensorSource", dict[str, bytes], list[str]]:
    """The tensors, the files that belong to them, and lines for the report."""
    from oarlock.checkpoint import open_tensors
    from oarlock.checkpoint.gguf import is_gguf
    from oarlock.checkpoint.manifest import MANIFEST_NAME

    if args.group != "model" and not (args.source / MANIFEST_NAME).is_file():
        open_tensors(args.source)  # what is no model at all has a message of its own
        raise ValueError(f"{args.source} has no groups; only checkpoints of Oarlock have, leave out --group")
    if args.aoa or not is_gguf(args.source):
        return open_tensors(args.source, args.group), _companions(args.source, args.dtype), []
    from oarlock.models.gguf import GgufModel

    model = GgufModel(args.source)
    files, problems = model.files(args.dtype)
    return model.source(), files, [*model.dequantised(), *problems]


def _program(args: argparse.Namespace, source: "TensorSource") -> str | None:
    if args.aoa:
        return args.aoa.read_text(encoding="utf-8")
    if not args.family:
        return None
    from oarlock.models import family_program

    if args.to == "sharded":
        return family_program(args.family)
    stacks = [t.shape[0] for name, t in source.tensors.items() if ".mlp.experts." in name and len(t.shape) > 2]
    return family_program(args.family, "to_hf", num_experts=stacks[0] if stacks else 0)


def _companions(source: Path, dtype: str | None) -> dict[str, bytes]:
    """Configuration and tokenizer next to the weights, or of their run; a config.json says the new dtype."""
    if not source.is_dir():
        return {}
    run = source.parent.parent  # of `oarlock train`, which keeps the tokenizer once
    folders = [run / "tokenizer"] * (source.parent.name == "checkpoints" and (run / "config.toml").is_file()) + [source]
    paths = (path for folder in folders for pattern in _COPIED for path in folder.glob(pattern) if path.is_file())
    files = {name: _content(path) for name, path in sorted({path.name: path for path in paths}.items())}
    if dtype and "config.json" in files:
        config = json.loads(files["config.json"])
        config["dtype" if "dtype" in config else "torch_dtype"] = dtype
        files["config.json"] = (json.dumps(config, indent=2) + "\n").encode()
    return files


def _content(path: Path) -> bytes:
    """A companion's bytes; ValueError if it is huge, or a link to something that is no part of the model."""
    home, target = path.parent.resolve(), path.resolve()
    blobs = home.parents[1] / "blobs" if len(home.parents) > 1 else home  # of Hugging Face's cache
    if target.parent not in (home, blobs):
        raise ValueError(
            f"{path} is a link to {target}, outside of the folder, and would be copied; replace it by a file"
        )
    if (size := target.stat().st_size) > _MAX_COMPANION_BYTES:
        raise ValueError(f"{path} has {size:,} bytes; files beside the weights may have {_MAX_COMPANION_BYTES:,}")
    return path.read_bytes()


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal with rich, else nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("convert", total=total)
        yield lambda num_bytes: progress.advance(task, num_bytes)


def _report(args: argparse.Namespace, conversion: "Conversion", others: list[str]) -> list[str]:
    from oarlock.train.units import format_bytes

    sizes = conversion.file_bytes(args.max_shard_size)
    verb = "would write" if args.dry_run else "wrote"
    lines = [
        f"{verb} {args.destination}: {len(conversion.outputs)} tensors, {format_bytes(sum(sizes.values()))}",
        *(f"  {name:40}{size:>20,} bytes" for name, size in sizes.items()),
        *(f"  {name}" for name in others),
    ]
    lines += [f"cast: {n} tensors from {old} to {new}" for (old, new), n in conversion.casts.items()]
    for what, names in (
        ("dropped by the program", conversion.dropped),
        ("not named by the program, kept", conversion.unread),
        ("tied to another one, stored once", list(conversion.ties)),
    ):
        lines += _listed(what, names)
    return lines


def _against_config(args: argparse.Namespace, conversion: "Conversion", others: Mapping[str, bytes]) -> list[str]:
    """Where the folder becomes one of Hugging Face with a config.json: which tensors that asks for are not there."""
    if args.to != "hf" or "config.json" not in others:
        return []
    import torch

    from oarlock.models import Decoder, DecoderConfig
    from oarlock.models.weights import export_program

    try:
        fields, num_tensors = json.loads(others["config.json"]), len(conversion.outputs)
        if not isinstance(fields, dict):
            raise ValueError("it is no JSON object")
        layers = fields.get("num_hidden_layers")
        if isinstance(layers, int) and layers > num_tensors:  # a number alone must not cost memory
            return [f"missing: config.json asks for {layers} layers, there are {num_tensors} tensors"]
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = DecoderConfig.from_hf(fields)
            if config.num_experts > num_tensors:
                return [f"missing: config.json asks for {config.num_experts} experts, there are {num_tensors} tensors"]
            expected = export_program(Decoder(config)).tensors
    except (ValueError, RecursionError) as error:
        return [f"missing: cannot be told from config.json ({error})"]
    missing = [name for name in expected if name not in conversion.outputs and name not in conversion.ties]
    known = {*expected, "lm_head.weight"}  # a copy of the embedding may lie beside it
    return [
        *_listed("missing, though config.json asks for them", missing),
        *_listed("unexpected by config.json", [name for name in conversion.outputs if name not in known]),
        *_listed(
            "of another shape than config.json asks for",
            [n for n in expected if n in conversion.outputs and conversion.outputs[n].shape != expected[n].shape],
        ),
    ] or ["missing: none, by config.json"]


def _listed(what: str, names: Sequence[str]) -> list[str]:
    from oarlock.cli.inspect import printable

    if not names:
        return []
    listed = ", ".join(names[:_MAX_LISTED]) + (", ..." if len(names) > _MAX_LISTED else "")
    return [f"{what}: {len(names)} tensors: {printable(listed)}"]
