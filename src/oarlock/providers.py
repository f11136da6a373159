"""The one registry of backends: an operation has providers, and each one says why it does not apply.

A provider is a function with a priority and a `refuse` predicate that looks at a request (any object that describes the
call) and returns None if it applies, or the reason in words. `select` takes the first that applies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Provider:
    """One way to compute an operation."""

    op: str
    name: str
    function: Callable[..., Any]
    refuse: Callable[[Any], str | None]
    """None if the provider applies to a request, else the reason why not."""
    priority: int


_registry: dict[str, dict[str, Provider]] = {}


def register(
    op: str, name: str, *, priority: int, refuse: Callable[[Any], str | None]
) -> Callable[[Function], Function]:
    """Decorator that adds a function as provider ``name`` of ``op``; a higher priority is tried first.

    Raises:
        ValueError: the operation already has a provider of that name, or the name is ``"auto"``.
    """
    if name == "auto":
        raise ValueError('"auto" stands for the first provider that applies; choose another name')

    def add(function: Function) -> Function:
        providers = _registry.setdefault(op, {})
        if name in providers:
            raise ValueError(f"{op} already has a provider named {name!r}")
        providers[name] = Provider(op, name, function, refuse, priority)
        return function

    return add


def operations() -> list[str]:
    """Names of all operations with at least one provider."""
    return sorted(_registry)


def providers(op: str) -> list[Provider]:
    """The providers of an operation in the order in which they are tried.

    Raises:
        ValueError: nobody registered the operation.
    """
    if op not in _registry:
        raise ValueError(f"unknown operation {op!r}; known: {', '.join(operations()) or 'none'}")
    return sorted(_registry[op].values(), key=lambda provider: (-provider.priority, provider.name))


def select(op: str, request: Any, name: str = "auto") -> Provider:
    """The provider that computes a request.

    Args:
        op: the operation.
        request: what the predicates look at.
        name: a provider's name, or ``"auto"`` for the first that applies.

    Raises:
        ValueError: no such provider, or it does not apply (with its reason).
    """
    provider = choose(op, request, name)
    tell(provider)
    return provider


def tell(provider: Provider) -> None:
    """Tell `watch_choices` that a provider computes something now; for those that keep what `choose` found."""
    if (seen := getattr(_watching, "choices", None)) is not None:
        seen.append((provider.op, provider.name))


@contextmanager
def watch_choices() -> Iterator[list[tuple[str, str]]]:
    """The (operation, provider) that this thread selects within the block, as they come; an inner block takes over."""
    before, own = getattr(_watching, "choices", None), []
    _watching.choices = own
    try:
        yield own
    finally:
        # A block that was left without an end, of any thread, may be collected in the middle of a later one.
        if getattr(_watching, "choices", None) is own:
            _watching.choices = before


_watching = threading.local()


def choose(op: str, request: Any, name: str = "auto") -> Provider:
    """`select` without telling anybody, for those that keep the answer: it depends on the arguments only."""
    candidates = providers(op)
    if name == "auto":
        for provider in candidates:
            if provider.refuse(request) is None:
                return provider
        reasons = "; ".join(f"{provider.name}: {provider.refuse(request)}" for provider in candidates)
        raise ValueError(f"no provider of {op} applies ({reasons})")
    for provider in candidates:
        if provider.name == name:
            reason = provider.refuse(request)
            if reason is not None:
                raise ValueError(f"provider {name!r} of {op} does not apply: {reason}")
            return provider
    raise ValueError(
        f"{op} has no provider {name!r}; choose 'auto' or one of {', '.join(repr(p.name) for p in candidates)}"
    )


def explain(op: str, request: Any) -> list[tuple[str, str | None]]:
    """Each provider in order of priority with the reason why it does not apply (None: it does)."""
    return [(provider.name, provider.refuse(request)) for provider in providers(op)]
