"""Chat templates against transformers: the same text, tokens and assistant mask."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_models import TEMPLATES, write_model
from oarlock.train.config import config_from_dict
from oarlock.train.tasks.chat import DEFAULT_TEMPLATE
from oarlock.train.tasks.examples import Encoder
from oarlock.train.tasks.records import read_conversation
from oarlock.train.tasks.sft import EncodedConversation, encode_conversation

ANSWERED = [
    ("user", "Who steers?"),
    ("assistant", "The cox."),
    ("user", "And <rows>?"),
    ("assistant", "Ünder all é\n\n"),
]


def messages(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: write_model(root / name, name) for name in TEMPLATES} | {"none": write_model(root / "none", None)}


@pytest.fixture(scope="module")
def tokenizers(folders: dict[str, Path]) -> dict[str, Any]:
    return {name: transformers.AutoTokenizer.from_pretrained(folder) for name, folder in folders.items()}


@functools.cache
def encoder(folder: Path, **data: str) -> Encoder:
    return Encoder.of_model(
        config_from_dict({"model": {"directory": str(folder)}, "data": data, "train": {"task": "sft", "steps": 1}})
    )


def encode(folder: Path, conversation: list[dict[str, Any]], **data: str) -> EncodedConversation:
    return encode_conversation(read_conversation({"messages": conversation}, "here"), encoder(folder, **data))


text = st.text(st.characters(codec="utf-8", exclude_characters="\ufdd0\ufdd1"), min_size=1, max_size=20).filter(
    str.strip
)
turns = st.lists(st.tuples(text, text), min_size=1, max_size=3)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None, max_examples=25)
@given(turns=turns, system=st.none() | text)
def test_text_and_ids_are_those_of_transformers(
    folders: dict[str, Path], tokenizers: dict[str, Any], name: str, turns: list[tuple[str, str]], system: str | None
) -> None:
    pairs = [pair for user, assistant in turns for pair in (("user", user), ("assistant", assistant))]
    conversation = messages(*([("system", system)] if system else []), *pairs)
    ours, theirs = encoder(folders[name]), tokenizers[name]
    for length in (len(conversation), len(conversation) - 1):
        for prompt in (False, True):
            expected = theirs.apply_chat_template(conversation[:length], tokenize=False, add_generation_prompt=prompt)
            assert ours.template.render(conversation[:length], add_generation_prompt=prompt) == expected
    expected = theirs.apply_chat_template(conversation, return_dict=True)["input_ids"]
    assert encode(folders[name], conversation).ids == expected


@settings(deadline=None, max_examples=40)
@given(turns=turns)
def test_marked_answers_are_those_of_transformers(
    folders: dict[str, Path], tokenizers: dict[str, Any], turns: list[tuple[str, str]]
) -> None:
    conversation = messages(*[pair for u, a in turns for pair in (("user", u), ("assistant", a))])
    found = encode(folders["marked"], conversation)
    expected = tokenizers["marked"].apply_chat_template(
        conversation, return_dict=True, return_assistant_tokens_mask=True
    )
    assert found.is_target.astype(int).tolist() == expected["assistant_masks"]
    assert found.num_bytes.sum() == sum(len(a.encode()) for _, a in turns)
    assert found.is_closed


@pytest.mark.parametrize("name", ["chatml", "marked", "llama", "forgetful"])
def test_answers_without_marks_by_rendering_one_message_more(
    tokenizers: dict[str, Any], folders: dict[str, Path], name: str
) -> None:
    """Oracle: what transformers appends for an answer to the text that asks for it, up to the token that ends it."""
    conversation = messages(*ANSWERED)
    found, theirs = encode(folders[name], conversation), tokenizers[name]
    full = theirs.apply_chat_template(conversation, tokenize=False)
    wanted = np.zeros(len(full), bool)
    for index in (1, 3):
        before = theirs.apply_chat_template(conversation[:index], tokenize=False, add_generation_prompt=True)
        assert full.startswith(before)
        end = theirs.eos_token
        upto = full.index(end, full.index(conversation[index]["content"].strip(), len(before))) + len(end)
        wanted[len(before) : upto] = True
    places = theirs(full, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert found.is_target.tolist() == [bool(wanted[a:b].any()) for a, b in places]
    assert found.is_closed
    assert [full[a:b] for (a, b), t in zip(places, found.is_target, strict=True) if t].count(end) == 2


def test_the_default_template_begins_as_documents_do_and_is_saved_for_transformers(
    folders: dict[str, Path], tokenizers: dict[str, Any]
) -> None:
    conversation = messages(("system", "Be brief."), ("user", "Who?"), ("assistant", "I."))
    found = encode(folders["none"], conversation)
    end = "<|endoftext|>"
    wanted = f"{end}System:\nBe brief.\n\nUser:\nWho?\n\nAssistant:\nI.{end}\n\n"
    theirs = tokenizers["none"]
    assert theirs.decode(found.ids) == wanted
    expected = theirs.apply_chat_template(
        conversation, chat_template=DEFAULT_TEMPLATE, return_dict=True, return_assistant_tokens_mask=True
    )
    assert (found.ids, found.is_target.tolist()) == (
        expected["input_ids"],
        list(map(bool, expected["assistant_masks"])),
    )
    assert theirs.decode([i for i, t in zip(found.ids, found.is_target, strict=True) if t]) == f"I.{end}"


def test_plain_text_is_a_document_whose_continuation_is_learned(folders: dict[str, Path]) -> None:
    ours = encoder(folders["marked"])
    example = read_conversation({"prompt": "the oar <|im_end|>", "completion": " moves"}, "here")
    found = encode_conversation(example, ours)
    begin, end = ours.tokenizer.begin_id, ours.tokenizer.end_id
    assert found.ids == [begin, *ours.tokenizer.encode("the oar <|im_end|> moves"), end]
    assert end not in found.ids[1:-1]  # a marker that is spelled out is text
    learned = [i for i, t in zip(found.ids, found.is_target, strict=True) if t]
    assert ours.tokenizer.decode(learned[:-1]) == " moves"
    assert learned[-1] == end
    assert found.num_bytes.sum() == len(" moves")


def test_only_the_completion_of_messages_is_learned(folders: dict[str, Path]) -> None:
    whole = messages(*ANSWERED)
    for name in ("chatml", "marked"):
        ours = encoder(folders[name])
        example = read_conversation({"prompt": whole[:3], "completion": whole[3:]}, "here")
        found, all_learned = encode_conversation(example, ours), encode(folders[name], whole)
        assert found.ids == all_learned.ids
        (first, *_) = all_learned.is_target.nonzero()[0]
        assert found.is_target.sum() < all_learned.is_target.sum()
        assert not found.is_target[first]
        assert (found.is_target <= all_learned.is_target).all()


def test_a_template_may_be_given_or_lie_in_the_tokenizer_config(folders: dict[str, Path], tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert encoder(folders["marked"], chat_template=str(own)).template.render(messages(*ANSWERED[:2])) == (
        "[Who steers?][The cox.]"
    )
    with pytest.raises(FileNotFoundError, match=r"data.chat_template = .*no such file"):
        encoder(folders["marked"], chat_template="absent.jinja")
    folder = write_model(tmp_path / "old", "chatml")
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    for value in (named[1]["template"], named):
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": value}))
        encoder.cache_clear()
        assert encoder(folder).template.render(messages(*ANSWERED)) == "Who steers?"


def test_templates_run_in_a_sandbox_and_errors_are_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    for source, problem in (
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ raise_exception('no system role here') }}", "no system role here"),
        ("{{ messages[9].content }}", "has no element 9"),
        ("{{ 1 / 0 }}", "division by zero"),
    ):
        own.write_text(source)
        encoder.cache_clear()
        with pytest.raises(ValueError, match=rf"own\.jinja refuses the conversation: [^\n]*{problem}[^\n]*$"):
            encode(folders["marked"], messages(*ANSWERED), chat_template=str(own))
    own.write_text("{% for %}")
    encoder.cache_clear()
    with pytest.raises(ValueError, match=r"own\.jinja is no Jinja template"):
        encode(folders["marked"], messages(*ANSWERED), chat_template=str(own))
    own.write_text("{{ messages[-1].content | upper }}")
    encoder.cache_clear()
    with pytest.raises(ValueError, match=r"answer 1 cannot be told from the rest.*data\.chat_template"):
        encode(folders["marked"], messages(("user", "who"), ("assistant", "me")), chat_template=str(own))
