"""`oarlock inspect DIR`: the tensors of a checkpoint, a Hugging Face folder, torch DCP or a GGUF file."""

import argparse
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_MAX_ROWS = 200
_NUMBER, _NUMBER_KEPT = re.compile(r"\d+"), re.compile(r"(\d+)")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "inspect",
        help="tensors, sizes and checksums of a checkpoint or a Hugging Face folder",
        description="Show tensors, shapes, dtypes, pieces and ties. Only headers are read, unless --verify.",
    )
    parser.add_argument(
        "path", type=Path, metavar="DIR", help="checkpoint, Hugging Face folder, DCP, .safetensors, .gguf, Paddle"
    )
    parser.add_argument("--group", metavar="NAME", help="only this group of a checkpoint, such as model or ema")
    parser.add_argument("--verify", action="store_true", help="compare all bytes with their digests")
    parser.add_argument("--json", action="store_true", help="print one JSON object with every tensor")
    parser.add_argument("--html", type=Path, metavar="PATH", help="also write an HTML page")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was found."""
    found = describe(args.path, verify=args.verify, group=args.group)
    if args.html:
        _write_page(found, args.html)
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        _print(found)
    return 0


def describe(path: Path, *, verify: bool, group: str | None = None) -> dict[str, Any]:
    """Everything about the tensors, JSON-able.

    Raises:
        CheckpointError: damaged, or malformed; ValueError: no such group; or `verify`, but the format has no digests.
    """
    from oarlock.checkpoint import load_checkpoint, open_tensors
    from oarlock.checkpoint.conversion import check_layout, pieces
    from oarlock.checkpoint.manifest import MANIFEST_NAME

    sources, checksums = {}, "this format has none"
    if (path / MANIFEST_NAME).is_file():
        opened = load_checkpoint(path, verify=True if verify else "read")
        sources = {name: opened.source(name) for name in ([group] if group else opened.groups())}
        checksums = "verified" if verify else "not verified; --verify reads all bytes"
    elif verify:
        raise ValueError(f"{path} has no digests to verify; only checkpoints of Oarlock have")
    else:
        sources = {"model": open_tensors(path)}
        if group not in (None, "model"):
            raise ValueError(f"{path} has no groups; only checkpoints of Oarlock have")
    tensors, sizes = [], {}
    for group, source in sources.items():
        check_layout(source)
        for piece, dtype in pieces(source):
            file = piece.file.path.name
            sizes[file] = sizes.get(file, 0) + piece.box.volume * dtype.itemsize
        first: dict[int, str] = {}
        for name, tensor in source.tensors.items():
            tie = first.setdefault(id(tensor), name)
            tensors.append(
                {
                    "group": group,
                    "name": name,
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "computed_from": _computed_from(tensor),
                    "shape": list(tensor.shape),
                    "bytes": math.prod(tensor.shape) * tensor.dtype.itemsize if tie == name else 0,
                    "pieces": len(getattr(tensor, "pieces", ())) or 1,
                    "same_as": None if tie == name else tie,
                }
            )
    return {"path": str(path), "checksums": checksums, "files": sizes, "tensors": tensors, "tree": _tree(tensors)}


def _computed_from(tensor: Any) -> str | None:
    """The quantised type that a tensor's values are computed from."""
    from oarlock.checkpoint.aoa.quantized import Computed
    from oarlock.checkpoint.derived import Derived

    if not isinstance(tensor, Derived):
        return None
    sources = [block.source for block in tensor.relation.blocks]
    return next((str(source).partition("(")[0] for source in sources if isinstance(source, Computed)), None)


def printable(text: str) -> str:
    """The text without what could steer a terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _tree(tensors: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes below each of the first three levels of the names."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        parts = [tensor["group"], *re.split(r"[./]", tensor["name"])]
        for depth in range(1, min(4, len(parts) + 1)):
            key = ".".join(parts[:depth])
            sizes[key] = sizes.get(key, 0) + tensor["bytes"]
    return sizes


def _rows(found: dict[str, Any]) -> list[list[str]]:
    """Tensors whose names differ in numbers only, and that look the same, as one row."""
    from oarlock.train.units import format_bytes

    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for tensor in found["tensors"]:
        shape = " x ".join(map(str, tensor["shape"])) or "scalar"
        dtype = tensor["dtype"] + (f" of {tensor['computed_from']}" if tensor["computed_from"] else "")
        texts = [_NUMBER.sub("*", text) for text in (tensor["group"], tensor["name"], tensor["same_as"] or "")]
        kinds.setdefault((*texts, dtype, shape, str(tensor["pieces"])), []).append(tensor)
    rows = []
    for (*_, dtype, shape, num_pieces), alike in list(kinds.items())[:_MAX_ROWS]:
        name = _common([f"{tensor['group']}: {tensor['name']}" for tensor in alike])
        tie = _common([tensor["same_as"] or "" for tensor in alike])
        size = format_bytes(sum(tensor["bytes"] for tensor in alike))
        rows.append([*map(printable, (name, dtype, shape, num_pieces, tie)), str(len(alike)), size])
    return _with_rest(rows, len(kinds), 7)


def _common(names: list[str]) -> str:
    """Names that differ in numbers only, as one: a star in place of each number that is not the same in all."""
    parts = zip(*(_NUMBER_KEPT.split(name) for name in names), strict=True)
    return "".join(first if all(text == first for text in rest) else "*" for first, *rest in parts)


def _with_rest(rows: list[list[str]], number: int, num_columns: int) -> list[list[str]]:
    """The rows, and one that says how many of the `number` are left out."""
    left_out = number - len(rows)
    return [*rows, [f"... and {left_out} more (--json has all)", *[""] * (num_columns - 1)]] if left_out else rows


_HEADER = ("tensor", "dtype", "shape", "pieces", "same as", "number", "size")


def _sizes(found: dict[str, Any], what: str) -> list[list[str]]:
    from oarlock.train.units import format_bytes

    rows = [[printable(name), format_bytes(size)] for name, size in list(found[what].items())[:_MAX_ROWS]]
    return _with_rest(rows, len(found[what]), 2)


def _without_empty(header: Sequence[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows without the column of ties where nothing is tied."""
    shown = [k for k, title in enumerate(header) if title != "same as" or any(row[k] for row in rows)]
    return [header[k] for k in shown], [[row[k] for k in shown] for row in rows]


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    summary = f"{printable(found['path'])}: {len(found['tensors'])} tensors; checksums: {found['checksums']}"
    console.print(Text(summary))
    tables = (
        (_HEADER, _rows(found)),
        (("file", "data"), _sizes(found, "files")),
        (("below", "size"), _sizes(found, "tree")),
    )
    for full_header, full_rows in tables:
        header, rows = _without_empty(full_header, full_rows)
        table = Table(*header, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)


def _write_page(found: dict[str, Any], path: Path) -> None:
    from oarlock.page import Page

    page = Page(printable(found["path"]), subtitle=f"{len(found['tensors'])} tensors; checksums: {found['checksums']}")
    header, rows = _without_empty(_HEADER, _rows(found))
    page.table(rows, header)
    page.heading("Files")
    page.table(_sizes(found, "files"), ("file", "data"))
    page.heading("Sizes")
    page.table(_sizes(found, "tree"), ("below", "size"))
    page.write(path)
