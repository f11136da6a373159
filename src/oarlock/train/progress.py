"""What a person sees while a run goes on: a live line on a terminal, one plain line every few steps elsewhere.

    with Progress(total_steps=800, every=10) as progress:
        progress.note("packed 1,204 sequences")
        progress.update(120, loss=3.214, grad_norm=0.91, lr=1e-3, tokens_per_second=9800, mm_share=0.62)

The plain line:

    step   120/800  15.0%  loss 3.214  grad 0.91  lr 1.0e-3  9.8k tok/s  mm 0.62  mem 1.21 GiB  eta 4m10s
"""

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from oarlock.train.units import format_bytes, format_count, format_duration, format_scientific

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["Progress"]

_REFRESH_SECONDS = 0.1
_NOT_SHOWN = {"chosen_logp", "rejected_logp"}
_ETA_STEPS = 50  # the estimate follows the pace of so many last steps


class Progress:
    """Shows the steps of a run; silent on every rank but 0.

    Args:
        total_steps: steps of the whole run.
        every: steps between plain lines; the first and the last step are always printed.
        rank: rank of this process.
        stream: where to print; standard error by default.
        live: True for the live line, False for plain lines; None decides by `stream` being a terminal.
        clock: seconds, for tests.

    Raises:
        ImportError: `live=True` without rich. (With `live=None` a terminal without rich gets plain lines.)
    """

    def __init__(
        self,
        total_steps: int,
        *,
        every: int = 10,
        rank: int = 0,
        stream: TextIO | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_steps, self.every = total_steps, max(1, every)
        self._stream = stream or sys.stderr
        self._silent = rank != 0
        self._clock = clock
        self._marks: deque[tuple[int, float]] = deque(maxlen=_ETA_STEPS + 1)
        self._drawn_at = -math.inf
        self._first_step: int | None = None
        self._live = None if self._silent else _start_live(self._stream, live)

    def start(self, step: int) -> None:
        """Begin to measure the pace: `step` steps are done. Call it before the first step, and again after a pause."""
        self._marks.clear()
        self._marks.append((step, self._clock()))

    def update(self, step: int, **values: float | None) -> None:
        """Show the state after `step` steps.

        Args:
            step: steps done.
            values: `loss`, `accuracy`, `margin`, `grad_norm`, `lr`, `tokens_per_second`, `mm_share`, `memory_bytes`;
                what is missing or None is not shown, nor are `chosen_logp` and `rejected_logp`.
        """
        self._marks.append((step, self._clock()))
        if self._silent:
            return
        first = self._first_step is None
        self._first_step = step if first else self._first_step
        last = step >= self.total_steps
        fields = _fields(values)
        if (eta := self.eta(step)) is not None and not last:
            fields.append(("eta", format_duration(eta)))
        if self._live is not None:
            now = self._clock()
            if last or now - self._drawn_at >= _REFRESH_SECONDS:
                self._drawn_at = now
                self._live.update(_live_line(step, self.total_steps, fields), refresh=True)
        elif first or last or step % self.every == 0:
            self._print("  ".join([step_text(step, self.total_steps), *(" ".join(f).strip() for f in fields)]))

    def note(self, text: str) -> None:
        """Print a line that stays, above the live line if there is one."""
        if not self._silent:
            self._print(text)

    def eta(self, step: int) -> float | None:
        """Seconds left at the pace of the last steps; None while the pace is unknown."""
        (first_step, begin), (last_step, end) = (self._marks[0], self._marks[-1]) if self._marks else ((0, 0), (0, 0))
        if last_step <= first_step:
            return None
        return (end - begin) / (last_step - first_step) * max(0, self.total_steps - step)

    def close(self) -> None:
        """Leave the last state on the screen and give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _print(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)


def step_text(step: int, total_steps: int) -> str:
    """`step   120/800  15.0%`, of equal width for all steps of a run."""
    width = max(5, len(str(total_steps)))
    return f"step {step:>{width}}/{total_steps}  {100 * step / max(1, total_steps):4.1f}%"


def _fields(values: dict[str, float | None]) -> list[tuple[str, str]]:
    """(label, value) of what is known, in the order of the line."""
    shapes: dict[str, tuple[str, Callable[[float], str]]] = {
        "loss": ("loss", lambda v: f"{v:.3f}"),
        "accuracy": ("acc", lambda v: f"{v:.2f}"),
        "margin": ("margin", lambda v: f"{v:.2f}"),
        "grad_norm": ("grad", lambda v: f"{v:.2f}"),
        "lr": ("lr", lambda v: format_scientific(v, 1)),
        "tokens_per_second": ("", lambda v: f"{format_count(v)} tok/s"),
        "mm_share": ("mm", lambda v: f"{v:.2f}"),
        "memory_bytes": ("mem", format_bytes),
    }
    if unknown := sorted(set(values) - set(shapes) - _NOT_SHOWN):
        raise TypeError(f"progress shows {', '.join(shapes)}; not {', '.join(unknown)}")
    return [(label, shape(v)) for name, (label, shape) in shapes.items() if (v := values.get(name)) is not None]


def _start_live(stream: TextIO, live: bool | None) -> "Live | None":
    if live is None and not stream.isatty():
        return None
    if live is False:
        return None
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError as error:
        if live is None:
            return None
        raise ImportError("the live line needs rich: pip install rich (or the extra `oarlock[train]`)") from error
    # Only what would land on the same terminal is moved above the live line; a redirected stdout stays redirected.
    display = Live(
        console=Console(file=stream, force_terminal=live),
        auto_refresh=False,
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
    )
    display.start()
    return display


def _live_line(step: int, total_steps: int, fields: list[tuple[str, str]]) -> Any:
    """A bar, the step and the fields in one line; what does not fit is cut at the right."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    text = Text(step_text(step, total_steps), style="bold", no_wrap=True, overflow="ellipsis")
    for label, value in fields:
        text.append(f"  {label} " if label else "  ", style="dim not bold")
        text.append(value, style="not bold")
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=16)
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_row(ProgressBar(total=max(1, total_steps), completed=step, width=16), text)
    return line
