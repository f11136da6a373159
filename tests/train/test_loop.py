"""The loop end to end on a tiny run: it learns, it exports, ranks add up, divergence is caught."""

import gc
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from oarlock import models
from oarlock.checkpoint import list_checkpoints, load_checkpoint
from oarlock.train.config import load_config
from oarlock.train.divergence import NonFiniteLossError
from oarlock.train.loop import train
from oarlock.train.metrics import read_metrics
from tiny_run import finish, recorded, start_training


def test_a_run_learns_evaluates_exports_and_reports(tiny: Callable[..., Path]) -> None:
    result = train(
        load_config(tiny(), ["--train.steps", "60", "--train.tensorboard", "true", "--checkpoint.every", "30"])
    )
    records = read_metrics(result.directory)
    losses = [r["loss"] for r in records if r["kind"] == "train"]
    assert losses[0] == pytest.approx(math.log(300), rel=0.05)  # an untrained model is as good as a uniform guess
    assert sum(losses[-5:]) / 5 < 0.8 * losses[0]
    bits = [r["bits_per_byte"] for r in records if r["kind"] == "eval"]
    assert [r["step"] for r in records if r["kind"] == "eval"][:2] == [0, 5]
    assert bits[-1] == result.bits_per_byte < bits[0]
    assert json.loads((result.directory / "status.json").read_text())["finished"]
    assert list((result.directory / "tb").glob("events*"))
    assert "<svg" in (result.directory / "report.html").read_text(encoding="utf-8")
    assert (result.directory / "hf" / "tokenizer.json").is_file()
    exported = models.load(result.directory / "hf").state_dict()
    saved = load_checkpoint(list_checkpoints(result.directory / "checkpoints")[-1]).tensors("model")
    assert all(torch.equal(exported[name], tensor) for name, tensor in saved.items())


def test_accumulation_equals_one_large_batch(tiny: Callable[..., Path]) -> None:
    """Sums of losses over all micro-batches are divided once, so the split cannot matter beyond rounding."""
    large = train(load_config(tiny("large"), ["--train.batch_size", "4"]))
    small = train(load_config(tiny("small"), ["--train.batch_size", "1", "--train.accumulation", "4"]))
    a, b = (recorded(r.directory) for r in (large, small))
    for x, y in zip(a, b, strict=True):
        assert x["loss"] == pytest.approx(y["loss"], rel=2e-4)  # fp32 sums in another order, through twelve steps


def test_two_ranks_equal_one_with_twice_the_batch(tiny: Callable[..., Path]) -> None:
    two = tiny("two")
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
    status, output = finish(start_training(two, "--train.batch_size", "2", launcher=launcher))
    assert status == 0, output
    one = train(load_config(tiny("one"), ["--train.batch_size", "4"]))
    pairs = zip(recorded(two.with_suffix("")), recorded(one.directory), strict=True)
    for x, y in pairs:
        assert (x["kind"], x["step"], x["tokens"]) == (y["kind"], y["step"], y["tokens"])
        assert x["loss"] == pytest.approx(y["loss"], rel=2e-4)
    weights = [load_file(run / "hf" / "model.safetensors") for run in (two.with_suffix(""), one.directory)]
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=0, atol=5e-3)


def test_divergence_stops_the_run_with_a_dump(tiny: Callable[..., Path]) -> None:
    config = load_config(
        tiny(), ["--optimizer.learning_rate", "1e30", "--optimizer.clip_norm", "0", "--schedule.warmup_steps", "0"]
    )
    with pytest.raises(NonFiniteLossError, match=r"non-finite-step-\d+"):
        train(config)
    (dump,) = Path(config.train.out).glob("non-finite-step-*")
    facts = json.loads((dump / "facts.json").read_text())
    assert facts["step"] >= 2
    assert facts["non_finite_gradients"] or facts["loss"] in ("nan", "inf")
    assert load_file(dump / "batch.safetensors")["0.input_ids"].shape == (2, 64)
    assert not (Path(config.train.out) / "hf").exists()


def test_broken_weights_are_never_saved(tiny: Callable[..., Path]) -> None:
    """The last step's weights overflow: no later loss can tell, and the checkpoint before is the only good one."""
    flags = ["--optimizer.muon_learning_rate", "1e38", "--schedule.kind", "constant", "--schedule.warmup_steps", "0"]
    config = load_config(tiny(), [*flags, "--train.steps", "1", "--train.eval_every", "0"])
    with pytest.raises(NonFiniteLossError, match=r"validation loss .*there is no checkpoint yet"):
        train(config)
    out = Path(config.train.out)
    assert not (out / "checkpoints").exists()
    assert not (out / "hf").exists()
    assert "stopped by a loss that is not finite" in (out / "report.html").read_text(encoding="utf-8")
    assert not json.loads((out / "status.json").read_text())["finished"]


def test_both_ranks_dump_their_batches(tiny: Callable[..., Path]) -> None:
    config = tiny()
    flags = ("--optimizer.learning_rate", "1e30", "--optimizer.clip_norm", "0", "--schedule.warmup_steps", "0")
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
    status, output = finish(start_training(config, *flags, launcher=launcher))
    assert status != 0
    assert "non-finite-step-" in output
    (dump,) = config.with_suffix("").glob("non-finite-step-*")
    assert sorted(p.name for p in dump.iterdir()) == [
        "batch-rank-0.safetensors",
        "batch-rank-1.safetensors",
        "facts.json",
    ]


def test_bf16_follows_fp32(tiny: Callable[..., Path]) -> None:
    runs = [train(load_config(tiny(d), ["--train.dtype", d, "--train.steps", "6"])) for d in ("fp32", "bf16")]
    a, b = (recorded(r.directory) for r in runs)
    for x, y in zip(a, b, strict=True):
        assert x["loss"] == pytest.approx(y["loss"], rel=0.02)  # bf16 keeps 8 bits: 0.4 % a product


def test_activation_checkpointing_changes_nothing(tiny: Callable[..., Path]) -> None:
    flag = "--train.activation_checkpointing"
    runs = [train(load_config(tiny(value), [flag, value, "--train.steps", "6"])) for value in ("true", "false")]
    assert recorded(runs[0].directory) == recorded(runs[1].directory)


def test_training_continues_from_a_hugging_face_folder(tiny: Callable[..., Path]) -> None:
    first = train(load_config(tiny("first"), ["--train.steps", "40"]))
    config = load_config(tiny("second"), ["--model.directory", str(first.directory / "hf"), "--train.steps", "2"])
    train(config)
    before, after = (
        [r["bits_per_byte"] for r in recorded(Path(p)) if r["kind"] == "eval"]
        for p in (first.directory, config.train.out)
    )
    assert after[0] == pytest.approx(before[-1], rel=1e-6)
    config = load_config(
        tiny("third"), ["--model.directory", str(first.directory / "hf"), "--data.sequence_length", "128"]
    )
    with pytest.raises(ValueError, match="longer than the model's"):
        train(config)
    assert not Path(config.train.out).exists()


def test_garbage_collection_is_as_before_after_a_run(tiny: Callable[..., Path]) -> None:
    frozen = gc.get_freeze_count()
    train(load_config(tiny("fine"), ["--train.steps", "2"]))
    diverging = ["--optimizer.learning_rate", "1e30", "--optimizer.clip_norm", "0", "--schedule.warmup_steps", "0"]
    with pytest.raises(NonFiniteLossError):
        train(load_config(tiny("diverges"), diverging))
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
