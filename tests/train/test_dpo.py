"""Preference optimisation: the packed loss and its gradients are those of separate texts; a run learns and goes on."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from chat_models import write_lines, write_model
from oarlock import models
from oarlock.cli.main import main
from oarlock.parallel import Mesh
from oarlock.train.config import TrainConfig, load_config
from oarlock.train.data import EvaluationLoader, PackedLoader
from oarlock.train.data.pair_file import PairBatch, PairFile
from oarlock.train.loop import train
from oarlock.train.metrics import read_metrics
from oarlock.train.tasks.dpo import DirectPreference, fit_pair, prepare_pairs
from tiny_run import finish, recorded, start_training

CPU = torch.device("cpu")
WORDS = "the oar moves ship water against current river stone light hand quiet morning".split()  # noqa: SIM905

CONFIG = """
[model]
directory = "{model}"
[data]
corpus = "{data}"
validation_share = 0.2
sequence_length = 96
cache = "{cache}"
[optimizer]
name = "adamw"
learning_rate = 2e-3
[schedule]
kind = "constant"
warmup_steps = 2
[train]
task = "dpo"
out = "{out}"
steps = 6
batch_size = 2
eval_every = 3
tensorboard = false
[checkpoint]
every = 2
"""


def preferences(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The better answer repeats a word of the first half of WORDS, the worse one of the second, at another length."""
    generator = np.random.default_rng(seed)
    records = []
    for _ in range(count):
        words = generator.choice(WORDS, generator.integers(2, 6), replace=False).tolist()
        halves = WORDS[: len(WORDS) // 2], WORDS[len(WORDS) // 2 :]
        answers = [" ".join([str(generator.choice(half))] * int(generator.integers(1, 5))) for half in halves]
        prompt = [{"role": "user", "content": " ".join(words)}]
        records.append({"prompt": prompt, "chosen": answers[0], "rejected": answers[1]})
    return records


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {"full": write_model(root / "full"), "window": write_model(root / "window", window=24)}


@pytest.fixture
def dpo(tmp_path: Path, folders: dict[str, Path]) -> Callable[..., Path]:
    """Writes the configuration of a run folder of the given name."""

    def write(name: str = "run", records: list[dict[str, Any]] | None = None, model: str = "full") -> Path:
        data = tmp_path / "pairs.jsonl"
        if records is not None or not data.exists():
            write_lines(data, preferences(40) if records is None else records)
        path = tmp_path / f"{name}.toml"
        fields = {"model": folders[model], "data": data, "cache": tmp_path / "cache", "out": tmp_path / name}
        path.write_text(CONFIG.format(**fields))
        return path

    return write


def config_of(path: Path, *overrides: str) -> TrainConfig:
    return load_config(path, overrides)


# ---- layout ------------------------------------------------------------------------------------------------------


def test_a_pair_written_out() -> None:
    parts = np.array([[3, 2, 3], [1, 1, 1]])
    file = PairFile.of(np.arange(10, 21, dtype=np.uint16), parts, np.array([True, True]))
    packing = file.pack(12, np.random.default_rng(0))
    packing = replace(packing, pairs=np.array([0, 1]), row_offsets=np.array([0, 2]))
    batch = file.assemble(12, [(packing, 0)])
    assert batch.input_ids.tolist() == [[10, 11, 12, 13, 12, 15, 16, 18, 18, 20, 20, 20]]
    assert batch.targets.tolist() == [[-100, -100, 13, 14, 15, 16, 17, 19, 20, -100, -100, -100]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 2, 3, 4, 0, 0, 0, 1, 2]]
    assert batch.answers.tolist() == [[-1, -1, 0, 0, 1, 1, 1, 2, 3, -1, -1, -1]]
    assert batch.groups == [[[2, 2, 3], [0, 1, 1], [3]]]
    assert (batch.num_targets, batch.num_losses, batch.pairs.tolist()) == (7, 2, [0, 1])
    twice = PairFile.of(file.tokens, parts, np.array([False, True])).assemble(12, [(packing, 0)])
    assert twice.input_ids.tolist() == [[10, 11, 12, 13, 10, 11, 12, 15, 16, 18, 18, 20]]
    assert twice.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0, 0]]
    assert twice.groups == [[[4], [5], [0, 1, 1], [1]]]


@pytest.mark.parametrize("model", ["full", "window"])
def test_every_pair_is_packed_once_and_its_keys_are_counted(dpo: Callable[..., Path], model: str) -> None:
    data = prepare_pairs(config_of(dpo(model=model)))
    file = data.train
    assert isinstance(file, PairFile)
    assert file.is_shared.all() == (model == "full")
    loader = PackedLoader(file, 96, 1)
    batches = [loader.next_batch() for _ in range(loader.packing.num_rows)]
    assert sorted(torch.cat([b.pairs for b in batches if isinstance(b, PairBatch)]).tolist()) == list(
        range(file.num_documents)
    )
    assert sum(b.num_targets for b in batches) == file.num_targets
    assert "pairs per sequence" in str(loader.packing.report)
    visible = [b.mask(CPU).visible_per_row().float() for b in batches]
    padding = sum(
        sum(range(1, 97 - sum(map(sum, b.groups[0][:-1]))))
        for b in batches
        if b.groups[0][-1:] and (b.answers[0, -1] < 0)
    )
    total = sum(v.sum().item() for v in visible) - padding
    assert loader.packing.mean_visible == pytest.approx(total / (len(batches) * 96))


@given(st.tuples(*[st.integers(1, 60)] * 3), st.integers(4, 100), st.none() | st.integers(1, 100))
def test_a_pair_that_is_too_long_loses_the_end_of_its_longer_answer(
    parts: tuple[int, int, int], seq_len: int, window: int | None
) -> None:
    prompt, chosen, rejected = parts
    copies = 2 if window is not None and sum(parts) - 1 > window else 1
    if copies * (prompt - 1) + 2 > seq_len:
        with pytest.raises(ValueError, match="leaves no room for two answers"):
            fit_pair(parts, seq_len, window)
        return
    a, b, is_shared = fit_pair(parts, seq_len, window)
    assert 1 <= a <= chosen
    assert 1 <= b <= rejected
    assert is_shared == (copies == 1)
    used = copies * (prompt - 1) + a + b
    assert used <= seq_len
    if (a, b) != (chosen, rejected):
        assert used == seq_len
        assert a == chosen or a >= b
        assert b == rejected or b >= a - 1


def test_tokens_are_those_of_transformers(dpo: Callable[..., Path], folders: dict[str, Path]) -> None:
    data = prepare_pairs(config_of(dpo()))
    theirs = transformers.AutoTokenizer.from_pretrained(folders["full"])
    wanted = []
    for record in preferences(40):
        prompt = theirs.apply_chat_template(record["prompt"], add_generation_prompt=True, return_dict=True)["input_ids"]
        answers = [
            theirs.encode(record[name] + "<|im_end|>", add_special_tokens=False) for name in ("chosen", "rejected")
        ]
        wanted.append((prompt, *answers))
    found = []
    for file in (data.train, data.validation):
        assert isinstance(file, PairFile)
        for start, parts in zip(file.starts, file.parts, strict=True):
            pieces = np.split(file.tokens[start : start + parts.sum()], np.cumsum(parts)[:-1])
            found.append(tuple(piece.tolist() for piece in pieces))
    assert sorted(found) == sorted(wanted)
    assert data.eos_id == theirs.convert_tokens_to_ids("<|im_end|>")


# ---- loss --------------------------------------------------------------------------------------------------------


def two_copies(model: Any, reference: Any, file: PairFile, pair: int, beta: float, smoothing: float) -> torch.Tensor:
    """The loss of a pair by its definition: two texts, plain causal attention, each on its own."""
    start, (num_prompt, *sizes) = int(file.starts[pair]), file.parts[pair].tolist()
    prompt = file.tokens[start : start + num_prompt].astype(np.int64)
    gains, first = [], start + num_prompt
    for size in sizes:
        answer = file.tokens[first : first + size].astype(np.int64)
        first += size
        ids = torch.from_numpy(np.concatenate([prompt, answer]))
        values = []
        for network in (model, reference):
            log_probs = F.log_softmax(network(input_ids=ids[None]).logits[0, num_prompt - 1 : -1], -1)
            values.append(log_probs.gather(1, ids[num_prompt:, None]).sum())
        gains.append(values[0] - values[1].detach())
    margin = beta * (gains[0] - gains[1])
    return -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)


@pytest.mark.parametrize("model", ["full", "window"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_and_gradients_equal_the_two_copy_formulation(
    dpo: Callable[..., Path], folders: dict[str, Path], tmp_path: Path, model: str, smoothing: float
) -> None:
    """Against transformers in float64, for a policy that has left the reference; also with windows of 24 keys, that
    some pairs exceed, even with one of their texts alone, and others do not."""
    long = {"prompt": "water " * 12, "chosen": " light" * 5, "rejected": " stone" * 7}
    short = {"prompt": "oar", "chosen": " ship", "rejected": " river river"}
    config = config_of(
        dpo(records=[*preferences(12), long, short], model=model), "--dpo.label_smoothing", str(smoothing)
    )
    config = replace(config, data=replace(config.data, sequence_length=128))
    data = prepare_pairs(config)
    file = data.train
    assert isinstance(file, PairFile)
    assert set(file.is_shared.tolist()) == ({True} if model == "full" else {True, False})
    if model == "window":
        assert (file.parts[:, :2].sum(1) > 25).any()

    reference = transformers.AutoModelForCausalLM.from_pretrained(folders[model]).double()
    policy = transformers.AutoModelForCausalLM.from_pretrained(folders[model]).double()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.05 * torch.randn_like(parameter) * parameter.abs().mean()
    policy.save_pretrained(tmp_path / "policy")

    task = DirectPreference(config)
    task.start(models.load(folders[model]).double(), data, Mesh.build(), CPU)
    ours = models.load(tmp_path / "policy").double()
    batch = PackedLoader(file, 128, 3).next_batch()
    loss, sums = task.loss(ours, batch, batch.mask(CPU))
    loss.backward()
    assert isinstance(batch, PairBatch)
    pairs = batch.pairs.tolist()
    assert len(pairs) > 3
    losses = [two_copies(policy, reference, file, pair, 0.1, smoothing) for pair in pairs]
    expected = torch.stack(losses).sum()
    expected.backward()
    # float64 throughout, but for the RoPE tables and the norms, which both compute in float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    gradients = {name.removeprefix("model."): p.grad for name, p in policy.named_parameters()}
    for name, parameter in ours.named_parameters():
        scale = gradients[name].abs().max()
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=0, atol=2e-5 * scale.item())
    if not smoothing:
        margins = torch.stack([-torch.log(torch.expm1(x)) for x in losses])
        assert sums[0] == (margins > 0).sum()
        assert sums[1] == pytest.approx(margins.sum().item(), rel=1e-4)


def test_the_reference_is_computed_once_and_kept_by_content(
    dpo: Callable[..., Path], folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dpo()
    config = config_of(path)
    data = prepare_pairs(config)
    model = models.load(folders["full"])

    def start(config: TrainConfig) -> tuple[torch.Tensor, int]:
        calls = []
        from oarlock.train.tasks import dpo as module

        plain = module.answer_log_probs
        monkeypatch.setattr(module, "answer_log_probs", lambda *a: calls.append(1) or plain(*a))
        task = DirectPreference(config)
        task.start(model, data, Mesh.build(), CPU)
        monkeypatch.undo()
        return task._reference_train, len(calls)

    first, num_calls = start(config)
    assert num_calls == sum(len(EvaluationLoader(side, 96, 2)) for side in (data.train, data.validation))
    again, num_calls = start(config)
    assert num_calls == 0
    assert torch.equal(first, again)
    (kept,) = Path(config.data.cache).glob("*.reference.safetensors")
    kept.write_bytes(b"damaged")
    again, num_calls = start(config)
    assert num_calls > 0
    assert torch.equal(first, again)
    with torch.no_grad():
        model.norm.weight.mul_(1.01)
    _, num_calls = start(config)
    assert num_calls > 0
    assert len(list(Path(config.data.cache).glob("*.reference.safetensors"))) == 2


# ---- runs --------------------------------------------------------------------------------------------------------


def test_a_run_learns_what_is_better(dpo: Callable[..., Path]) -> None:
    result = train(config_of(dpo(), "--train.steps", "40", "--train.eval_every", "20"))
    records = read_metrics(result.directory)
    evals = [r for r in records if r["kind"] == "eval"]
    assert evals[0]["loss"] == pytest.approx(math.log(2), abs=1e-4)  # the policy still is the reference
    assert evals[0]["margin"] == pytest.approx(0, abs=1e-4)
    assert evals[-1]["accuracy"] > 0.8
    assert evals[-1]["loss"] < 0.8 * math.log(2)
    assert result.bits_per_byte is None
    steps = [r for r in records if r["kind"] == "train"]
    assert all(0 <= r["accuracy"] <= 1 and r["chosen_logp"] < 0 and r["rejected_logp"] < 0 for r in steps)
    gap = [r["chosen_logp"] - r["rejected_logp"] for r in (steps[0], steps[-1])]
    assert gap[1] > gap[0]
    report = (result.directory / "report.html").read_text(encoding="utf-8")
    for title in ("Accuracy", "Margin", "Chosen answers", "Rejected answers", "per pair"):
        assert title in report
    exported = transformers.AutoModelForCausalLM.from_pretrained(result.directory / "hf")
    ours = models.load(result.directory / "hf")
    ids = torch.arange(20)[None]
    torch.testing.assert_close(ours.logits(ours(ids)), exported(input_ids=ids).logits, rtol=0, atol=1e-4)


def test_resuming_continues_bitwise(dpo: Callable[..., Path]) -> None:
    half = dpo("half")
    train(config_of(half, "--train.steps", "3"))
    train(config_of(half), resume="auto")
    whole = train(config_of(dpo("whole")))
    assert recorded(half.with_suffix("")) == recorded(whole.directory)
    first, second = (load_file(run / "hf" / "model.safetensors") for run in (half.with_suffix(""), whole.directory))
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ValueError, match=r"cannot resume: dpo\.beta = 0\.2"):
        train(config_of(half, "--dpo.beta", "0.2"), resume="auto")


@pytest.mark.parametrize("context", [1, 2])
def test_two_ranks_equal_one(dpo: Callable[..., Path], context: int) -> None:
    """They share out the sequences, or the tokens of each: then a pair's log-probabilities are sums over both ranks."""
    two = dpo("two")
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
    options = ("--train.batch_size", str(context), "--parallel.context", str(context), "--train.steps", "4")
    status, output = finish(start_training(two, *options, launcher=launcher))
    assert status == 0, output
    config = config_of(dpo("one"), "--train.steps", "4")
    for kept in Path(config.data.cache).glob("*.reference.safetensors"):
        kept.unlink()  # that of two ranks
    one = train(config)
    for x, y in zip(recorded(two.with_suffix("")), recorded(one.directory), strict=True):
        assert (x["kind"], x["step"], x["tokens"]) == (y["kind"], y["step"], y["tokens"])
        for name in ("loss", "chosen_logp", "rejected_logp"):
            assert x[name] == pytest.approx(y[name], rel=1e-3)  # fp32 sums in another order, through four steps


def test_bf16_follows_fp32(dpo: Callable[..., Path]) -> None:
    runs = [train(config_of(dpo(kind), "--train.dtype", kind)) for kind in ("fp32", "bf16")]
    a, b = ([r["loss"] for r in recorded(run.directory)] for run in runs)
    assert a == pytest.approx(b, abs=0.05)  # bf16 keeps 8 bits of each of some ten log-probabilities


# ---- errors ------------------------------------------------------------------------------------------------------

ASK = [{"role": "user", "content": "oar"}]
GOOD = {"prompt": ASK, "chosen": "ship", "rejected": "river"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": ASK, "chosen": "ship"}, 'expected "prompt", "chosen" and "rejected"; \'rejected\' is missing'),
        (GOOD | {"chosen": "  "}, r"chosen\[0\], an answer of the assistant, is empty"),
        ({"prompt": "a", "chosen": "b", "rejected": ""}, "rejected is empty"),
        (GOOD | {"prompt": [{"role": "robot", "content": "x"}]}, r"prompt\[0\] has the role 'robot'"),
        (GOOD | {"rejected": ASK}, "rejected ends with the user; the last message must be an answer"),
        (
            GOOD | {"rejected": [*ASK, {"role": "assistant", "content": "x"}]},
            "rejected must be one message of the assistant, got 2 messages",
        ),
        (GOOD | {"prompt": "water " * 60}, r"the prompt of \d+ tokens leaves no room for two answers"),
    ],
)
def test_bad_pairs_are_refused_by_line(
    dpo: Callable[..., Path], capsys: pytest.CaptureFixture[str], record: Any, message: str
) -> None:
    path = dpo(records=[GOOD, *preferences(4), record])
    assert main(["train", str(path)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(rf"pairs\.jsonl:6: .*{message}", error), error
    assert not path.with_suffix("").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.directory", ""], "task dpo continues a trained model: name its folder in model.directory"),
        (["--dpo.beta", "0"], "dpo.beta = 0.0: must be positive"),
        (["--dpo.label_smoothing", "0.5"], r"dpo.label_smoothing = 0.5: must lie in \[0, 0.5\)"),
        (["--train.task", "dop"], "train.task = 'dop': one of pretrain, sft, dpo; did you mean dpo"),
    ],
)
def test_bad_settings_are_refused(
    dpo: Callable[..., Path], capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["train", str(dpo()), *options]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_what_is_cut_or_stored_twice_is_stated(dpo: Callable[..., Path]) -> None:
    long = {"prompt": "water " * 10, "chosen": " light" * 30, "rejected": " stone"}
    data = prepare_pairs(config_of(dpo(records=[*preferences(20), long], model="window")))
    notes = "\n".join(data.notes)
    assert re.search(
        r"\d+ of \d+ pairs are longer than 96 tokens: the ends of their answers are cut off, \d+ tokens", notes
    )
    assert re.search(r"\d+ of \d+ pairs hold their prompt twice: they are longer than the window of 24", notes)
    assert re.search(r"\d+ pairs by the chat template", notes)
    assert "1 pairs of plain text, without the chat template" in notes
