"""All ranks of a save do a step, or none has done it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from oarlock.checkpoint.manifest import CheckpointError
from oarlock.ranks import OtherRankFailed, Ranks


def all_or_none(ranks: Ranks, action: Callable[[], Any], failure: str) -> list[Any]:
    """Run `action` on every rank and return what each rank's returned (JSON); if one fails, all fail.

    Raises:
        CheckpointError: `failure` with the reasons of the ranks that failed. A rank whose own failure is not about
            the disk (a wrong argument, Ctrl-C) raises that one instead.
    """
    value, error = None, None
    try:
        value = action()
    except BaseException as caught:
        error = caught
    try:
        told = None if error is None or isinstance(error, OtherRankFailed) else describe_error(error)
        with in_touch(failure, error):
            reports = ranks.gather({"value": value, "error": told})
        if error is not None and not isinstance(error, (OSError, CheckpointError, OtherRankFailed)):
            raise error
        reasons = {rank: report["error"] for rank, report in enumerate(reports) if report["error"]}
        if reasons:
            where = "" if ranks.size == 1 else "rank {}: "
            text = "; ".join(where.format(rank) + reason for rank, reason in reasons.items())
            raise CheckpointError(f"{failure}: {text}") from error
    finally:
        error = None  # with its traceback it would keep this frame, and what is to be saved, in a cycle
    return [report["value"] for report in reports]


@contextmanager
def in_touch(failure: str, error: BaseException | None = None) -> Iterator[None]:
    """In the block ranks talk; what torch.distributed raises when a process is gone or late becomes a CheckpointError.

    Args:
        failure: begins the message.
        error: why this rank could not go on anyhow: the cause, if there is one.
    """
    try:
        yield
    except RuntimeError as lost:
        reason = str(lost).partition("\n")[0]
        raise CheckpointError(f"{failure}: lost contact with another rank ({reason})") from (error or lost)


def describe_error(error: BaseException) -> str:
    """One line for an error; an OSError without the path of the temporary directory."""
    if isinstance(error, OSError) and error.strerror:
        name = str(error.filename).rpartition("/")[2] if error.filename else ""
        return error.strerror + (f" ({name})" if name else "")
    return f"{type(error).__name__}: {error}" if not isinstance(error, CheckpointError) else str(error)
