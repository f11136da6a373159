"""What somebody may have meant by a name that is not there: for messages."""

import difflib
import re
from collections.abc import Iterable

_DIGITS = re.compile("[0-9]+")
_WRAPPERS = re.compile(r"^module\.|_orig_mod\.|_checkpoint_wrapped_module\.|_fsdp_wrapped_module\.")
_MOST = 64  # names of one form that are compared in full


def near_names(name: str, known: Iterable[str], count: int = 1, *, cutoff: float = 0.6) -> list[str]:
    """The names most like this one, best first, at most `count`; fast for many, as numbered ones are compared as one.

    Names that are the same without what wrappers of modules put into them come before all others; the rest are at
    least `cutoff` alike, in [0, 1], as `difflib.get_close_matches` counts it.
    """
    known = list(known)
    bare = _WRAPPERS.sub("", name)
    if wrapped := [other for other in known if _WRAPPERS.sub("", other) == bare and other != name]:
        return wrapped[:count]
    forms: dict[str, list[str]] = {}
    for other in known:
        forms.setdefault(_DIGITS.sub("0", other), []).append(other)
    close = difflib.get_close_matches(_DIGITS.sub("0", name), forms, n=count + 1, cutoff=cutoff)
    numbers = set(_DIGITS.findall(name))
    like = [other for form in close for other in forms[form]]
    like.sort(key=lambda other: -len(numbers.intersection(_DIGITS.findall(other))))
    return difflib.get_close_matches(name, like[:_MOST], n=count, cutoff=cutoff) or like[:1]


def near_miss(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the name most like this one, or an empty string."""
    found = near_names(name, known)
    return f"did you mean {found[0]!r}?" if found else ""
