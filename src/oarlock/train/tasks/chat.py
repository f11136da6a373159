"""Chat templates: messages to the text that a model reads, and where in it the assistant speaks.

The template is the model folder's own (`chat_template.jinja`, or `chat_template` of tokenizer_config.json), rendered
in Jinja's sandbox with the names that `transformers` gives it. Without one it is `DEFAULT_TEMPLATE`.
"""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from oarlock.train.data.markers import read_object
from oarlock.train.tasks.records import Message

DEFAULT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- message.role.capitalize() + ':\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content + eos_token }}
        {%- endgeneration %}
        {{- '\\n\\n' }}
    {%- else %}
        {{- message.content + '\\n\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'Assistant:\\n' }}
{%- endif %}
"""
"""Plain words for the roles, the end token after each answer."""

TEMPLATE_FILE, CONFIG_FILE, SPECIAL_TOKENS_FILE = (
    "chat_template.jinja",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
# Noncharacters of Unicode, which no text that is exchanged may contain, around what a template marks as generated.
_BEGIN, _END = "\ufdd0", "\ufdd1"
_SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

Span = tuple[int, int]
"""Characters [begin, end) of a text."""


class ChatTemplate:
    """A template and the special tokens of its tokenizer.

    Args:
        source: Jinja text.
        special_tokens: `bos_token`, `eos_token`, ... as the template sees them.
        markers: all special tokens as they are spelled; one of them ends an answer.
        origin: where the template comes from, for messages.

    Raises:
        ValueError: no Jinja template.
        ImportError: jinja2 is not installed.
    """

    def __init__(self, source: str, special_tokens: dict[str, str], markers: Sequence[str], origin: str) -> None:
        self.source, self.origin = source, origin
        self.special_tokens = special_tokens
        spelled = "|".join(re.escape(marker) for marker in sorted(markers, key=len, reverse=True))
        self._end_of_answer = re.compile(rf"\s*(?:{spelled})") if spelled else None
        self._template, self._marks_itself = _compile(source, origin)

    @classmethod
    def of_folder(cls, folder: Path, tokenizer: Tokenizer, given: str = "") -> "ChatTemplate":
        """The template of a model's folder, or the Jinja file `given` in its place, or the default one."""
        source, origin = _find_source(folder, given)
        added = tokenizer.get_added_tokens_decoder().values()
        special_tokens = _special_tokens(folder)
        markers = {token.content for token in added if token.special} | set(special_tokens.values())
        return cls(source, special_tokens, sorted(markers), origin)

    def render(
        self, messages: Sequence[Message], *, tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> str:
        """The text of a conversation, as `apply_chat_template(..., tokenize=False)` of transformers gives it.

        Args:
            messages: what was said.
            tools: JSON schemas that some templates show.
            add_generation_prompt: end with what comes before an answer.

        Raises:
            ValueError: the template refuses the conversation.
        """
        text = self._rendered(messages, tools, add_generation_prompt)
        return text.replace(_BEGIN, "").replace(_END, "") if self._marks_itself else text

    def render_with_answers(
        self, messages: Sequence[Message], first: int = 0, *, tools: list[Any] | None = None
    ) -> tuple[str, list[Span]]:
        """The text, and where the assistant's messages from index `first` on stand in it.

        What lies inside `{% generation %}` blocks, if the template has them. Otherwise an answer begins where the text
        of the messages before it, with the generation prompt, ends; it ends after its content, or after the special
        token that follows the content.

        Raises:
            ValueError: the template refuses the conversation, or an answer cannot be found in its text.
        """
        text = self.render(messages, tools=tools)
        if self._marks_itself:
            if re.search(f"[{_BEGIN}{_END}]", json.dumps(messages, ensure_ascii=False)):
                raise ValueError(f"a message holds U+{ord(_BEGIN):X} or U+{ord(_END):X}, which are no characters")
            spans = _marked_spans(self._rendered(messages, tools, False))
            given = self._length_before(text, messages[:first], tools) if first else 0
            return text, [span for span in spans if span[0] >= given]
        return text, [
            self._answer_span(text, messages, index, tools)
            for index in range(first, len(messages))
            if messages[index]["role"] == "assistant"
        ]

    def _answer_span(self, text: str, messages: Sequence[Message], index: int, tools: list[Any] | None) -> Span:
        begin = self._length_before(text, messages[:index], tools)
        content = messages[index].get("content", "").strip()
        at = text.find(content, begin)
        if at < 0 or not content:
            raise self._hidden(index)
        end = at + len(content)
        if self._end_of_answer is not None and (closing := self._end_of_answer.match(text, end)):
            end = closing.end()
        return begin, end

    def _length_before(self, text: str, messages: Sequence[Message], tools: list[Any] | None) -> int:
        before = self.render(messages, tools=tools, add_generation_prompt=True)
        if not text.startswith(before):
            raise self._hidden(len(messages))
        return len(before)

    def _hidden(self, index: int) -> ValueError:
        return ValueError(
            f"{self.origin} rewrites messages, so that answer {index} cannot be told from the rest; mark answers by "
            "{% generation %} ... {% endgeneration %} in a copy of it, and name the copy in data.chat_template"
        )

    def _rendered(self, messages: Sequence[Message], tools: list[Any] | None, add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=list(messages),
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.special_tokens,
            )
        except Exception as error:  # a template is a program: it may fail in any way
            raise ValueError(f"{self.origin} refuses the conversation: {error}") from None


def _compile(source: str, origin: str) -> tuple[Any, bool]:
    """The template, and whether it marks what is generated."""
    try:
        import jinja2
        from jinja2 import ext, nodes, sandbox
    except ImportError as error:
        raise ImportError("chat templates need jinja2: pip install 'oarlock[train]'") from error

    used = []

    class Generation(ext.Extension):
        """`{% generation %}` puts its text between the two marks."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's interface

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            used.append(line)
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller: Any) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # unlike Jinja's own, it leaves < and & alone

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source), bool(used)
    except jinja2.TemplateError as error:
        raise ValueError(f"{origin} is no Jinja template: {error}") from None


def _marked_spans(marked: str) -> list[Span]:
    spans, begin, length = [], -1, 0
    for piece in re.split(f"([{_BEGIN}{_END}])", marked):
        if piece == _BEGIN:
            begin = length
        elif piece == _END:
            spans.append((begin, length))
        else:
            length += len(piece)
    return [span for span in spans if span[0] < span[1]]


def _find_source(folder: Path, given: str) -> tuple[str, str]:
    """The template's text, and where it comes from."""
    if given:
        path = Path(given).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"data.chat_template = {given!r}: no such file")
        return path.read_text(encoding="utf-8"), f"the chat template {given}"
    if (folder / TEMPLATE_FILE).is_file():
        return (folder / TEMPLATE_FILE).read_text(encoding="utf-8"), f"the chat template {folder / TEMPLATE_FILE}"
    found = read_object(folder / CONFIG_FILE).get("chat_template")
    if isinstance(found, list):  # several of them, by name
        found = next((entry["template"] for entry in found if entry.get("name") == "default"), None)
    if isinstance(found, str):
        return found, f"the chat template in {folder / CONFIG_FILE}"
    return DEFAULT_TEMPLATE, "the default chat template"


def _special_tokens(folder: Path) -> dict[str, str]:
    """Names and spellings, from tokenizer_config.json and special_tokens_map.json; the former has the last word."""
    found = {}
    for file in (SPECIAL_TOKENS_FILE, CONFIG_FILE):
        content = read_object(folder / file)
        for name in (f"{kind}_token" for kind in _SPECIAL_TOKENS):
            token = content.get(name)
            spelled = token.get("content") if isinstance(token, dict) else token
            if isinstance(spelled, str):
                found[name] = spelled
    return found
