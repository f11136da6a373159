"""Runs whose sequences are shared out over ranks: the same losses as one process, step by step and when resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oarlock.attention.context_parallel import plan_context_parallel
from oarlock.cli.main import main
from oarlock.train.config import load_config
from oarlock.train.data import EvaluationLoader, prepare
from oarlock.train.data.batch import IGNORED
from oarlock.train.loop import train
from process_group import run_ranks
from tiny_run import recorded

# A window, two sequences a step, and a length that chunks do not divide; every step's learning rate is the same.
OPTIONS = (
    *("--train.steps", "6", "--data.sequence_length", "100", "--model.sliding_window", "30"),
    *("--schedule.kind", "constant", "--schedule.warmup_steps", "0", "--checkpoint.keep_last", "0"),
    *("--optimizer.learning_rate", "3e-4", "--optimizer.muon_learning_rate", "2e-3"),
)
FP32 = {"rel": 1e-4, "abs": 0}
"""Other sums round otherwise; orthogonal updates enlarge that with every step, the more the larger they are."""


def command_line(*words: str) -> int:
    return main(["train", *words])


def assert_same_run(records: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert [(r["kind"], r["step"]) for r in records] == [(r["kind"], r["step"]) for r in wanted]
    for record, other in zip(records, wanted, strict=True):
        assert record["tokens"] == other["tokens"]
        for name in ("loss", "flops", "bits_per_byte", "grad_norm"):
            if name in other:
                assert record[name] == pytest.approx(other[name], **FP32), (name, record["step"])


def test_shared_sequences_give_the_losses_of_one_process(tiny: Callable[..., Path]) -> None:
    """On 2 x 2 ranks with data parallelism; and on 2 that share each sequence, going on from one process's step 3."""
    alone, four, moved = (tiny(name) for name in ("alone", "four", "moved"))
    train(load_config(alone, OPTIONS))
    wanted = recorded(alone.with_suffix(""))
    options = (*OPTIONS, "--parallel.context", "2")
    assert run_ranks(4, command_line, str(four), *options, "--train.batch_size", "1") == [0] * 4
    assert_same_run(recorded(four.with_suffix("")), wanted)
    checkpoint = alone.with_suffix("") / "checkpoints" / "step-00000003"
    assert run_ranks(2, command_line, str(moved), *options, "--resume", str(checkpoint)) == [0] * 2
    assert_same_run(recorded(moved.with_suffix("")), [r for r in wanted if r["step"] > 3])


def test_shares_of_a_batch_hold_every_token_once(tiny: Callable[..., Path]) -> None:
    config = load_config(tiny("data"), OPTIONS)
    data = prepare(config.data, config.data.cache)
    for batch in EvaluationLoader(data.validation, 100, 2):
        mask = batch.mask("cpu")
        plans = [plan_context_parallel(mask, num_ranks=3) for _ in range(3)]
        for rank, plan in enumerate(plans):
            object.__setattr__(plan, "rank", rank)
        shares = [batch.shard(plan) for plan in plans]
        assert sum(share.num_targets for share in shares) == batch.num_targets
        assert sum(share.num_target_bytes for share in shares) == batch.num_target_bytes
        for name in ("input_ids", "targets", "position_ids"):
            parts = [getattr(share, name) for share in shares]
            assert plans[0].unshard(parts, dim=1).equal(getattr(batch, name))
        assert all(share.mask("cpu").equal(mask) for share in shares)
        assert all(share.num_targets == int((share.targets != IGNORED).sum()) for share in shares)


def test_a_sequence_too_short_for_the_ranks_is_refused(tiny: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=r"data.sequence_length = 64 is too short for 5 ranks; make it at least 80"):
        load_config(tiny("short"), ["--parallel.context", "5"])
