"""The tokenizer loses nothing, always trains to the same bytes, and is the one that transformers loads."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from oarlock.train.data import TextTokenizer, load_tokenizer, plays, train_tokenizer
from oarlock.train.data.markers import BY_MODEL, BY_TOKENIZER, marker_ids
from oarlock.train.data.tokenizer import END_OF_DOCUMENT, SMALLEST_VOCABULARY, cut_safely

# Characters at which pre-tokenisation decides something: kinds of blanks, letters, digits, contractions, marks.
TRICKY = st.text(alphabet=st.sampled_from(list("ab'sS1 \n\t\r\u00a0\u2028\u3000.,é漢🛶\u0301\x1c\x85")), max_size=60)
BLANKS = st.text(alphabet=st.sampled_from(list("a  \n\n\t.")), max_size=30)
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    scenes = plays.read_scenes(held_out=True)
    return [next(scenes).text for _ in range(6)]


@pytest.fixture(scope="module")
def tokenizer(texts: list[str]) -> TextTokenizer:
    return train_tokenizer(texts, 600)


@pytest.fixture(scope="module")
def saved(tokenizer: TextTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(folder)
    return folder


def test_vocabulary_has_the_size_asked_for(tokenizer: TextTokenizer) -> None:
    assert tokenizer.vocab_size == 600
    assert tokenizer.begin_id == tokenizer.end_id == tokenizer.backend.token_to_id(END_OF_DOCUMENT)


@given(text=st.one_of(TRICKY, ANY_TEXT))
def test_any_text_survives_the_round_trip(tokenizer: TextTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.end_id not in ids


def test_a_marker_spelled_in_a_text_is_text(tokenizer: TextTokenizer) -> None:
    text = f"before{END_OF_DOCUMENT}after"
    ids = tokenizer.encode(text)
    assert tokenizer.end_id not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_batch([text, ""]) == [ids, []]


@pytest.fixture(scope="module")
def greedy_tokenizer() -> TextTokenizer:
    """One with a token for every pre-token of the tricky characters: a cut inside a pre-token always shows."""
    runs = ["".join(run) for length in (2, 3, 4) for run in itertools.product(" \n\t", repeat=length)]
    words = ["ab", "a's", "s1", "1b", ".,", ". ", "é漢", "a\n", " a"]
    return train_tokenizer([f"x{run}" for run in [*runs, *words] for _ in range(3)], 2000)


@settings(max_examples=400)
@given(text=st.one_of(BLANKS, TRICKY), size=st.integers(1, 6))
def test_cutting_a_text_changes_no_id(greedy_tokenizer: TextTokenizer, text: str, size: int) -> None:
    tokenizer = greedy_tokenizer
    pieces = list(cut_safely(text, size))
    assert "".join(pieces) == text
    assert all(len(piece) >= size for piece in pieces[:-1])
    assert [token for ids in tokenizer.encode_batch(pieces) for token in ids] == tokenizer.encode(text)


def test_only_gpt_pre_tokenisation_is_cut(tokenizer: TextTokenizer, texts: list[str]) -> None:
    long_text = "".join(texts) * 10
    assert len(list(tokenizer.pieces(long_text))) > 1
    other = Tokenizer(models.BPE())
    other.pre_tokenizer = pre_tokenizers.Metaspace()
    other.add_special_tokens([END_OF_DOCUMENT])
    assert list(TextTokenizer(other, 0, 0).pieces(long_text)) == [long_text]
    normalised = Tokenizer.from_str(tokenizer.backend.to_str())
    normalised.add_tokens(["two words"])
    assert list(TextTokenizer(normalised, 0, 0).pieces(long_text)) == [long_text]


def test_transformers_loads_the_same_ids(tokenizer: TextTokenizer, saved: Path, texts: list[str]) -> None:
    transformers = pytest.importorskip("transformers")
    loaded = transformers.AutoTokenizer.from_pretrained(saved)
    assert loaded.eos_token_id == loaded.bos_token_id == tokenizer.end_id
    assert len(loaded) == tokenizer.vocab_size
    for text in [*texts[:2], "  two  spaces , and 漢字🛶 don't \n\n", ""]:
        ids = tokenizer.encode(text)
        assert loaded(text, add_special_tokens=False).input_ids == ids
        assert loaded(text).input_ids == [tokenizer.begin_id, *ids]  # a prompt begins a document
        assert loaded.decode(ids) == text


def test_training_gives_the_same_bytes_in_every_process(saved: Path) -> None:
    code = (
        "from oarlock.train.data import plays, train_tokenizer\n"
        "scenes = plays.read_scenes(held_out=True)\n"
        "print(train_tokenizer([next(scenes).text for _ in range(6)], 600).backend.to_str(pretty=True), end='')"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        assert json.loads(done.stdout) == json.loads((saved / "tokenizer.json").read_text())
        assert done.stdout == (saved / "tokenizer.json").read_text()


def test_saved_tokenizer_loads_again(tokenizer: TextTokenizer, saved: Path, texts: list[str], tmp_path: Path) -> None:
    for location in (saved, saved / "tokenizer.json"):
        loaded = load_tokenizer(location)
        assert (loaded.begin_id, loaded.end_id) == (tokenizer.begin_id, tokenizer.end_id)
        assert loaded.encode(texts[0]) == tokenizer.encode(texts[0])
        assert loaded.digest() == tokenizer.digest()
    (saved / "special_tokens_map.json").write_text('{"eos_token": "<|endoftext|>"}')
    load_tokenizer(saved).save(tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (tmp_path / "copy" / "tokenizer.json").read_bytes() == (saved / "tokenizer.json").read_bytes()


def other_tokenizer(folder: Path, **files: object) -> Path:
    """A folder as a model of others has it: its own markers, padding and truncation switched on."""
    backend = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<|im_end|>"])
    backend.enable_padding(length=16, pad_id=3)
    backend.enable_truncation(4)
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("files", "begin", "end"),
    [
        ({"tokenizer_config": {"eos_token": "</s>", "bos_token": "<s>"}}, 3, 4),
        ({"tokenizer_config": {"eos_token": {"content": "</s>"}, "bos_token": None}}, 4, 4),
        ({"special_tokens_map": {"eos_token": "</s>"}, "config": {"eos_token_id": 5, "bos_token_id": 3}}, 3, 4),
        ({"tokenizer_config": {"eos_token": "<gone>"}, "config": {"eos_token_id": [5, 4]}}, 5, 5),
        ({"config": {"hidden_size": 8}, "generation_config": {"eos_token_id": 4, "bos_token_id": 3}}, 3, 4),
    ],
)
def test_markers_are_found_where_models_keep_them(
    tmp_path: Path, files: dict[str, object], begin: int, end: int
) -> None:
    loaded = load_tokenizer(other_tokenizer(tmp_path / "model", **files))
    assert (loaded.begin_id, loaded.end_id) == (begin, end)
    assert loaded.encode("abababababab") == [2] * 6  # neither cut nor padded
    assert loaded.vocab_size == 6


def test_generation_asks_the_model_first_and_gets_all_its_end_tokens(tmp_path: Path) -> None:
    files = {"tokenizer_config": {"eos_token": "</s>"}, "generation_config": {"eos_token_id": [5, 4, 99]}}
    folder = other_tokenizer(tmp_path / "model", **files)
    backend = load_tokenizer(folder).backend
    assert marker_ids(folder, backend, "eos", BY_TOKENIZER) == [4]
    assert marker_ids(folder, backend, "eos", BY_MODEL) == [5, 4]  # there is no token 99
    assert marker_ids(folder, backend, "bos", BY_MODEL) == []


def test_a_bare_tokenizer_file_gets_a_config_when_saved(tmp_path: Path) -> None:
    folder = other_tokenizer(tmp_path / "model", config={"eos_token_id": 4, "bos_token_id": 3})
    load_tokenizer(folder).save(tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</s>")
    assert not (tmp_path / "copy" / "config.json").exists()


def test_wrong_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no tokenizer at .*tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ValueError, match=r"is not a tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="which token ends a document"):
        load_tokenizer(other_tokenizer(tmp_path / "unmarked"))
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: expected a JSON object"):
        load_tokenizer(other_tokenizer(tmp_path / "list", tokenizer_config=[]))
    with pytest.raises(ValueError, match=f"vocab_size = 256: .* at least {SMALLEST_VOCABULARY}"):
        train_tokenizer(["text"], 256)


@pytest.mark.parametrize("run", ["x", "xyzw" * 3, " ", "\n", "海舟木櫂"])
def test_text_without_an_end_of_word_does_not_hang_the_training(run: str) -> None:
    """Training on a word takes time quadratic in its length: 300 kB of one word would take a quarter of an hour."""
    text = "a b " + run * (300_000 // len(run.encode())) + "c"
    tokenizer = train_tokenizer([text], 300)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_small_text_gives_a_small_vocabulary() -> None:
    assert SMALLEST_VOCABULARY <= train_tokenizer(["aaaa bbbb aaaa"], 5000).vocab_size < 300
