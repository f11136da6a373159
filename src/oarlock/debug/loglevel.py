"""Log lines of calls and backward nodes, for a region, for some modules, or for all.

    debug.set_level(1)                                               # from now on, on this thread
    with debug.loglevel(3, modules=["layers.3"], backward=True, model=model):
        loss = model(batch)
    loss.backward()                                                  # only nodes made in the region are logged

| level | line |
|---|---|
| 1 | API and module |
| 2 | + dtypes and shapes, autocast, promotion, the backend chosen (of torch's attention: those it may choose from) |
| 3 | + names, the place in the program, change of memory |

Lines go through `logging` (`oarlock.debug`), each with its rank; calls in custom Functions are indented.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from oarlock.debug.calls import Call, Mark
from oarlock.debug.errors import own_frames
from oarlock.debug.names import described, shape_of
from oarlock.debug.recorder import Recorder
from oarlock.providers import watch_choices
from oarlock.ranks import Ranks

LOGGER = logging.getLogger("oarlock.debug")
_LEVELS = (0, 1, 2, 3)
_global: _Log | None = None
_entered = threading.local()


@contextmanager
def loglevel(
    level: int, *, modules: Sequence[str] = (), backward: bool = False, model: nn.Module | None = None
) -> Iterator[None]:
    """Log the calls of a block. Of blocks around each other the innermost that is for a module decides.

    Args:
        level: 0 to 3; 0 logs nothing.
        modules: only calls in these modules, by path; empty: all calls.
        backward: also log the nodes that the block makes when they run, even after the block.
        model: gives modules their paths; without it they are named by their classes.

    Raises:
        ValueError: unknown level.
    """
    with _Log(level, modules, backward, model):
        yield


def set_level(level: int, *, model: nn.Module | None = None) -> None:
    """Log all calls of this thread and their backward nodes from now on; 0 ends it.

    Args:
        level: 0 to 3.
        model: gives modules their paths.

    Raises:
        ValueError: unknown level; RuntimeError: another mode of torch has been entered since and is still there.
    """
    global _global
    log = _Log(level, (), True, model) if level else None
    _check(level)
    if _global is not None:
        stack = torch.overrides._get_current_function_mode_stack()
        if not stack or stack[-1] is not _global:
            raise RuntimeError("set_level must be called where it was called before, outside contexts entered since")
        _global.__exit__(None, None, None)
    _global = log
    if log is not None:
        log.__enter__()


def _check(level: int) -> None:
    if level not in _LEVELS:
        raise ValueError(f"log level {level!r}: choose 0 (nothing), 1, 2 or 3")


class _Log(Recorder):
    def __init__(self, level: int, modules: Sequence[str], backward: bool, model: nn.Module | None) -> None:
        _check(level)
        super().__init__(model, stacks=level == 3, nodes=backward and level > 0)
        self._level, self._modules = level, tuple(modules)
        self._prefix = f"[rank {Ranks().rank}] "
        self._watched = ExitStack()
        self._choices: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        if self._num_entered == 0:
            self._choices = self._watched.enter_context(watch_choices())
        if not hasattr(_entered, "logs"):
            _entered.logs = []
        _entered.logs.append(self)
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        logs: list[_Log] = _entered.logs
        del logs[len(logs) - 1 - logs[::-1].index(self)]
        if self._num_entered == 0:
            self._watched.close()

    def on_begin(self, call: Call, arguments: list[Tensor]) -> Any:
        if self._level and call.api and self._chosen(call.module) and not self._is_overruled(call.module):
            return _memory() if self._level == 3 else 0, len(self._choices)
        return None

    def on_call(self, call: Call, results: Sequence[Tensor], begun: Any) -> None:
        if begun is None:
            return
        line = f"{call.api} in {call.module or 'the program'}"
        if call.phase != "forward":
            line += f" ({call.phase})"
        if self._level >= 2:
            inputs = [described(v.dtype, v.shape).replace("_", " ") for v in call.inputs]
            outputs = [described(v.dtype, v.shape).replace("_", " ") for v in call.outputs]
            backends = [f"{op} by {name}" for op, name in self._choices[begun[1] :]]
            del self._choices[begun[1] :]  # an outer call does not tell it again
            line += f": {', '.join(inputs) or 'nothing'} -> {', '.join(outputs)}{_promotion(call, backends)}"
        if self._level == 3:
            line += f" | {call.name} at {self._place(call)}{_change(begun[0])}"
        self._write("  " * call.depth + line)

    def _watch(self, node: Any, mark: Mark) -> None:
        if not self._is_overruled(mark.call.module):
            super()._watch(node, mark)

    def _is_overruled(self, module: str) -> bool:
        """Whether a block within this one is for the module."""
        logs: list[_Log] = getattr(_entered, "logs", [])
        if not logs or logs[-1] is self or self not in logs:
            return False
        return any(log._chosen(module) for log in logs[logs.index(self) + 1 :])

    def on_node_begin(self, mark: Mark, node: Any, gradients: tuple[Tensor | None, ...]) -> None:
        if self._level == 3:
            self._local.memory = _memory()

    def on_node(self, mark: Mark, node: Any, to: Any, came: Any) -> None:
        call = mark.call
        if not self._chosen(call.module):
            return
        line = f"backward of {call.api} in {call.module or 'the program'} ({mark.node})"
        if self._level >= 2:
            ends = (
                [described(g.dtype, shape_of(g)).replace("_", " ") for g in gradients if g is not None]
                for gradients in (came, to)
            )
            line += ": " + " -> ".join(", ".join(words) or "nothing" for words in ends)
        if self._level == 3:
            line += f" | {call.name}Backward at {self._place(call)}{_change(getattr(self._local, 'memory', 0))}"
        self._write("  " * call.depth + line)

    def _write(self, line: str) -> None:
        LOGGER.info("%s%s", self._prefix, line)

    def _chosen(self, module: str) -> bool:
        return not self._modules or any(f"{module}.".startswith(f"{chosen}.") for chosen in self._modules)

    def _place(self, call: Call) -> str:
        assert self.stacks is not None
        frames = own_frames(self.stacks.frames(call.stack))
        return f"{frames[0].filename}:{frames[0].line}" if frames else "an unknown place"


def _promotion(call: Call, backends: Sequence[str]) -> str:
    """What changed dtypes on the way, and which backend computed it, or which kernels torch may choose from."""
    words = [*backends]
    device = "cuda" if torch.cuda.is_available() and torch.is_autocast_enabled("cuda") else "cpu"
    inputs = {value.dtype for value in call.inputs if value.dtype.is_floating_point}
    outputs = {value.dtype for value in call.outputs if value.dtype.is_floating_point}
    if torch.is_autocast_enabled(device):
        words.append(f"autocast {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}")
    elif len(inputs) > 1 and len(outputs) == 1:
        words.append(f"promoted to {str(next(iter(outputs))).removeprefix('torch.')}")
    if call.api == "scaled_dot_product_attention":
        kinds = {"flash": torch.backends.cuda.flash_sdp_enabled, "math": torch.backends.cuda.math_sdp_enabled}
        kinds["memory-efficient"] = torch.backends.cuda.mem_efficient_sdp_enabled
        words.append("backends " + "/".join(name for name, enabled in kinds.items() if enabled()))
    return f" [{', '.join(words)}]" if words else ""


def _memory() -> int:
    """Bytes that tensors take on the current CUDA device; torch counts none on a CPU."""
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else -1


def _change(before: int) -> str:
    return "" if before < 0 else f", memory {_memory() - before:+,} B"
