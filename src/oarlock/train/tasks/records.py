"""Records of post-training: .jsonl files, their held-out share, and what a record must look like."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from oarlock.digest import file_digest
from oarlock.train.data import CorpusConfig, plays
from oarlock.train.data.sources import find_files, kind_of, read_records
from oarlock.train.data.split import check_share, content_hash, held_out_bound

ROLES = ("system", "developer", "user", "assistant", "tool")
Message = dict[str, Any]
Record = tuple[dict[str, Any], str]
"""Fields, and the name of the line for messages."""


class Records:
    """Two streams of records: to train on and held out.

    Held out is `validation`, or else the share of records whose key hashes low: the same on every machine, and records
    of the same key on the same side.

    Args:
        config: the [data] section.
        task: who reads them, for messages.
        key: what of a record decides its side.
        check: raises ValueError for a record that the task cannot use.

    Raises:
        FileNotFoundError: nothing at the path.
        ValueError: a file that is not .jsonl.
    """

    def __init__(
        self,
        config: CorpusConfig,
        task: str,
        key: Callable[[dict[str, Any]], Any],
        check: Callable[[dict[str, Any], str], object],
    ) -> None:
        if config.corpus == plays.NAME:
            raise ValueError(f"task {task} learns from examples: name a .jsonl file in data.corpus")
        self._name, self._share = config.corpus, config.validation_share
        self._key, self._check = key, check
        check_share(config.validation_share)
        self._held_out = _jsonl_files(config.validation, task) if config.validation else []
        held_out_paths = {path.resolve() for path in self._held_out}
        self._files = [path for path in _jsonl_files(config.corpus, task) if path.resolve() not in held_out_paths]
        if not self._files:
            raise ValueError(f"nothing is left to train on: validation {config.validation!r} covers {config.corpus!r}")

    def train(self) -> Iterator[Record]:
        """Records to train on, in reading order."""
        return self._read(self._files) if self._held_out else self._side(validation=False)

    def validation(self) -> Iterator[Record]:
        """Held-out records, in reading order."""
        return self._read(self._held_out) if self._held_out else self._side(validation=True)

    def digest(self) -> str:
        """Hash of the files' bytes and of the split."""
        total = hashlib.blake2b(digest_size=16)
        for side in (self._files, self._held_out):
            total.update(f"{len(side)} files;".encode())
            for path in side:
                total.update(f"{path.suffix.lower()} {file_digest(path, 'sha1')};".encode())
        total.update(b"own" if self._held_out else repr(self._share).encode())
        return total.hexdigest()

    @cached_property
    def _bound(self) -> int:
        bound = held_out_bound((self._hash(record) for record, _ in self._read(self._files)), self._share)
        if bound is None:
            count = 0
            for record, where in self._read(self._files):  # records of another kind may all look alike
                self._check(record, where)
                count += 1
            alike = "a single example" if count == 1 else f"{count} examples with one prompt or content"
            raise ValueError(f"{self._name} holds {alike}, nothing can be held out; name data.validation")
        return bound

    def _side(self, *, validation: bool) -> Iterator[Record]:
        bound = self._bound
        for record, where in self._read(self._files):
            if (self._hash(record) < bound) == validation:
                yield record, where

    def _hash(self, record: dict[str, Any]) -> int:
        return content_hash(json.dumps(self._key(record), sort_keys=True, ensure_ascii=False))

    def _read(self, files: list[Path]) -> Iterator[Record]:
        empty = True
        for path in files:
            for record, where in read_records(path):
                if not isinstance(record, dict):
                    raise ValueError(f"{where}: expected an object, got {type(record).__name__}")
                yield record, where
                empty = False
        if empty:
            raise ValueError(f"{', '.join(map(str, files))}: no example in it")


@dataclass(frozen=True)
class Conversation:
    """Messages, of which those from `first` on are to be learned."""

    messages: list[Message]
    first: int
    tools: list[Any] | None


@dataclass(frozen=True)
class Continuation:
    """Plain text and its continuation."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class Preference:
    """A prompt, the better and the worse answer: plain text, or messages to be continued by one message."""

    prompt: str | list[Message]
    chosen: str | list[Message]
    rejected: str | list[Message]
    tools: list[Any] | None


def read_conversation(record: Mapping[str, Any], where: str) -> Conversation | Continuation:
    """What an example of supervised fine-tuning says.

    Raises:
        ValueError: other fields than {"messages"} or {"prompt", "completion"}, a role that does not exist, nothing to
            learn, an empty answer.
    """
    tools = record.get("tools")
    if "messages" in record:
        messages = _messages(record["messages"], "messages", where)
        return Conversation(_ending_in_answer(messages, "messages", where), 0, tools)
    if "prompt" not in record or "completion" not in record:
        raise ValueError(f'{where}: expected the field "messages", or "prompt" and "completion"; got {_fields(record)}')
    prompt, completion = record["prompt"], record["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return Continuation(prompt, _not_empty(completion, "completion", where))
    given = _as_messages(prompt, "user", "prompt", where)
    learned = _as_messages(completion, "assistant", "completion", where)
    return Conversation([*given, *_ending_in_answer(learned, "completion", where)], len(given), tools)


def read_preference(record: Mapping[str, Any], where: str) -> Preference:
    """What an example of preference optimisation says.

    Raises:
        ValueError: a field is missing, a role that does not exist, an answer that is empty or no single message.
    """
    if missing := [name for name in ("prompt", "chosen", "rejected") if name not in record]:
        raise ValueError(f'{where}: expected "prompt", "chosen" and "rejected"; {missing[0]!r} is missing')
    parts = [record[name] for name in ("prompt", "chosen", "rejected")]
    tools = record.get("tools")
    if all(isinstance(part, str) for part in parts):
        prompt, *answers = parts
        chosen, rejected = (
            _not_empty(text, name, where) for text, name in zip(answers, ("chosen", "rejected"), strict=True)
        )
        return Preference(prompt, chosen, rejected, tools)
    prompt = _as_messages(parts[0], "user", "prompt", where)
    answers = []
    for part, name in zip(parts[1:], ("chosen", "rejected"), strict=True):
        answer = _ending_in_answer(_as_messages(part, "assistant", name, where), name, where)
        if len(answer) > 1:
            raise ValueError(f"{where}: {name} must be one message of the assistant, got {len(answer)} messages")
        answers.append(answer)
    return Preference(prompt, answers[0], answers[1], tools)


def _as_messages(value: Any, role: str, field: str, where: str) -> list[Message]:
    return _messages([{"role": role, "content": value}] if isinstance(value, str) else value, field, where)


def _messages(value: Any, field: str, where: str) -> list[Message]:
    """The messages without fields that are null."""
    if not isinstance(value, list) or not value:
        raise ValueError(f'{where}: {field} must be a list of {{"role", "content"}}, got {_shown(value)}')
    messages = []
    for index, message in enumerate(value):
        place = f"{where}: {field}[{index}]"
        if not isinstance(message, dict):
            raise ValueError(f'{place} must be {{"role", "content"}}, got {_shown(message)}')
        message = {name: content for name, content in message.items() if content is not None}
        role = message.get("role")
        if role not in ROLES:
            raise ValueError(f"{place} has the role {role!r}; known: {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str) and not message.get("tool_calls"):
            raise ValueError(f"{place} needs its text in content, got {_shown(message.get('content'))}")
        if role == "assistant" and not message.get("tool_calls"):
            _not_empty(message["content"], f"{field}[{index}], an answer of the assistant,", where)
        messages.append(message)
    return messages


def _ending_in_answer(messages: list[Message], field: str, where: str) -> list[Message]:
    if messages[-1]["role"] != "assistant":
        raise ValueError(f"{where}: {field} ends with the {messages[-1]['role']}; the last message must be an answer")
    return messages


def _not_empty(text: str, what: str, where: str) -> str:
    if not text.strip():
        raise ValueError(f"{where}: {what} is empty")
    return text


def _jsonl_files(location: str, task: str) -> list[Path]:
    files = find_files(location)
    if other := [path for path in files if kind_of(path) != ".jsonl"]:
        raise ValueError(f"task {task} reads .jsonl files; {other[0]} is none")
    return files


def _fields(record: Mapping[str, Any]) -> str:
    return f"fields {', '.join(record) or 'none'}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
