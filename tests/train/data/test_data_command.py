"""`oarlock data`, as typed."""

import json
from pathlib import Path

import pytest

from oarlock.cli.main import main
from oarlock.train.data import CorpusConfig, prepare


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"Line {i} of the log\n" * (i + 1)}) + "\n" for i in range(30)))
    return path


def test_prints_both_splits_and_where_they_are(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["data", str(corpus), "--out", str(out), "--vocab-size", "300", "--pack", "64", "128"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    data = prepare(CorpusConfig(corpus=str(corpus), vocab_size=300), out)
    assert printed.startswith(f"{data.directory}: vocabulary {data.vocab_size}, ")
    assert f"{data.train.total_bytes:,}" in printed
    assert f"{data.validation.num_targets - data.validation.num_documents:,}" in printed
    assert "S = 64: " in printed
    assert "S = 128: " in printed
    assert len(list(out.iterdir())) == 1  # the trainer's call found it
    assert main([*arguments[:4], "--tokenizer", str(data.tokenizer_path), "--validation-share", "0.3"]) == 0
    assert len(list(out.iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["text.jsonl"], "no file or folder"),
        (["texts.jsonl", "--vocab-size", "10"], "vocab_size = 10"),
        (["texts.jsonl", "--vocab-size", "300", "--tokenizer", "x"], "leave it out with --tokenizer"),
        (["texts.jsonl", "--tokenizer", "nowhere.json"], "no tokenizer at nowhere.json"),
        (["texts.jsonl", "--validation", "*.nothing"], "matches nothing"),
    ],
)
def test_user_errors_are_one_line(
    corpus: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", *arguments, "--out", "out"]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (tmp_path / "out").exists()
