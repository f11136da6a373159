"""The first value that is not finite: which call or backward node made it, told from those that only pass it on.

with debug.find_nonfinite(model) as found:
    loss(model(batch)).backward()
print(found.report())
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from oarlock.debug.calls import Call, Mark, gradient_name
from oarlock.debug.content import readable
from oarlock.debug.errors import frame_lines
from oarlock.debug.names import OVERWRITING, UNINITIALISED, described, shape_of
from oarlock.debug.recorder import Recorder

_FILLS = {"full", "full_like", "new_full", "fill_", "masked_fill", "masked_fill_", "where", "tensor", "setitem"}
_FILLS |= {"new_tensor", "as_tensor", "scalar_tensor", "constant_pad_nd", "pad"}


@dataclass(frozen=True)
class Held:
    """How many values of a tensor are not finite."""

    name: str
    described: str
    nan: int
    inf: int

    def __str__(self) -> str:
        counts = [f"nan={self.nan}" if self.nan else "", f"inf={self.inf}" if self.inf else ""]
        return f"{self.name} {self.described} {' '.join(filter(None, counts)) or 'finite'}"


@dataclass(frozen=True)
class Finding:
    """A call or node with something in its results that is not finite."""

    name: str
    phase: str
    step: int
    role: str
    """`producer`: no input had it; `outside`: a tensor that no record made, such as a weight or data."""
    inputs: tuple[Held, ...]
    outputs: tuple[Held, ...]
    where: tuple[str, ...]

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"{self.role} {self.name} ({self.phase}, step {self.step})"]
        lines += [f"  input  {held}" for held in self.inputs]
        lines += [f"  output {held}" for held in self.outputs]
        return [*lines, *(["  made here:", *self.where] if self.where else [])]


def find_nonfinite(model: nn.Module | None = None) -> NonFinite:
    """A context that watches all results of calls and all gradients for values that are not finite.

    A producer of NaN has NaN in its results and none in its inputs; whoever has it in its inputs passes it on. The same
    for infinities, except where a program fills them in on purpose (`masked_fill`, `where`, `full`, ...). A call is not
    looked at twice, and all is forgotten with the context but what was found.

    Args:
        model: gives modules and parameters their names.
    """
    return NonFinite(model)


class NonFinite(Recorder):
    """The recorder behind `find_nonfinite`."""

    def __init__(self, model: nn.Module | None = None) -> None:
        super().__init__(model, stacks=True, nodes=True)
        self.nan: Finding | None = None
        """The first producer of NaN."""
        self.inf: Finding | None = None
        """The first producer of infinities that were not filled in."""
        self.num_passed_on = 0
        """Calls and nodes that had NaN in their inputs and results."""

    @property
    def first(self) -> Finding | None:
        """The first producer of NaN; without any NaN, the first of infinities."""
        return self.nan or self.inf

    def report(self) -> str:
        """What was found, in lines; the first begins with `producer` or `outside`."""
        if self.first is None:
            return "all values are finite"
        lines = self.first.lines()
        if self.nan is not None and self.inf is not None:
            lines += ["infinities came first:", *self.inf.lines()]
        return "\n".join([*lines, f"passed on by {self.num_passed_on:,} calls and nodes"])

    def on_begin(self, call: Call, arguments: list[Tensor]) -> Any:
        unread = call.api in OVERWRITING
        inputs = zip(call.inputs[unread:], arguments[unread:], strict=True)
        return [_held(value.name, tensor) for value, tensor in inputs]

    def on_call(self, call: Call, results: Sequence[Tensor], begun: Any) -> None:
        if call.api in UNINITIALISED:
            return
        outputs = [_held(value.name, tensor) for value, tensor in zip(call.outputs, results, strict=True)]
        self._judge(call.name, call, call.phase, begun or [], outputs)

    def on_node(self, mark: Mark, node: Any, to: Any, came: Any) -> None:
        inputs = [_held(gradient_name(mark, i), g) for i, g in enumerate(came) if g is not None]
        outputs = []
        for edge, gradient in zip(node.next_functions, to, strict=False):
            if gradient is not None:
                value = self.value_at(edge)
                outputs.append(_held("" if value is None else f"{value.name}@grad", gradient))
        self._judge(f"{mark.call.name}Backward", mark.call, "backward", inputs, outputs)

    def _judge(self, name: str, call: Call, phase: str, inputs: list[Held], outputs: list[Held]) -> None:
        for kind in ("nan", "inf"):
            if getattr(self, kind) is not None:
                if kind == "nan" and _any(inputs, kind) and _any(outputs, kind):
                    self.num_passed_on += 1
                continue
            role = ""
            if _any(inputs, kind) and not (kind == "inf" and call.api in _FILLS):
                # Nothing has made it so far, so it was there before.
                role = "outside, first used by" if kind == "nan" else ""
            elif _any(outputs, kind) and not (kind == "inf" and call.api in _FILLS):
                role = "producer"
            if role:
                finding = Finding(
                    name, phase, self.step_number, role, tuple(inputs), tuple(outputs), tuple(self._where_lines(call))
                )
                setattr(self, kind, finding)

    def _where_lines(self, call: Call) -> list[str]:
        assert self.stacks is not None
        return frame_lines(self.stacks.frames(call.stack))


def _any(tensors: Iterable[Held], kind: str) -> bool:
    return any(getattr(held, kind) for held in tensors)


def _held(name: str, tensor: Tensor) -> Held:
    values, words = readable(tensor), described(tensor.dtype, shape_of(tensor)).replace("_", " ")
    if values is None or not (values.dtype.is_floating_point or values.dtype.is_complex):
        return Held(name, words, 0, 0)
    if values.dtype.itemsize == 1:
        values = values.float()  # torch computes nothing with 8 bits
    if bool(values.isfinite().all()):
        return Held(name, words, 0, 0)
    return Held(name, words, int(values.isnan().sum()), int(values.isinf().sum()))
