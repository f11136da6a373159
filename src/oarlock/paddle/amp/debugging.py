"""Finding where numbers go wrong: checks of tensors, of what operations give, and how many run in which precision.

`oarlock.debug` tells more: which call of the program, which inputs. These are the names of Paddle, for programs that
use them. Operations have the names of torch.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = [
    "DebugMode",
    "TensorCheckerConfig",
    "check_layer_numerics",
    "check_numerics",
    "collect_operator_stats",
    "disable_operator_stats_collection",
    "disable_tensor_checker",
    "enable_operator_stats_collection",
    "enable_tensor_checker",
]

_SHORT = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}
_COLUMNS = (torch.float16, torch.bfloat16, torch.float32)
_HALF_MAX = torch.finfo(torch.float16).max


class DebugMode(Enum):
    """What a check tells, and whether it ends the program.

    CHECK_NAN_INF_AND_ABORT tells of NaN and infinity and raises; CHECK_NAN_INF tells; CHECK_ALL_FOR_OVERFLOW tells of
    float32 values beyond float16 as well; CHECK_ALL tells of every tensor.
    """

    CHECK_NAN_INF_AND_ABORT = 0
    CHECK_NAN_INF = 1
    CHECK_ALL_FOR_OVERFLOW = 2
    CHECK_ALL = 3


def check_numerics(
    tensor: Tensor, op_type: str, var_name: str, debug_mode: DebugMode = DebugMode.CHECK_NAN_INF_AND_ABORT
) -> tuple[Tensor, Tensor]:
    """Look for NaN and infinity in a tensor; print a line where the mode says so.

    Args:
        tensor: of fractions.
        op_type, var_name: for the line.

    Returns:
        (int64 [3]: how many NaN, infinities, zeros; float32 [3]: largest, smallest, mean). NaN count in the mean only.

    Raises:
        RuntimeError: there are NaN or infinities, and the mode is to abort.
    """
    values = tensor.detach().float()
    num_nan, num_inf, num_zero = values.isnan().sum(), values.isinf().sum(), (values == 0).sum()
    known = values[~values.isnan()]
    nothing = torch.full((), float("nan"), device=values.device)
    largest, smallest = (known.max(), known.min()) if known.numel() else (nothing, nothing)
    stats, numbers = torch.stack([num_nan, num_inf, num_zero]), torch.stack([largest, smallest, values.mean()])
    bad, beyond = bool(num_nan + num_inf), bool(values.abs().max() > _HALF_MAX) if values.numel() else False
    where = f"[device={tensor.device}, op={op_type}, tensor={var_name}, dtype={_SHORT.get(tensor.dtype, tensor.dtype)}]"
    is_told = bad or debug_mode is DebugMode.CHECK_ALL or (debug_mode is DebugMode.CHECK_ALL_FOR_OVERFLOW and beyond)
    if is_told:
        counts = f"num_nan={int(num_nan)}, num_inf={int(num_inf)}, num_zero={int(num_zero)}"
        spread = f"max={float(largest):.6e}, min={float(smallest):.6e}, mean={float(numbers[2]):.6e}"
        _tell(f"[PRECISION]{' [ERROR]' if bad else ''} in {where}, numel={values.numel()}, {counts}, {spread}")
    if bad and debug_mode is DebugMode.CHECK_NAN_INF_AND_ABORT:
        raise RuntimeError(f"There are NAN or INF (num_nan={int(num_nan)}, num_inf={int(num_inf)}) in {where}.")
    return stats, numbers


def check_layer_numerics(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a `forward`: its first tensor and its results are checked, and NaN or infinity raises RuntimeError."""

    @functools.wraps(func)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(self, "full_name", lambda: type(self).__name__)()
        inputs = [x for x in args if isinstance(x, Tensor)]
        if not inputs:
            raise RuntimeError(f"{name}: no tensor among the inputs to check")
        if inputs[0].is_floating_point():
            check_numerics(inputs[0], name, "input")
        result = func(self, *args, **kwargs)
        for number, each in enumerate(tree_leaves(result)):
            if isinstance(each, Tensor) and each.is_floating_point():
                check_numerics(each, name, f"output {number}")
        return result

    return forward


class TensorCheckerConfig:
    """How `enable_tensor_checker` checks.

    Args:
        enable: False checks nothing.
        debug_mode: see DebugMode.
        output_dir: folder whose file `tensor_checker.txt` gets the lines, in place of the console.
        checked_op_list, skipped_op_list: names of operations (of torch, such as "div") to check only, or not.
        debug_step: (first, last) number of `enable_tensor_checker` calls that check; all by default.
        stack_height_limit: taken; `oarlock.debug` records stacks.
    """

    def __init__(
        self,
        enable: bool,
        debug_mode: DebugMode = DebugMode.CHECK_NAN_INF_AND_ABORT,
        output_dir: str | None = None,
        checked_op_list: Sequence[str] | None = None,
        skipped_op_list: Sequence[str] | None = None,
        debug_step: Sequence[int] | None = None,
        stack_height_limit: int = 1,
    ) -> None:
        if debug_step is not None and (len(debug_step) != 2 or debug_step[0] >= debug_step[1]):
            raise ValueError(f"debug_step is (first, last) with first < last, got {debug_step!r}")
        self.enable, self.debug_mode, self.output_dir = enable, debug_mode, output_dir
        self.checked, self.skipped = frozenset(checked_op_list or ()), frozenset(skipped_op_list or ())
        self.debug_step, self.num_steps = debug_step, 0

    def takes(self, operation: str) -> bool:
        """Whether an operation is checked."""
        return (not self.checked or operation in self.checked) and operation not in self.skipped


class _Checker(TorchDispatchMode):
    def __init__(self, config: TensorCheckerConfig) -> None:
        super().__init__()
        self.config = config

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = _name(func)
        if self.config.takes(name) and not name.startswith("empty"):
            for each in tree_leaves(result):
                if isinstance(each, Tensor) and each.is_floating_point():
                    check_numerics(each, name, "", self.config.debug_mode)
        return result


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, Counter[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        dtype = next((each.dtype for each in tree_leaves(result) if isinstance(each, Tensor)), None)
        self.calls.setdefault(_name(func), Counter())[dtype if dtype in _COLUMNS else "other"] += 1
        return result


_checker: _Checker | None = None
_counter: _Counter | None = None


def enable_tensor_checker(checker_config: TensorCheckerConfig) -> None:
    """Check what every operation gives, until `disable_tensor_checker`."""
    global _checker
    disable_tensor_checker()
    checker_config.num_steps += 1
    first, last = checker_config.debug_step or (0, 1 << 62)
    if checker_config.enable and first <= checker_config.num_steps < last:
        _checker = _Checker(checker_config)
        _checker.__enter__()


def disable_tensor_checker() -> None:
    """End the checks."""
    global _checker
    if _checker is not None:
        _checker.__exit__(None, None, None)
        _checker = None


def enable_operator_stats_collection() -> None:
    """Count the calls of each operation by the precision of its result, until `disable_operator_stats_collection`."""
    global _counter
    if _counter is None:
        _counter = _Counter()
        _counter.__enter__()


def disable_operator_stats_collection() -> None:
    """End counting, and print the table."""
    global _counter
    if _counter is None:
        return
    _counter.__exit__(None, None, None)
    calls, _counter = _counter.calls, None
    print("<" + " op list ".center(119, "-") + ">")
    heads = ("Op Name", "FP16 Calls", "BF16 Calls", "FP32 Calls", "Other Calls")
    print("<" + " | ".join(f" {head} ".center(40 if head == "Op Name" else 17, "-") for head in heads) + ">")
    for name in sorted(calls):
        counts = [calls[name][kind] for kind in (*_COLUMNS, "other")]
        print(f"  {name:<39} | " + " | ".join(f" {count:<16}" for count in counts))
    print("<" + f" op count: {len(calls)} ".center(119, "-") + ">\n")


@contextlib.contextmanager
def collect_operator_stats() -> Iterator[None]:
    """Count the operations of a block, and print the table behind it."""
    enable_operator_stats_collection()
    try:
        yield
    finally:
        disable_operator_stats_collection()


def _name(func: Any) -> str:
    return func.__name__.partition(".")[0]


def _tell(line: str) -> None:
    folder = _checker.config.output_dir if _checker is not None else None
    if folder is None:
        print(line, flush=True)
        return
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with open(path / "tensor_checker.txt", "a", encoding="utf-8") as file:
        file.write(line + "\n")
