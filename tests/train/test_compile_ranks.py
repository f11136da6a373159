"""Compiled blocks on two ranks: the losses of the eager run, and breaks told once where sequences are shared out."""

import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from oarlock.cli.main import main
from process_group import run_ranks
from tiny_run import recorded

OPTIONS = (
    *("--train.steps", "4", "--train.eval_every", "2", "--train.batch_size", "1", "--checkpoint.every", "2"),
    *("--schedule.kind", "constant", "--schedule.warmup_steps", "0"),
)
COMPILED = ("--train.compile", "true", "--compile.backend", "aot_eager")


def command_line(*words: str) -> tuple[int, str]:
    warnings.filterwarnings("ignore")  # of tracing
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        status = main(["train", *words])
    return status, told.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "breaks"),
    [
        (("--compile.max_breaks", "0"), 0),
        (("--model.family", "qwen3_moe", "--train.dtype", "bf16", "--compile.max_breaks", "0"), 0),
        (("--parallel.context", "2"), 1),  # its attention exchanges tensors between ranks, outside of graphs
    ],
)
def test_losses_are_those_of_the_eager_run(
    tiny: Callable[..., Path], tmp_path: Path, more: tuple[str, ...], breaks: int
) -> None:
    eager = tuple(word for word in more if word not in ("--compile.max_breaks", "0"))
    assert [status for status, _ in run_ranks(2, command_line, str(tiny("eager")), *OPTIONS, *eager)] == [0, 0]
    told = run_ranks(2, command_line, str(tiny("compiled")), *OPTIONS, *COMPILED, *more)
    assert [status for status, _ in told] == [0, 0]
    assert told[0][1].count(f"compile   2 blocks, {breaks} graph breaks") == 1
    assert "compile " not in told[1][1]  # one rank speaks
    losses = [[r["loss"] for r in recorded(tmp_path / run) if "loss" in r] for run in ("eager", "compiled")]
    assert len(losses[0]) == 7
    # Compiled blocks round otherwise (in bfloat16 to 2^-8); orthogonal updates enlarge it with the steps.
    assert losses[1] == pytest.approx(losses[0], rel=5e-3 if "bf16" in more else 2e-4)
