"""A polite stop: SIGTERM, SIGUSR1 and Ctrl-C ask the loop to save and leave after the step in flight."""

import signal
import threading
from types import FrameType, TracebackType


class StopRequest:
    """Context manager; `requested` names the signal that came, or is empty.

    A second Ctrl-C interrupts at once. Other signals may be repeated: launchers and schedulers hand on what their
    workers got already. Outside of the main thread, where Python takes no signals, nothing is handled.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []))

    def __init__(self) -> None:
        self.requested = ""
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        is_main = threading.current_thread() is threading.main_thread()
        for number in self.SIGNALS if is_main else ():
            self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(number, self._before[number])  # type: ignore[arg-type]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
