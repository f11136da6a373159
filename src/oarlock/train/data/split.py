"""A deterministic held-out share of any documents, chosen by their content so that copies stay on one side."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from oarlock.train.data.sources import Document


class ContentSplit:
    """Validation = the documents whose 64-bit hash h(text) < share * 2^64, at least one on each side.

    With one distinct text there is nothing to choose from: its last lines become the validation document.

    Args:
        documents: starts a new pass over all documents, without blank ones.
        share: wanted share of documents in (0, 1).
        name: of the corpus, for messages.
    """

    def __init__(self, documents: Callable[[], Iterator[Document]], share: float, name: str):
        check_share(share)
        self._documents = documents
        self._share = share
        self._name = name

    def train(self) -> Iterator[Document]:
        """Documents to train on, in reading order."""
        return self._side(validation=False)

    def validation(self) -> Iterator[Document]:
        """Held-out documents, in reading order."""
        return self._side(validation=True)

    @cached_property
    def _bound(self) -> int | None:
        """Documents hashing below it are held out; None if all texts are the same. One streaming pass."""
        return held_out_bound((content_hash(document.text) for document in self._documents()), self._share)

    def _side(self, *, validation: bool) -> Iterator[Document]:
        bound = self._bound
        for document in self._documents():
            if bound is None:
                head, tail = _cut_at_line(document, self._share)
                yield tail if validation else head
            elif (content_hash(document.text) < bound) == validation:
                yield document


def check_share(share: float) -> None:
    """Refuse a share that leaves one side empty."""
    if not 0 < share < 1:
        raise ValueError(f"validation_share = {share}: must lie between 0 and 1, both excluded")


def held_out_bound(hashes: Iterable[int], share: float) -> int | None:
    """What hashes below it is held out: about `share` of evenly spread 64-bit hashes, at least one on each side.

    None if all hashes are the same.
    """
    smallest, largest = 2**64, -1
    for value in hashes:
        smallest, largest = min(smallest, value), max(largest, value)
    if smallest >= largest:
        return None
    return min(max(int(share * 2**64), smallest + 1), largest)


def content_hash(text: str) -> int:
    """64-bit hash of a text, the same on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _cut_at_line(document: Document, share: float) -> tuple[Document, Document]:
    text, name = document
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    wanted = first + round((last - first) * (1 - share))
    cuts = [cut for cut in (text.rfind("\n", first, wanted), text.find("\n", wanted, last)) if cut >= 0]
    if not cuts:
        raise ValueError(f"{name}: the only document, and a single line, cannot be split; name a validation text")
    cut = min(cuts, key=lambda position: abs(position - wanted)) + 1
    return Document(text[:cut], f"{name} (start)"), Document(text[cut:], f"{name} (end)")
