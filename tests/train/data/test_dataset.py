"""Tokens on disk are what encoding each document gives; the cache knows its content and notices damage."""

import dataclasses
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from oarlock.train.data import CorpusConfig, Document, PreparedData, TokenFile, open_corpus, prepare, train_tokenizer
from oarlock.train.data import dataset as dataset_module
from oarlock.train.data.token_file import token_dtype, write_token_file

TEXTS = [f"Document {i}: " + "the boat went down the river, " * (i % 7) + "fin 🛶\n" for i in range(40)]


@pytest.fixture
def config(tmp_path: Path) -> CorpusConfig:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return CorpusConfig(corpus=str(path), vocab_size=300, validation_share=0.2)


def test_tokens_are_those_of_each_document(config: CorpusConfig, tmp_path: Path) -> None:
    data = prepare(config, tmp_path / "cache")
    tokenizer = dataset_module.load_tokenizer(data.tokenizer_path)
    corpus = open_corpus(config)
    for documents, file in ((list(corpus.train()), data.train), (list(corpus.validation()), data.validation)):
        assert file.num_documents == len(documents)
        for index, document in enumerate(documents):
            assert file.document(index).tolist() == tokenizer.encode(document.text)
            assert file.tokens[file.offsets[index]] == data.bos_id
            assert file.tokens[file.offsets[index + 1] - 1] == data.eos_id
            assert file.num_bytes[index] == len(document.text.encode())
        assert file.num_targets == sum(len(tokenizer.encode(document.text)) + 1 for document in documents)
        assert file.total_bytes == sum(len(document.text.encode()) for document in documents)
    assert data.train.num_documents + data.validation.num_documents == len(TEXTS)
    assert data.vocab_size == tokenizer.vocab_size
    assert data.train.tokens.dtype == np.uint16
    assert data.train.end_id == data.eos_id


def test_tokenizer_sees_training_documents_only(tmp_path: Path) -> None:
    train, held_out = tmp_path / "train.txt", tmp_path / "held_out.txt"
    train.write_text("the boat " * 50)
    held_out.write_text("xylophone " * 50)
    config = CorpusConfig(corpus=str(train), validation=str(held_out), vocab_size=400)
    data = prepare(config, tmp_path / "cache")
    tokenizer = dataset_module.load_tokenizer(data.tokenizer_path)
    assert len(tokenizer.encode(" boat")) == 1
    assert len(tokenizer.encode(" xylophone")) > 5


def test_long_documents_are_streamed_in_pieces(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS, 300)
    seen: list[int] = []

    class Counting(type(tokenizer)):
        def encode_batch(self, texts):
            seen.append(sum(map(len, texts)))
            return super().encode_batch(texts)

    counting = Counting(tokenizer.backend, tokenizer.begin_id, tokenizer.end_id)
    line = "Row, row, row your boat, gently down the stream.\n"
    texts = [line * 60_000, "short", line * 3]  # 3 MB, of which no batch may hold more than a part
    write_token_file([Document(text, "") for text in texts], counting, tmp_path, "train")
    file = TokenFile.open(tmp_path, "train", tokenizer.vocab_size)
    assert len(seen) >= 3
    assert max(seen) < 1.3 * 2**20
    assert file.num_bytes.tolist() == [len(text) for text in texts]
    assert file.document(0).tolist() == tokenizer.encode(line) * 60_000  # no word spans two of these lines
    assert [tokenizer.decode(file.document(index)) for index in (1, 2)] == texts[1:]


@pytest.mark.parametrize(("vocab_size", "expected"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_tokens_take_two_bytes_where_they_fit(vocab_size: int, expected: type) -> None:
    assert token_dtype(vocab_size) == expected
    assert TokenFile.from_documents([[vocab_size - 1]], [1], 0, 0).tokens.tolist() == [0, vocab_size - 1, 0]


def test_an_unchanged_corpus_is_not_tokenised_again(
    config: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(config, tmp_path / "cache")
    monkeypatch.setattr(dataset_module, "_build", lambda *_: pytest.fail("tokenised again"))
    again = prepare(config, tmp_path / "cache")
    assert again.directory == first.directory
    moved = Path(config.corpus).rename(tmp_path / "renamed.jsonl")
    os.utime(moved)
    assert prepare(dataclasses.replace(config, corpus=str(moved)), tmp_path / "cache").directory == first.directory


def test_a_changed_byte_or_option_is_another_entry(config: CorpusConfig, tmp_path: Path) -> None:
    entries = {prepare(config, tmp_path / "cache").directory}
    for change in ({"vocab_size": 299}, {"validation_share": 0.3}, {"separator": "---"}):
        entries.add(prepare(dataclasses.replace(config, **change), tmp_path / "cache").directory)
    given = {"tokenizer": str(next(iter(entries)) / "tokenizer")}
    entries.add(prepare(dataclasses.replace(config, **given), tmp_path / "cache").directory)
    path = Path(config.corpus)
    path.write_bytes(path.read_bytes().replace(b"boat", b"goat", 1))
    entries.add(prepare(config, tmp_path / "cache").directory)
    assert len(entries) == 6
    assert {entry.name for entry in entries} == {entry.name for entry in (tmp_path / "cache").iterdir()}


def test_given_tokenizer_is_kept_with_the_data(config: CorpusConfig, tmp_path: Path) -> None:
    first = prepare(config, tmp_path / "cache")
    again = prepare(dataclasses.replace(config, tokenizer=str(first.tokenizer_path), vocab_size=7), tmp_path / "cache")
    assert again.directory != first.directory
    assert np.array_equal(again.train.tokens, first.train.tokens)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (again.tokenizer_path / name).read_bytes() == (first.tokenizer_path / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("train.tokens.bin", lambda content: bytes([content[0] ^ 1]) + content[1:], "is damaged"),
        ("train.offsets.bin", lambda content: content[:-8], "is damaged"),
        ("validation.num_bytes.bin", lambda _: None, "is missing"),
        ("data.json", lambda content: content[: len(content) // 2], "is damaged"),
        ("data.json", lambda _: None, "is not a prepared corpus"),
        ("data.json", lambda content: content.replace(b'"format": 2', b'"format": 99'), "format 99"),
        ("data.json", lambda _: b"[]", "is damaged"),
    ],
)
def test_a_damaged_entry_is_named_and_made_again(config: CorpusConfig, tmp_path: Path, name, damage, message) -> None:
    data = prepare(config, tmp_path / "cache")
    expected = data.train.tokens.tolist()
    content = damage((data.directory / name).read_bytes())
    (data.directory / name).unlink()
    if content is not None:
        (data.directory / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        PreparedData.open(data.directory, verify=True)
    with pytest.warns(UserWarning, match=f"{message}.*tokenising again"):
        again = prepare(config, tmp_path / "cache")
    assert again.train.tokens.tolist() == expected


def test_truncated_arrays_are_refused_without_hashing(config: CorpusConfig, tmp_path: Path) -> None:
    data = prepare(config, tmp_path / "cache")
    path = data.directory / "train.tokens.bin"
    for size, message in ((path.stat().st_size - 2, "do not fit together"), (5, "5 bytes"), (0, "0 bytes")):
        os.truncate(path, size)
        with pytest.raises(ValueError, match=message):
            PreparedData.open(data.directory)


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "good"}\n' * 30 + '{"txt": "bad"}\n')
    with pytest.raises(ValueError, match=r"texts\.jsonl:31"):
        prepare(CorpusConfig(corpus=str(path), vocab_size=300), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_two_writers_of_one_entry_agree(config: CorpusConfig, tmp_path: Path) -> None:
    results: list[PreparedData] = []
    threads = [threading.Thread(target=lambda: results.append(prepare(config, tmp_path / "cache"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({data.directory for data in results}) == 1
    assert len(results) == 3
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_vocabulary_mismatch_is_refused(config: CorpusConfig, tmp_path: Path) -> None:
    data = prepare(config, tmp_path / "cache")
    data.check_vocabulary(data.vocab_size)
    data.check_vocabulary(512)  # a padded embedding is fine
    with pytest.raises(ValueError, match=r"vocabulary mismatch: .* up to 299, the model has 256 embeddings"):
        data.check_vocabulary(256)


def test_wrong_vocabulary_size_is_refused_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\nb\n")
    with pytest.raises(ValueError, match="vocab_size = 100"):
        prepare(CorpusConfig(corpus=str(path), vocab_size=100), tmp_path / "cache")
