"""Paddle can lend itself to libraries that `import torch`. Here torch is torch, so these switches change nothing."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Literal

from oarlock.paddle.declare import api

AT = "paddle.compat"
Scope = str | Iterable[str] | None


@api(at="paddle", out=False)
def enable_compat(
    *,
    scope: Scope = None,
    blocked_modules: Scope = None,
    backend: Literal["torch"] = "torch",
    silent: bool = False,
) -> None:
    """Let `import torch` serve Paddle's tensors: it does already."""
    if backend != "torch":
        raise ValueError(f"backend must be 'torch', not {backend!r}")


@api(at="paddle", out=False)
def disable_compat() -> None:
    """Undo `enable_compat`: nothing to do."""


@api(at=AT, out=False)
def enable_torch_proxy(*, scope: Scope = None, blocked_modules: Scope = None, silent: bool = False) -> None:
    """Let `import torch` serve Paddle's tensors: it does already."""


@api(at=AT, out=False)
def disable_torch_proxy() -> None:
    """Undo `enable_torch_proxy`: nothing to do."""


@api(at=AT, out=False)
def extend_torch_proxy_blocked_modules(modules: Scope) -> None:
    """Name modules that are to get torch itself: all of them do."""


@contextlib.contextmanager
def use_torch_proxy_guard(*, enable: bool = True, scope: Scope = None, silent: bool = False) -> Iterator[None]:
    """Within the block, let `import torch` serve Paddle's tensors: it does already."""
    yield
