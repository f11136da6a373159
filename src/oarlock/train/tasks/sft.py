"""Supervised fine-tuning: predict what the assistant says in conversations, given the rest.

A .jsonl file has one conversation a line:

    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}]}
    {"prompt": "plain text", "completion": " and how it goes on"}
    {"prompt": [messages], "completion": [messages]}

Messages become text by the model's chat template. Plain text stays as it is, between the markers of a document.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from oarlock.train.config import TrainConfig
from oarlock.train.data.arrays import ArrayWriter, Kinds
from oarlock.train.data.token_file import TokenFile, token_dtype
from oarlock.train.tasks.chat import Span
from oarlock.train.tasks.examples import Encoder, Format, PreparedExamples, prepare_examples
from oarlock.train.tasks.pretrain import Pretrain
from oarlock.train.tasks.records import Continuation, Conversation, Record, Records, read_conversation


class SupervisedFineTuning(Pretrain):
    """Loss: the mean of -log p over the assistant's tokens, with what ends an answer; measure: bits per byte of it."""

    def prepare(self) -> PreparedExamples:
        data = prepare_conversations(self.config)
        self.notes = data.notes
        return data


def prepare_conversations(config: TrainConfig) -> PreparedExamples:
    """Conversations as a `TokenFile` whose targets are the assistant's tokens.

    Raises:
        ValueError, FileNotFoundError: model, template or a record do not fit; the message names the line.
    """
    encoder = Encoder.of_model(config)
    records = Records(config.data, "sft", key=lambda record: record, check=read_conversation)
    length = config.data.sequence_length
    form = Format(_arrays, lambda side, writer: _write(side, writer, encoder, length), _open)
    return prepare_examples(config, encoder, records, form, {})


@dataclass(frozen=True)
class EncodedConversation:
    """The tokens of a conversation, N of them."""

    ids: list[int]
    is_target: np.ndarray
    """bool [N], whether the assistant says it: the token shares a character with an answer."""
    num_bytes: np.ndarray
    """int64 [N], UTF-8 bytes of an answer in the characters of a target; 0 for a special token."""
    is_closed: bool
    """Whether a special token follows the last answer."""


def encode_conversation(example: Conversation | Continuation, encoder: Encoder) -> EncodedConversation:
    """All tokens of an example, none cut off.

    Raises:
        ValueError: the template refuses the example.
    """
    if isinstance(example, Continuation):
        text = example.prompt + example.completion
        coded = encoder.tokenizer.backend.encode(text, add_special_tokens=False)
        found = _answers(text, [(len(example.prompt), len(text))], coded.ids, coded.offsets, frozenset())
        return EncodedConversation(
            [encoder.tokenizer.begin_id, *found.ids, encoder.tokenizer.end_id],
            np.concatenate([[False], found.is_target, [True]]),
            np.concatenate([[0], found.num_bytes, [0]]),
            is_closed=True,
        )
    text, spans = encoder.template.render_with_answers(example.messages, example.first, tools=example.tools)
    coded = encoder.chat.encode(text, add_special_tokens=False)
    return _answers(text, spans, coded.ids, coded.offsets, encoder.special_ids)


def _answers(
    text: str, spans: list[Span], ids: list[int], places: list[Span], special_ids: frozenset[int]
) -> EncodedConversation:
    """Mark the tokens that share a character with a span, and share out the spans' bytes among them."""
    is_target, num_bytes = np.zeros(len(ids), bool), np.zeros(len(ids), np.int64)
    which, counted, last_target = 0, 0, -1
    for index, (first, last) in enumerate(places):
        while which < len(spans) and first >= spans[which][1]:
            which += 1
        if which == len(spans):
            break
        begin, end = spans[which]
        if last <= begin:
            continue
        is_target[index] = index > 0  # nothing predicts the first token
        counted, upto = max(counted, begin), min(last, end)
        if ids[index] not in special_ids:
            num_bytes[index] = len(text[counted:upto].encode())
        counted, last_target = max(counted, upto), index
    is_closed = last_target >= 0 and ids[last_target] in special_ids
    return EncodedConversation(ids, is_target, num_bytes, is_closed)


def _write(side: Iterator[Record], writer: ArrayWriter, encoder: Encoder, seq_len: int) -> dict[str, Any]:
    writer.append("offsets", [0])
    length, ends, seen, num_cut, num_lost, num_open, num_plain = 0, set(), 0, 0, 0, 0, 0
    for record, where in side:
        example = read_conversation(record, where)
        try:
            found = encode_conversation(example, encoder)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        targets = found.is_target.nonzero()[0]
        if len(targets) == 0:
            raise ValueError(f"{where}: {encoder.template.origin} shows nothing that the assistant says")
        if targets[0] > seq_len:
            raise ValueError(
                f"{where}: {targets[0]} tokens come before the first answer, and data.sequence_length = {seq_len} "
                "leaves no room for it; lengthen the sequences or leave the example out"
            )
        kept = slice(0, seq_len + 1)  # the inputs and the last target
        lost = int((targets > seq_len).sum())
        writer.append("tokens", found.ids[kept])
        writer.append("is_target", found.is_target[kept])
        writer.append("num_bytes", [found.num_bytes[kept].sum()])
        length += len(found.ids[kept])
        writer.append("offsets", [length])
        seen, num_cut, num_lost = seen + 1, num_cut + bool(lost), num_lost + lost
        num_open += not found.is_closed
        num_plain += isinstance(example, Continuation)
        if found.is_closed:
            ends.add(found.ids[targets[-1]])
    notes = []
    if num_plain < seen:
        notes.append(f"{seen - num_plain} conversations by {encoder.template.origin}")
    if num_plain:
        notes.append(f"{num_plain} plain texts, without the chat template")
    if num_cut:
        notes.append(
            f"{num_cut} of {seen} examples are longer than {seq_len} tokens: their ends are cut off, "
            f"{num_lost} tokens of answers are lost"
        )
    if num_open:
        notes.append(f"{num_open} of {seen} examples have no special token after the last answer: nothing to stop at")
    return {"notes": notes, "ends": sorted(ends)}


def _arrays(vocab_size: int) -> Kinds:
    number = np.dtype(np.int64)
    return {"tokens": token_dtype(vocab_size), "offsets": number, "num_bytes": number, "is_target": np.dtype(np.uint8)}


def _open(arrays: dict[str, np.ndarray]) -> TokenFile:
    return TokenFile(arrays["tokens"], arrays["offsets"], arrays["num_bytes"], arrays["is_target"])
