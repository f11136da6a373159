"""Oracle: the whole sequence decoded at once."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from oarlock.generate.tokens import TextStream

TEXT = "To be, or not to be: naïve café — 漢字かな交じり文 👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿 end.\n\tЖук  x"


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def _byte_fallback() -> Tokenizer:
    """Llama 2's decoder: a space before a word is part of it, unknown characters fall back to byte tokens."""
    vocabulary = {"<unk>": 0, "<s>": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    vocabulary |= {word: len(vocabulary) + i for i, word in enumerate(["▁", "▁hello", "▁world", "a", "b"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _streamed(tokenizer, tokens, context=()):
    stream = TextStream(tokenizer.decode, context)
    return [*map(stream.push, tokens), stream.flush()]


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_pieces_join_to_the_text_and_never_split_a_character(byte_level, cut):
    tokens = byte_level.encode(TEXT).ids
    pieces = _streamed(byte_level, tokens[cut:], tokens[:cut])
    assert byte_level.decode(tokens[:cut]) + "".join(pieces) == TEXT
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert pieces[-1] == ""
    assert sum(piece != "" for piece in pieces) > len(tokens) / 2  # it does stream


def test_random_bytes_stream_as_they_decode(byte_level):
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        tokens = torch.randint(0, byte_level.get_vocab_size(), (30,), generator=generator).tolist()
        assert "".join(_streamed(byte_level, tokens)) == byte_level.decode(tokens)


def test_unfinished_character_is_held_and_flushed(byte_level):
    half = byte_level.encode("漢").ids[:-1]
    stream = TextStream(byte_level.decode)
    assert [stream.push(token) for token in half] == [""] * len(half)
    assert stream.flush() == "\N{REPLACEMENT CHARACTER}"


def test_special_tokens_are_silent(byte_level):
    end = byte_level.token_to_id("<|end|>")
    tokens = byte_level.encode("a b").ids
    assert "".join(_streamed(byte_level, [end, *tokens, end])) == "a b"


def test_byte_fallback_and_leading_spaces():
    tokenizer = _byte_fallback()
    word = {word: tokenizer.token_to_id(word) for word in ("<s>", "▁", "▁hello", "▁world", "a", "b")}
    raw = [2 + byte for byte in "漢字é".encode()]
    tokens = [word["<s>"], word["▁hello"], word["▁world"], *raw, word["a"], word["<s>"], word["▁hello"], *raw]
    whole = tokenizer.decode(tokens)
    assert whole == "hello world漢字éa hello漢字é"
    for cut in range(4):
        pieces = _streamed(tokenizer, tokens[cut:], tokens[:cut])
        assert tokenizer.decode(tokens[:cut]) + "".join(pieces) == whole


def test_decodes_few_tokens_at_a_time(byte_level):
    widest = 0

    def decode(tokens):
        nonlocal widest
        widest = max(widest, len(tokens))
        return byte_level.decode(tokens)

    tokens = byte_level.encode(TEXT * 5).ids
    stream = TextStream(decode)
    assert "".join(map(stream.push, tokens)) == TEXT * 5
    assert widest <= 12
