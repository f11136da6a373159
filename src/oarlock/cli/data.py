"""`oarlock data CORPUS --out DIR`: tokenise a corpus once, into a cache that the trainer reads."""

import argparse
import time
from pathlib import Path
from typing import Any


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "data",
        help="tokenise a corpus once, into a cache the trainer reads",
        description="Tokenise a corpus, streaming, into DIR/<key>; the key is a hash of text, tokenizer and options, "
        "so the same command again only reads the text, and `oarlock train --data.cache DIR` finds the tokens.",
    )
    parser.add_argument("corpus", help="'shakespeare' (bundled), or a file, folder or glob of .txt, .md, .jsonl")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="cache folder, created if absent")
    parser.add_argument("--vocab-size", type=int, metavar="N", help="entries of the trained tokenizer (default 4096)")
    parser.add_argument("--tokenizer", metavar="PATH", help="use this tokenizer.json, or the one in this folder")
    parser.add_argument("--validation", metavar="PATH", help="held-out text, given like CORPUS")
    parser.add_argument(
        "--validation-share", type=float, metavar="SHARE", help="or a share of documents (default 0.05)"
    )
    parser.add_argument("--separator", metavar="REGEX", help="lines between documents of a .txt or .md file")
    parser.add_argument(
        "--pack", type=int, nargs="+", default=[], metavar="S", help="also report how the training documents pack"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prepare the corpus and print what came out."""
    from oarlock.train.data import CorpusConfig, PackedLoader, prepare  # brings torch: not for --help

    if args.tokenizer and args.vocab_size is not None:
        raise ValueError("--vocab-size is for a tokenizer that is trained; leave it out with --tokenizer")
    if args.out.is_file():
        raise ValueError(f"--out {args.out} is a file; name a folder")
    names = ("vocab_size", "tokenizer", "validation", "validation_share", "separator")
    given: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    begun = time.perf_counter()
    data = prepare(CorpusConfig(corpus=args.corpus, **given), args.out)
    print(f"{data.directory}: vocabulary {data.vocab_size}, {time.perf_counter() - begun:.1f} s")
    print(f"{'':12}{'documents':>12}{'bytes':>16}{'tokens':>16}{'bytes/token':>14}")
    for name, split in (("train", data.train), ("validation", data.validation)):
        tokens = split.num_targets - split.num_documents
        print(
            f"{name:12}{split.num_documents:12,}{split.total_bytes:16,}{tokens:16,}{split.total_bytes / tokens:14.3f}"
        )
    for seq_len in args.pack:
        print(f"S = {seq_len}: {PackedLoader(data.train, seq_len, 1).packing.report}")
    return 0
