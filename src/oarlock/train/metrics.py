"""The record of a run: `metrics.jsonl` (one strict JSON object per line) and TensorBoard event files.

    log = MetricsLog("runs/default")
    log.write("event", 0, event="start", environment=environment())
    log.write("eval", 0, loss=8.4, bits_per_byte=3.1, seconds=2.0)
    log.write("train", 1, loss=8.3, grad_norm=2.5, lr=1e-4, tokens=8192, tokens_per_second=9800.0)

Fields of the kinds `train` and `eval`, all optional: `loss` (nats per token), `grad_norm`, `lr`, `tokens` (seen since
step 1), `tokens_per_second`, `seconds` (trained since step 1, over all resumptions), `memory_bytes`, `mm_share` (share
of the measured matmul peak), `flops` (spent since step 1), `bits_per_byte`; of task dpo, whose loss is per pair,
`accuracy`, `margin`, `chosen_logp` and `rejected_logp` (means over pairs). The kind `event` carries its name in `event`
and whatever belongs to it.
"""

import json
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

__all__ = ["MetricsLog", "read_metrics"]

Kind = Literal["train", "eval", "event"]
FILE_NAME = "metrics.jsonl"
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class MetricsLog:
    """The one writer of a run's metrics; only one rank creates it.

    Args:
        directory: the run's folder; created when the first line is written.
        tensorboard: also write event files to `directory/tb`.

    Raises:
        ImportError: TensorBoard is asked for and not installed.
    """

    def __init__(self, directory: str | os.PathLike[str], tensorboard: bool = True) -> None:
        self.directory = Path(directory)
        self.path = self.directory / FILE_NAME
        self._writer_class = _summary_writer() if tensorboard else None
        self._resumed_step: int | None = None
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def resume(self, step: int) -> None:
        """Go on after `step`: every line of a later step is cut off, atomically, and hidden from TensorBoard.

        What the loop repeats is then recorded once. Everything that belongs to a step must therefore be written before
        the checkpoint of that step, followed by `sync`. `step = -1` forgets everything, for a run that starts over.
        """
        if self._file is not None:
            raise ValueError("resume must come before the first line is written")
        self._resumed_step = step
        if not self.path.exists():
            return
        partial = self.path.with_name(f".{self.path.name}.tmp")
        with open(partial, "wb") as kept:
            for line, record in _lines(self.path):
                if record["step"] <= step:
                    kept.write(line)
            kept.flush()
            os.fsync(kept.fileno())
        os.replace(partial, self.path)

    def write(self, kind: Kind, step: int, **values: Any) -> None:
        """Append one line and flush it; numbers of `train` and `eval` lines also go to TensorBoard as `kind/name`.

        Args:
            kind: `train`, `eval` or `event`.
            step: optimizer steps done.
            values: Python numbers, strings, None, lists and dicts of them. A float that is not finite is written as
                the string "NaN", "Infinity" or "-Infinity", which `read_metrics` turns back.

        Raises:
            FileExistsError: the folder already holds metrics and `resume` was not called.
            TypeError: a value of another type (a tensor: call `.item()` first).
        """
        if kind not in ("train", "eval", "event"):
            raise ValueError(f"kind must be train, eval or event, got {kind!r}")
        record = {"kind": kind, "step": step} | {name: _plain(value, name) for name, value in values.items()}
        if self._file is None:
            self._open()
        assert self._file is not None
        # Unbuffered: one line is one write, so a killed run loses at most the end of its last line.
        line = json.dumps(record, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            while line:  # a disk that fills up takes a part first
                line = line[self._file.write(line) :]
        except OSError as error:
            error.filename = str(self.path)
            raise
        if self._writer is not None and kind != "event":
            for name, value in values.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    self._writer.add_scalar(f"{kind}/{name}", value, step)

    def sync(self) -> None:
        """Bring everything written to the disk, so that no later checkpoint is ahead of the metrics."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Sync and release the files."""
        self.sync()
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()
        self._file = self._writer = None

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        if self._resumed_step is None and self.path.exists() and self.path.stat().st_size:
            raise FileExistsError(
                f"{self.path} belongs to an earlier run; resume that run (--resume auto) or choose another train.out"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the log
        if self._writer_class is not None:
            purge = None if self._resumed_step is None else self._resumed_step + 1
            self._writer = self._writer_class(str(self.directory / "tb"), purge_step=purge, flush_secs=10)
        self._resumed_step = -1 if self._resumed_step is None else self._resumed_step  # reopening after close is fine


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All records of a `metrics.jsonl` (or of the run folder that holds it), in the order of writing.

    A line that a crash left unfinished at the end is passed over, so a running file can be read.

    Raises:
        FileNotFoundError: no such file.
    """
    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"no metrics in {path}")
    records = []
    for _, record in _lines(path):
        if record["kind"] != "event":
            record = {k: _NON_FINITE.get(v, v) if isinstance(v, str) else v for k, v in record.items()}
        records.append(record)
    return records


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Complete lines with their records. A damaged line before the last one is named in a warning and left out."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # torn by a crash, or still being written
            record = _parse(line)
            if record is None:
                warnings.warn(f"{path}:{number}: not a line of metrics, left out", stacklevel=3)
            else:
                yield line, record


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    is_record = isinstance(record, dict) and isinstance(record.get("step"), int) and isinstance(record.get("kind"), str)
    return record if is_record else None


def _plain(value: Any, name: str) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(k): _plain(v, f"{name}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, f"{name}[{i}]") for i, v in enumerate(value)]
    raise TypeError(f"metric {name} is a {type(value).__name__}; pass a Python number or string (.item() of a tensor)")


def _summary_writer() -> type:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            f"TensorBoard files need the extra `oarlock[train]` (pip install tensorboard); "
            f"or set train.tensorboard = false ({error})"
        ) from error
    return SummaryWriter
