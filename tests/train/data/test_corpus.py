"""Documents: the plays lose no byte, a user's files are read as they are, and the held-out share is deterministic."""

import gzip
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarlock.train.data import CorpusConfig, Document, open_corpus, plays
from oarlock.train.data.sources import find_files, read_documents
from oarlock.train.data.split import ContentSplit, content_hash


@pytest.fixture(scope="module")
def plays_text() -> str:
    return lzma.decompress(plays.bundled_file().read_bytes()).decode()


@pytest.fixture(scope="module")
def scenes(plays_text: str) -> list[tuple[str, Document]]:
    return list(plays.split_scenes(plays_text.splitlines(keepends=True)))


def test_scenes_keep_every_byte(plays_text: str, scenes: list[tuple[str, Document]]) -> None:
    assert "".join(scene.text for _, scene in scenes) == plays_text


def test_every_play_is_found(scenes: list[tuple[str, Document]]) -> None:
    titles = list(dict.fromkeys(title for title, _ in scenes))
    assert len(titles) == 38
    assert "Measure for Measure" in titles
    assert not {"EPILOGUE", "INTERMISSION"} & set(titles)
    assert set(plays.HELD_OUT) <= set(titles)


@pytest.mark.parametrize(
    ("title", "count"),
    [
        ("Hamlet", 20),  # acts of 5, 2, 4, 7, 2 scenes
        ("Macbeth", 28),  # 7, 4, 6, 3, 8; its first scene has a heading of another level
        ("Romeo and Juliet", 26),  # 24 scenes and two prologues
        ("The Tempest", 9),  # the edition heads 8 of 9 scenes; the epilogue's heading is a bare line
        ("Pericles", 28),  # 4, 5, 4, 6, 3 scenes, five prologues, an epilogue
        ("Measure for Measure", 17),  # 4, 4, 2, 6, 1; no title line
        ("The Comedy of Errors", 11),  # 2, 2, 2, 4, 1
        ("Richard III", 25),  # 4, 4, 7, 5, 5
    ],
)
def test_number_of_scenes(scenes: list[tuple[str, Document]], title: str, count: int) -> None:
    found = [scene.name for play, scene in scenes if play == title]
    assert len(found) == count, found
    assert len(set(found)) == count


def test_scenes_are_no_fragments(scenes: list[tuple[str, Document]]) -> None:
    assert min(len(scene.text) for _, scene in scenes) > 200


def test_held_out_plays_are_whole(plays_text: str) -> None:
    corpus = open_corpus(CorpusConfig())
    held_out = "".join(document.text for document in corpus.validation())
    comedy = plays_text[
        plays_text.index("# The Comedy of Errors\n") : plays_text.index("# The Merry Wives of Windsor\n")
    ]
    richard = plays_text[plays_text.index("# Richard III\n") : plays_text.index("# All's Well That Ends Well\n")]
    assert held_out == comedy + richard
    training = "".join(document.text for document in corpus.train())
    assert len(training) + len(held_out) == len(plays_text)
    assert "ANTIPHOLUS" not in training


def write_user_text(folder: Path) -> Path:
    (folder / "b").mkdir(parents=True)
    (folder / "a.txt").write_text("alpha\n", encoding="utf-8")
    (folder / "b" / "deep.md").write_text("# déjà vu\n", encoding="utf-8")
    (folder / "b" / "packed.txt.gz").write_bytes(gzip.compress(b"zipped\r\n", mtime=0))
    (folder / "c.jsonl.xz").write_bytes(lzma.compress(b'{"text": "one"}\n\n{"text": "two\\n", "id": 7}\n'))
    (folder / "ignored.py").write_text("x = 1\n")
    (folder / ".hidden.txt").write_text("secret\n")
    return folder


def test_folder_is_read_recursively_in_a_fixed_order(tmp_path: Path) -> None:
    folder = write_user_text(tmp_path / "texts")
    texts = [document.text for path in find_files(str(folder)) for document in read_documents(path)]
    assert texts == ["alpha\n", "one", "two\n", "# déjà vu\n", "zipped\r\n"]


def test_glob_takes_matches_and_folders_once(tmp_path: Path) -> None:
    folder = write_user_text(tmp_path / "texts")
    assert [path.name for path in find_files(f"{folder}/*.txt")] == ["a.txt"]
    recursive = find_files(f"{folder}/**")
    assert sorted(path.name for path in recursive) == ["a.txt", "c.jsonl.xz", "deep.md", "packed.txt.gz"]


def test_separator_lines_cut_documents(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(b"\xef\xbb\xbffirst\nstill ---\n---\n-----\r\nlast")
    assert [document.text for document in read_documents(path, "-{3,}")] == ["first\nstill ---\n", "", "last"]
    config = CorpusConfig(corpus=str(path), separator="-{3,}")
    corpus = open_corpus(config)
    assert {document.text for side in (corpus.train, corpus.validation) for document in side()} == {
        "first\nstill ---\n",
        "last",
    }


def test_explicit_validation_is_taken_out_of_training(tmp_path: Path) -> None:
    folder = write_user_text(tmp_path / "texts")
    corpus = open_corpus(CorpusConfig(corpus=str(folder), validation=str(folder / "b")))
    assert [document.text for document in corpus.train()] == ["alpha\n", "one", "two\n"]
    assert [document.text for document in corpus.validation()] == ["# déjà vu\n", "zipped\r\n"]
    with pytest.raises(ValueError, match="nothing is left to train on"):
        open_corpus(CorpusConfig(corpus=str(folder), validation=str(folder)))


def test_digest_depends_on_content_and_order_not_on_names(tmp_path: Path) -> None:
    first = write_user_text(tmp_path / "first")
    second = write_user_text(tmp_path / "second")
    before = open_corpus(CorpusConfig(corpus=str(first))).digest()
    assert open_corpus(CorpusConfig(corpus=str(second))).digest() == before
    (second / "a.txt").write_text("alphA\n")
    assert open_corpus(CorpusConfig(corpus=str(second))).digest() != before
    (second / "a.txt").write_text("alpha\n")
    (second / "z.txt").write_text("")
    assert open_corpus(CorpusConfig(corpus=str(second))).digest() != before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.txt", b"fine\n\xff\xfe", r"bad\.txt: byte 5 is 0xff: not UTF-8"),
        ("bad.txt.gz", gzip.compress(b"ab\xc3(", mtime=0), r"byte 2 of the unpacked text is 0xc3"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": "\xe9"}\n', r"bad\.jsonl: byte 24 is 0xe9"),
        ("bad.jsonl", b'{"text": "a"}\n{"body": "b", "id": 1}\n', r'bad\.jsonl:2: .*"text", got fields body, id'),
        ("bad.jsonl", b'\n["text"]\n', r"bad\.jsonl:2: .* got list"),
        ("bad.jsonl", b'{"text": null}', r"bad\.jsonl:1: expected an object .*, got text = None"),
        ("bad.jsonl", b'{"text": "a"\n', r"bad\.jsonl:1: not JSON"),
        ("bad.jsonl", b'{"text": "\\ud83d"}', r"bad\.jsonl:1: .*surrogate"),
        ("bad.txt.xz", b"not xz", r"bad\.txt\.xz: damaged"),
        ("bad.txt.xz", lzma.compress(b"a" * 1000)[:-20], r"bad\.txt\.xz: damaged"),
        ("bad.txt.gz", gzip.compress(b"a" * 1000, mtime=0)[:-9], r"bad\.txt\.gz: damaged"),
        ("empty.txt", b"", "holds no text to train on"),
        ("blank.jsonl", b'{"text": " \\n"}', "holds no text to train on"),
        ("line.txt", b"one single line", "a single line, cannot be split"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(open_corpus(CorpusConfig(corpus=str(path))).train())


def test_missing_paths_suggest_the_nearest_name(tmp_path: Path) -> None:
    folder = write_user_text(tmp_path / "texts")
    with pytest.raises(FileNotFoundError, match=r"txts/a\.txt'; did you mean '.*/texts'\?"):
        open_corpus(CorpusConfig(corpus=str(tmp_path / "txts" / "a.txt")))
    with pytest.raises(FileNotFoundError, match=r"did you mean '.*/texts/a\.txt'\?"):
        open_corpus(CorpusConfig(corpus=str(folder / "A.tx")))
    with pytest.raises(FileNotFoundError, match="did you mean 'shakespeare'"):
        open_corpus(CorpusConfig(corpus="shakespear"))


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("*.pdf", r"glob '.*\*\.pdf' matches nothing"),
        ("*.py", r"matches no file of type \.txt"),
        ("empty", "holds no file of type"),
        ("code.py", "not a type of text file"),
    ],
)
def test_nothing_to_read(tmp_path: Path, location: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "code.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=message):
        open_corpus(CorpusConfig(corpus=str(tmp_path / location)))


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\nb\n")
    with pytest.raises(ValueError, match="separator '\\['"):
        open_corpus(CorpusConfig(corpus=str(path), separator="["))
    with pytest.raises(ValueError, match=r"validation_share = 1\.5"):
        open_corpus(CorpusConfig(corpus=str(path), validation_share=1.5))
    with pytest.raises(ValueError, match="empty path"):
        open_corpus(CorpusConfig(corpus=""))


def split_of(texts: list[str], share: float) -> tuple[list[str], list[str]]:
    split = ContentSplit(lambda: iter([Document(text, str(i)) for i, text in enumerate(texts)]), share, "texts")
    return [document.text for document in split.train()], [document.text for document in split.validation()]


@given(
    texts=st.lists(st.text(min_size=1), min_size=2).filter(lambda texts: len(set(texts)) > 1),
    share=st.floats(0.01, 0.99),
)
def test_content_split_is_a_partition_by_content(texts: list[str], share: float) -> None:
    train, validation = split_of(texts, share)
    assert train
    assert validation
    assert not set(train) & set(validation)  # copies stay together
    assert sorted(train + validation) == sorted(texts)
    backwards = split_of(texts[::-1], share)
    assert (backwards[0][::-1], backwards[1][::-1]) == (train, validation)


def test_content_split_meets_its_share() -> None:
    texts = [f"document {i}" for i in range(4000)]
    train, validation = split_of(texts, 0.05)
    assert len(train) + len(validation) == 4000
    assert abs(len(validation) - 200) < 60  # binomial(4000, 0.05): 4.3 standard deviations
    # A document stays where it is when others come: nothing held out is trained on later.
    more_train, more_validation = split_of([f"document {i}" for i in range(5000)], 0.05)
    assert set(train) <= set(more_train)
    assert set(validation) <= set(more_validation)


def test_content_hash_never_changes() -> None:
    assert content_hash("oarlock") == 0x24D9B118BE89CBBE  # printf oarlock | b2sum -l 64


@given(lines=st.lists(st.sampled_from(["word\n", "two words\n", "\n"]), min_size=0), share=st.floats(0.01, 0.99))
def test_single_document_is_cut_between_lines(lines: list[str], share: float) -> None:
    text = "first\n" + "".join(lines) + "last\n"
    (train,), (validation,) = split_of([text], share)
    assert train + validation == text
    assert train.endswith("\n")
    assert train.strip()
    assert validation.strip()


def test_single_document_is_cut_near_its_share() -> None:
    text = "a line of text\n" * 1000
    _, (validation,) = split_of([text, text], 0.1)[0], split_of([text], 0.1)[1]
    assert abs(len(validation) / len(text) - 0.1) < 0.002


def test_jsonl_round_trip_through_a_corpus(tmp_path: Path) -> None:
    texts = [f"Text {i} with “quotes”, emoji 🛶 and\nlines" for i in range(50)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = open_corpus(CorpusConfig(corpus=str(path), validation_share=0.2))
    found = [*corpus.train(), *corpus.validation()]
    assert sorted(document.text for document in found) == sorted(texts)
    assert {document.name for document in found} == {f"{path}:{line}" for line in range(1, 51)}
