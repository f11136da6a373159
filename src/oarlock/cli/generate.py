"""`oarlock generate RUN_OR_HF_DIR "prompt" ["another" ...]`: continue prompts with a trained model.

    oarlock generate runs/shakespeare "ROMEO:" --temperature 0.8 --top-p 0.95
    oarlock generate runs/shakespeare "ROMEO:" --num-samples 4 --seed 7
    oarlock generate path/to/hf-folder --prompts prompts.txt --greedy
    cat letter.txt | oarlock generate path/to/hf-folder -

Text goes to stdout, everything else to stderr.
"""

import argparse
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from oarlock import models
from oarlock.generate import TextStream, generate
from oarlock.models import Decoder, DecoderConfig
from oarlock.train.build import choose_device
from oarlock.train.data.markers import BY_MODEL, marker_ids
from oarlock.train.limits import MAX_THREADS

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def add_parser(subparsers: Any) -> None:
    """Add the `generate` command to `oarlock`."""
    parser = subparsers.add_parser(
        "generate",
        help="continue prompts with a trained run or a Hugging Face folder",
        description="Continue prompts with a trained run or a Hugging Face folder. The first text streams to stdout; "
        "further ones follow when they are complete. Statistics go to stderr.",
    )
    parser.add_argument("model", metavar="RUN_OR_HF_DIR", type=Path, help="run directory, or folder with config.json")
    parser.add_argument("prompt", nargs="*", help="text to continue; - reads stdin; without any, a new document begins")
    parser.add_argument("--prompts", metavar="FILE", help="file with one prompt per line; - reads stdin")
    parser.add_argument("--max-new-tokens", type=int, default=200, metavar="N", help="tokens per text (default 200)")
    parser.add_argument("--temperature", type=float, default=1.0, help="divides the logits; 0 is greedy (default 1)")
    parser.add_argument("--top-k", type=int, metavar="K", help="keep the K most probable tokens")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="keep the most probable tokens up to P")
    parser.add_argument("--min-p", type=float, default=0.0, metavar="P", help="keep tokens of P times the best or more")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: avoid repetition")
    parser.add_argument("--greedy", action="store_true", help="always the most probable token")
    parser.add_argument(
        "--num-samples", type=int, default=1, metavar="N", help="texts per prompt, seeds SEED to SEED+N-1"
    )
    parser.add_argument("--seed", type=int, default=0, help="a text is a function of prompt and seed (default 0)")
    parser.add_argument("--device", help="cpu, cuda, ... (default: cuda where there is one)")
    parser.add_argument("--dtype", choices=_DTYPES, help="default: float32 on the CPU, else as stored")
    parser.add_argument("--no-stream", action="store_true", help="print the first text too only when it is complete")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads")
    parser.set_defaults(run=run, collects="prompt")


def run(args: argparse.Namespace) -> int:
    """Generate as `args` say; 0, or 130 after Ctrl-C."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        return continue_prompts(args, _read_prompts(args))


def continue_prompts(args: argparse.Namespace, prompts: list[str]) -> int:
    """Print continuations of `prompts`, with the options in `args`."""
    if args.num_samples < 1:
        raise ValueError(f"--num-samples must be at least 1, got {args.num_samples}")
    if not -(2**63) <= args.seed < 2**63 - args.num_samples:
        raise ValueError(f"--seed must fit 64 bits, got {args.seed}")
    if args.threads is not None:
        if not 1 <= args.threads <= MAX_THREADS:
            raise ValueError(f"--threads must lie in [1, {MAX_THREADS}], got {args.threads}")
        torch.set_num_threads(args.threads)
    prompts = [prompt for prompt in prompts for _ in range(args.num_samples)]
    source = _find(args.model)
    tokenizer, num_tokens = _load_tokenizer(source)
    begins = marker_ids(source.tokenizer_folder, tokenizer, "bos", BY_MODEL)
    ends = marker_ids(source.tokenizer_folder, tokenizer, "eos", BY_MODEL)
    device = choose_device(args.device or "auto", "--device")
    dtype = _DTYPES[args.dtype] if args.dtype else torch.float32 if device.type == "cpu" else None
    model = source.load(dtype, device)

    tokens = [tokenizer.encode(prompt).ids for prompt in prompts]
    streams = [TextStream(tokenizer.decode, ids) for ids in tokens]
    clock = _Clock(len(tokens), sum(max(len(ids), 1) for ids in tokens))
    # Text not printed yet. Each row opens with its prompt; the first one is printed as it comes.
    pieces = [[_heading(row, len(prompts)) + prompt] for row, prompt in enumerate(prompts)]

    def on_token(row: int, token: int) -> None:
        pieces[row].append(streams[row].push(token))
        clock.tick()
        if row == 0 and not args.no_stream:
            _write("".join(pieces[0]))
            pieces[0].clear()

    status = 0
    try:
        generate(
            model,
            tokens,
            max_new_tokens=args.max_new_tokens,
            temperature=0.0 if args.greedy else args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
            min_p=args.min_p,
            repetition_penalty=args.repetition_penalty,
            seed=[args.seed + row % args.num_samples for row in range(len(prompts))],
            eos_id=ends,
            bos_id=next(iter(begins or ends), None),
            num_tokens=num_tokens,
            on_token=on_token,
        )
    except KeyboardInterrupt:
        status = 130
    for row, stream in enumerate(streams):
        _write("".join(pieces[row]) + stream.flush() + "\n")
    print(clock.summary(), file=sys.stderr)
    return status


@dataclass(frozen=True)
class _Source:
    """A model that can be loaded, and where its tokenizer lies."""

    config: DecoderConfig
    tokenizer_folder: Path
    load: Callable[[torch.dtype | None, torch.device], Decoder]


def _find(path: Path) -> _Source:
    """The Hugging Face folder at `path`, what the run at `path` exported, or the newest checkpoint of that run."""
    if not path.is_dir():
        problem = "is a file, not a run directory or a Hugging Face folder" if path.exists() else "no such directory"
        raise ValueError(f"{path}: {problem}")
    for folder in (path, path / "hf"):
        if (folder / "config.json").is_file():
            return _Source(models.read_config(folder), folder, _hugging_face_loader(folder))
    if (path / "config.toml").is_file():
        return _from_checkpoint(path)
    raise ValueError(f"{path} is neither a run directory nor a Hugging Face folder: it has no config.json")


def _hugging_face_loader(folder: Path) -> Callable[[torch.dtype | None, torch.device], Decoder]:
    return lambda dtype, device: models.load(folder, dtype=dtype, device=device)


def _from_checkpoint(run: Path) -> _Source:
    """A run that has not exported its model yet."""
    from oarlock.checkpoint import CheckpointError, latest_checkpoint, load_checkpoint

    while True:
        newest = latest_checkpoint(run / "checkpoints")
        if newest is None:
            raise ValueError(f"{run} holds neither an exported model (hf/) nor a checkpoint: train it first")
        try:
            checkpoint = load_checkpoint(newest)
            config = models.read_config(checkpoint.file("config.json"))
            weights = checkpoint.tensors("model")
            break
        except (CheckpointError, OSError):
            if latest_checkpoint(run / "checkpoints") == newest:
                raise
            # the run has replaced it meanwhile

    def load(dtype: torch.dtype | None, device: torch.device) -> Decoder:
        print(f"{run} is not finished: using its checkpoint of step {checkpoint.step}", file=sys.stderr)
        with torch.device("meta"):
            model = Decoder(config)
        model.load_state_dict(weights, assign=True)
        return model.to(device=device, dtype=dtype)

    return _Source(config, run / "tokenizer", load)


def _load_tokenizer(source: _Source) -> tuple[Tokenizer, int]:
    """The tokenizer and the number of its ids; the model may have more embeddings, never fewer."""
    file = source.tokenizer_folder / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"{file} is missing: copy the tokenizer.json there that the model was trained with")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises plain Exception
        raise ValueError(f"{file} is not a tokenizer: {error}") from error
    num_tokens = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    if num_tokens > source.config.vocab_size:
        raise ValueError(
            f"vocabulary mismatch: {file} has {num_tokens} tokens, the model's vocab_size is {source.config.vocab_size}"
        )
    return tokenizer, num_tokens


def _read_prompts(args: argparse.Namespace) -> list[str]:
    prompts = [_read_text("-") if prompt == "-" else prompt for prompt in args.prompt]
    for prompt in prompts:
        if _HALF_CHARACTER.search(prompt):  # how Python passes on bytes of the command line that are not UTF-8
            raise ValueError(f"the prompt {prompt!r} is not UTF-8 text")
    if args.prompts is not None:
        lines = [line for line in _read_text(args.prompts).splitlines() if line]
        if not lines:
            raise ValueError(f"--prompts {args.prompts} holds no prompt")
        prompts += lines
    return prompts or [""]


def _read_text(file: str) -> str:
    """The text of a file, or of standard input for `-`."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        name = "standard input" if file == "-" else file
        raise ValueError(f"{name}: byte {error.start} is no UTF-8 text") from None


def _heading(row: int, num_rows: int) -> str:
    return f"--- {row + 1}/{num_rows} ---\n" if num_rows > 1 else ""


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class _Clock:
    """Prefill lasts until the first new token of the first row; what follows is decoding."""

    def __init__(self, num_rows: int, num_prompt_tokens: int) -> None:
        self._num_rows = num_rows
        self._num_prompt = num_prompt_tokens
        self._num_new = 0
        self._start = time.perf_counter()
        self._first = self._last = self._start

    def tick(self) -> None:
        self._last = time.perf_counter()
        if self._num_new == 0:
            self._first = self._last
        self._num_new += 1

    def summary(self) -> str:
        prefill, decode = self._first - self._start, self._last - self._first
        num_decoded = max(self._num_new - self._num_rows, 0)  # prefill gave the first token of every row
        text = f"prefill {self._num_prompt} tokens in {prefill:.2f} s"
        text += f" ({self._num_prompt / prefill:.0f} tok/s)" if prefill > 0 else ""
        text += f", decode {num_decoded} tokens in {decode:.2f} s"
        return text + (f" ({num_decoded / decode:.0f} tok/s)" if decode > 0 else "")
