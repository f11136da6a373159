"""A tiny run: a few kilobytes of text, a model of a few thousand weights, steps of milliseconds."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from oarlock.train.metrics import read_metrics

WORDS = "the oar moves ship water against current river stone light hand quiet morning".split()  # noqa: SIM905
TIMES = {"seconds", "tokens_per_second", "mm_share", "memory_bytes", "evaluation_seconds", "seconds_per_step"}


def write_corpus(folder: Path, num_documents: int = 40, seed: int = 0) -> Path:
    """Documents of 5 to 120 words."""
    generator = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(num_documents):
        text = " ".join(generator.choices(WORDS, k=generator.randint(5, 120)))
        (folder / f"{number:03d}.txt").write_text(text + "\n", encoding="utf-8")
    return folder


TINY = """
[model]
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16
[data]
corpus = "{corpus}"
vocab_size = 300
sequence_length = 64
cache = "{cache}"
[train]
out = "{out}"
steps = 12
batch_size = 2
eval_every = 5
tensorboard = false
[checkpoint]
every = 1
keep_last = 3
"""


def write_config(folder: Path, name: str = "run") -> Path:
    """`folder/name.toml`, whose run goes to `folder/name`; all configurations of a folder share corpus and cache."""
    corpus = folder / "corpus"
    if not corpus.exists():
        write_corpus(corpus)
    path = folder / f"{name}.toml"
    path.write_text(TINY.format(corpus=corpus, cache=folder / "cache", out=folder / name), encoding="utf-8")
    return path


def environment() -> dict[str, str]:
    """One thread for each process, whatever the machine."""
    return os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def start_training(config: Path, *options: str, launcher: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    """`oarlock train` as a process of its own, or several under a launcher."""
    command = [
        sys.executable,
        "-m",
        *launcher,
        *(["-m"] if launcher else []),
        "oarlock",
        "train",
        str(config),
        *options,
    ]
    return subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def finish(process: "subprocess.Popen[str]", timeout: float = 180) -> tuple[int, str]:
    """Exit status and output; the whole process group dies at the timeout."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, output


def wait_for_step(process: "subprocess.Popen[str]", run: Path, step: int, timeout: float = 120) -> None:
    """Until the metrics of a live run show a step; the run dies at the timeout."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8") if (run / "metrics.jsonl").exists() else ""
        if f'"kind": "train", "step": {step},' in lines:
            return
        if process.poll() is not None:
            raise AssertionError(f"the run ended before step {step}: {process.communicate()[0]}")
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError(f"no step {step} within {timeout} s: {process.communicate()[0]}")


def recorded(run: Path) -> list[dict[str, Any]]:
    """Train and eval records without what depends on the clock."""
    records = [r for r in read_metrics(run) if r["kind"] != "event"]
    return [{k: v for k, v in r.items() if k not in TIMES} for r in records]
