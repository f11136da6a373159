"""Supervised fine-tuning end to end: what is learned, what is packed, what is refused, and that a run goes on."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers

from chat_models import write_lines, write_model
from oarlock.cli.main import main
from oarlock.train.config import TrainConfig, load_config
from oarlock.train.data import EvaluationLoader, PackedLoader
from oarlock.train.loop import train
from oarlock.train.metrics import read_metrics
from oarlock.train.tasks import choose_task
from oarlock.train.tasks.sft import prepare_conversations
from tiny_run import finish, recorded, start_training

WORDS = "the oar moves ship water against current river stone light hand quiet morning".split()  # noqa: SIM905

ROOT = Path(__file__).parents[2]

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
learning_rate = 5e-3
[schedule]
warmup_steps = 2
[train]
task = "sft"
out = "{out}"
steps = 8
batch_size = 2
eval_every = 4
tensorboard = false
[checkpoint]
every = 2
"""


def conversations(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """A question of some words; the answer is its last word, twice."""
    generator = np.random.default_rng(seed)
    records = []
    for _ in range(count):
        turns = []
        for _ in range(generator.integers(1, 3)):
            words = generator.choice(WORDS, generator.integers(1, 4)).tolist()
            turns += [
                {"role": "user", "content": " ".join(words)},
                {"role": "assistant", "content": f"{words[-1]} {words[-1]}"},
            ]
        records.append({"messages": turns})
    return records


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def sft(tmp_path: Path, model: Path) -> Callable[..., Path]:
    """Writes the configuration of a run folder of the given name."""

    def write(name: str = "run", records: list[dict[str, Any]] | None = None) -> Path:
        data = tmp_path / "chats.jsonl"
        if records is not None or not data.exists():
            write_lines(data, conversations(40) if records is None else records)
        path = tmp_path / f"{name}.toml"
        path.write_text(CONFIG.format(model=model, data=data, cache=tmp_path / "cache", out=tmp_path / name))
        return path

    return write


def config_of(path: Path, *overrides: str) -> TrainConfig:
    return load_config(path, overrides)


def test_every_answer_token_is_a_target_once_and_nothing_else_is(sft: Callable[..., Path], model: Path) -> None:
    data = prepare_conversations(config_of(sft()))
    theirs = transformers.AutoTokenizer.from_pretrained(model)
    wanted = []
    for record in conversations(40):
        coded = theirs.apply_chat_template(record["messages"], return_dict=True, return_assistant_tokens_mask=True)
        wanted.append([t for t, m in zip(coded["input_ids"], coded["assistant_masks"], strict=True) if m])
    found = []
    for side in (data.train, data.validation):
        for batch in EvaluationLoader(side, 96, 3):
            for row in range(3):
                for targets in batch.targets[row].split(batch.lengths[row]):
                    found.append(targets[targets != -100].tolist())
    assert sorted(filter(None, found)) == sorted(wanted)
    answers = [m["content"] for r in conversations(40) for m in r["messages"] if m["role"] == "assistant"]
    batches = [b for side in (data.train, data.validation) for b in EvaluationLoader(side, 96, 3)]
    assert sum(b.num_target_bytes for b in batches) == sum(len(a.encode()) for a in answers)
    assert sum(b.num_losses for b in batches) == sum(map(len, wanted))
    assert data.notes == [
        f"{split}: {count} conversations by the chat template {model / 'chat_template.jinja'}"
        for split, count in (("train", data.train.num_documents), ("validation", data.validation.num_documents))
    ]
    assert data.eos_id == theirs.convert_tokens_to_ids("<|im_end|>")


def test_the_loss_of_a_packed_conversation_is_that_of_transformers_alone(sft: Callable[..., Path], model: Path) -> None:
    """No leakage from neighbours, positions from 0, the loss on answers only: the sum over separate sequences."""
    from oarlock import models
    from oarlock.train.evaluate import summed_loss

    data = prepare_conversations(config_of(sft()))
    batch = PackedLoader(data.train, 96, 2).next_batch()
    assert min(map(len, batch.lengths)) > 2
    packed = summed_loss(models.load(model), batch, batch.mask(torch.device("cpu"))).item()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model)
    alone = 0.0
    for row in range(2):
        ids_by_piece, targets_by_piece = (x[row].split(batch.lengths[row]) for x in (batch.input_ids, batch.targets))
        for ids, targets in zip(ids_by_piece, targets_by_piece, strict=True):
            if (targets != -100).any():
                logits = theirs(input_ids=ids[None]).logits[0]
                alone += F.cross_entropy(logits, targets, reduction="sum").item()
    assert packed == pytest.approx(alone, rel=1e-5)  # fp32 in another order


def test_a_run_learns_to_answer_and_its_export_speaks(sft: Callable[..., Path], model: Path) -> None:
    result = train(config_of(sft(), "--train.steps", "120", "--train.eval_every", "60"))
    records = read_metrics(result.directory)
    bits = [r["bits_per_byte"] for r in records if r["kind"] == "eval"]
    assert bits[-1] < 0.5 * bits[0]
    export = result.directory / "hf"
    theirs = transformers.AutoTokenizer.from_pretrained(export)
    assert theirs.chat_template == transformers.AutoTokenizer.from_pretrained(model).chat_template
    ask = [{"role": "user", "content": "river"}]
    ids = theirs.apply_chat_template(ask, add_generation_prompt=True, return_tensors="pt", return_dict=True)[
        "input_ids"
    ]
    trained = transformers.AutoModelForCausalLM.from_pretrained(export)
    said = trained.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :]
    assert said[-1] == theirs.convert_tokens_to_ids("<|im_end|>")  # it stops, as generation_config.json says
    report = (result.directory / "report.html").read_text(encoding="utf-8")
    assert "Bits per byte" in report


def test_resuming_continues_bitwise(sft: Callable[..., Path]) -> None:
    half = sft("half")
    train(config_of(half, "--train.steps", "4", "--schedule.kind", "constant"))
    train(config_of(half, "--schedule.kind", "constant"), resume="auto")
    reference = train(config_of(sft("reference"), "--schedule.kind", "constant"))
    assert recorded(half.with_suffix("")) == recorded(reference.directory)
    with pytest.raises(ValueError, match=r"cannot resume: train.task = 'pretrain'"):
        train(config_of(half, "--train.task", "pretrain"), resume="auto")


@pytest.mark.parametrize("context", [1, 2])
def test_two_ranks_equal_one(sft: Callable[..., Path], context: int) -> None:
    """They share out the sequences, or the tokens of each."""
    two = sft("two")
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
    options = ("--train.batch_size", str(context), "--parallel.context", str(context), "--train.steps", "4")
    status, output = finish(start_training(two, *options, launcher=launcher))
    assert status == 0, output
    one = train(config_of(sft("one"), "--train.steps", "4"))
    for x, y in zip(recorded(two.with_suffix("")), recorded(one.directory), strict=True):
        assert (x["kind"], x["step"], x["tokens"]) == (y["kind"], y["step"], y["tokens"])
        assert x["loss"] == pytest.approx(y["loss"], rel=2e-4)  # fp32 sums in another order, through four steps


def test_the_task_may_be_named_on_the_command_line(
    sft: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = sft()
    path.write_text(path.read_text().replace('task = "sft"\n', ""))
    assert main(["train", str(path), "--task", "sft", "--train.steps", "1"]) == 0
    assert 'task = "sft"' in (path.with_suffix("") / "config.toml").read_text()
    assert "conversations by the chat template" in capsys.readouterr().err


def test_truncation_is_stated(sft: Callable[..., Path]) -> None:
    long = {"messages": [{"role": "user", "content": "oar"}, {"role": "assistant", "content": "light " * 60}]}
    data = prepare_conversations(config_of(sft(records=[*conversations(30), long]), "--data.validation_share", "0.1"))
    (note,) = [note for note in data.notes if "cut off" in note]
    assert "1 of" in note
    assert "longer than 96 tokens" in note
    lost = int(note.split(" tokens of answers are lost")[0].split()[-1])
    whole = prepare_conversations(config_of(sft(), "--data.validation_share", "0.1", "--data.sequence_length", "256"))
    targets = [d.train.num_targets + d.validation.num_targets for d in (data, whole)]
    assert targets[0] + lost == targets[1]


GOOD = {"messages": [{"role": "user", "content": "oar"}, {"role": "assistant", "content": "ship"}]}


def with_message(**message: Any) -> dict[str, Any]:
    return {"messages": [message, *GOOD["messages"]]}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (with_message(role="bot", content="x"), r"messages\[0\] has the role 'bot'; known: system, developer, user"),
        (with_message(content="x"), "has the role None"),
        (with_message(role="user"), r"messages\[0\] needs its text in content, got null"),
        (with_message(role="user", content=[{"type": "text"}]), "needs its text in content"),
        (with_message(role="assistant", content=" \n"), r"messages\[0\], an answer of the assistant, is empty"),
        ({"messages": GOOD["messages"][:1]}, "messages ends with the user; the last message must be an answer"),
        ({"messages": []}, r'messages must be a list of \{"role", "content"\}'),
        ({"messages": ["hi"]}, r"messages\[0\] must be"),
        ({"text": "hi"}, r'expected the field "messages", or "prompt" and "completion"; got fields text'),
        ({"prompt": "a", "completion": ""}, "completion is empty"),
        ([1], "expected an object, got list"),
        (
            {"messages": [{"role": "user", "content": "water " * 60}, GOOD["messages"][1]]},
            r"\d+ tokens come before the first answer, and data.sequence_length = 96",
        ),
    ],
)
def test_bad_examples_are_refused_by_line(
    sft: Callable[..., Path], capsys: pytest.CaptureFixture[str], record: Any, message: str
) -> None:
    path = sft(records=[GOOD, *conversations(4), record])
    assert main(["train", str(path)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(rf"chats\.jsonl:6: .*{message}", error), error
    assert not path.with_suffix("").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.directory", ""], "task sft continues a trained model: name its folder in model.directory"),
        (["--model.directory", "/absent"], "model.directory = '/absent': no such folder"),
        (["--data.corpus", "shakespeare"], "name a .jsonl file in data.corpus"),
        (["--data.corpus", __file__], "not a type of text file"),
        (
            ["--data.corpus", str(Path(__file__).parents[2] / "README.md")],
            r"task sft reads .jsonl files; .*README.md is none",
        ),
    ],
)
def test_a_run_without_model_or_examples_is_refused(
    sft: Callable[..., Path], capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["train", str(sft()), *options]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(message, error), error


def test_a_single_example_cannot_be_split(sft: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=r"holds 2 examples with one prompt or content.*data\.validation"):
        prepare_conversations(config_of(sft(records=[GOOD, GOOD])))


def test_examples_of_another_task_are_named_by_line(sft: Callable[..., Path]) -> None:
    pair = {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}
    with pytest.raises(ValueError, match=r'jsonl:1: expected the field "messages", or "prompt" and "completion"'):
        prepare_conversations(config_of(sft(records=[pair, pair])))


def test_a_damaged_cache_is_made_again(sft: Callable[..., Path]) -> None:
    config = config_of(sft())
    data = prepare_conversations(config)
    (data.directory / "train.tokens.bin").write_bytes(b"\0\0")
    with pytest.warns(UserWarning, match=r"train\.tokens\.bin is damaged.*tokenising again"):
        again = prepare_conversations(config)
    assert json.loads((again.directory / "data.json").read_text())["files"]
    assert again.train.num_targets == data.train.num_targets


@pytest.mark.parametrize("task", ["sft", "dpo"])
def test_the_example_configurations_run(tmp_path: Path, task: str) -> None:
    small = write_model(tmp_path / "model", None, positions=1024)
    options = ["--model.directory", str(small), "--train.steps", "1", "--train.tensorboard", "false"]
    for key, value in (("out", tmp_path / "out"), ("cache", tmp_path / "cache")):
        options += [f"--{'train' if key == 'out' else 'data'}.{key}", str(value)]
    path = ROOT / "configs" / f"{task}-example.toml"
    corpus = load_config(path).data.corpus
    config = load_config(path, [*options, "--data.corpus", str(ROOT / corpus)])
    assert config.train.task == task
    data = choose_task(config).prepare()
    assert data.train.num_documents + data.validation.num_documents == len(
        (ROOT / corpus).read_text(encoding="utf-8").splitlines()
    )
    assert train(config).step == 1
