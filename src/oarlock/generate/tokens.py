"""Text out of a stream of tokens, without half characters."""

from collections.abc import Callable, Sequence

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_HELD = 3  # an unfinished UTF-8 character has at most three bytes, so at most three tokens


class TextStream:
    """Decodes tokens as they come: the pieces joined are the text of the whole sequence.

    A byte-level token may end in the middle of a character; its text is held back until the character is
    complete. Only a few tokens are decoded at a time, from the last place but one where the text was whole.

    Args:
        decode: token ids to text, for instance `tokenizers.Tokenizer.decode`.
        context: tokens before the stream (the prompt). A tokenizer may drop the space before the first
            word of a text, so what a token means depends on whether one came before it.
    """

    def __init__(self, decode: Callable[[list[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._context = list(context)
        self._fresh: list[int] = []
        self._shown = len(decode(self._context))

    def push(self, token: int) -> str:
        """Text that `token` completes; empty while a character is unfinished."""
        self._fresh.append(token)
        text = self._decode(self._context + self._fresh)
        whole = text.rstrip(_REPLACEMENT)
        if len(self._fresh) > _MAX_HELD:  # some of it is no character at all
            whole = text[: max(len(whole), len(text) - _MAX_HELD)]
        piece = whole[self._shown :]
        self._shown = max(self._shown, len(whole))
        if whole == text and self._decode(self._fresh):  # special tokens decode to nothing: no context for a word
            self._context, self._fresh = self._fresh, []
            self._shown = len(self._decode(self._context))
        return piece

    def flush(self) -> str:
        """What is held back at the end: U+FFFD for bytes that never became a character."""
        text = self._decode(self._context + self._fresh)
        piece, self._shown = text[self._shown :], len(text)
        return piece
