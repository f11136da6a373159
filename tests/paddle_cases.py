"""What a recorded call may use, the same under Paddle (when recorded) and under Oarlock (when tested)."""

import ast
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "paddle"
GOLDEN = FOLDER / "golden"  # one file of recorded answers per topic


def topics() -> list[str]:
    """The topics that have calls: the names of `calls/*.txt`."""
    return sorted(path.stem for path in (FOLDER / "calls").glob("*.txt"))


def calls(topic: str) -> list[str]:
    """The expressions of `calls/<topic>.txt`, one a line; `#` starts a comment line."""
    lines = (FOLDER / "calls" / f"{topic}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def environment(paddle: Any) -> dict[str, Any]:
    """Names that an expression may use.

    `f(2, 3)` float32, `d` float64, `u` in (.1, .9), `i` int64, `b` bool, `c` complex64; `s(3)` a symmetric positive
    matrix; `t(values)` a tensor; `grad(function, x)` the gradient of the sum of squares.
    """

    def array(shape: tuple[int, ...]) -> Any:
        return np.random.RandomState(sum(shape) + len(shape)).standard_normal(shape)

    def t(values: Any, dtype: str | None = None) -> Any:
        return paddle.to_tensor(np.array(values) if dtype is None else np.array(values, dtype))

    def grad(function: Any, *tensors: Any) -> Any:
        for tensor in tensors:
            tensor.stop_gradient = False
        result = function(*tensors)
        (result * result).sum().backward()
        return [tensor.grad for tensor in tensors]

    def s(n: int) -> Any:
        a = array((n, n))
        return t(a @ a.T + n * np.eye(n), "float32")

    return {
        "paddle": paddle,
        "F": paddle.nn.functional,
        "np": np,
        "t": t,
        "s": s,
        "grad": grad,
        "f": lambda *shape: t(array(shape), "float32"),
        "d": lambda *shape: t(array(shape), "float64"),
        "u": lambda *shape: t(0.1 + 0.8 * np.random.RandomState(len(shape)).random_sample(shape), "float32"),
        "i": lambda *shape: t(np.random.RandomState(len(shape)).randint(0, 10, shape), "int64"),
        "b": lambda *shape: t(array(shape) > 0, "bool"),
        "c": lambda *shape: t(array(shape) + 1j * array((*shape, 1))[..., 0], "complex64"),
    }


def plain(value: Any, tensor: type) -> Any:
    """A result as JSON: tensors with dtype, shape and values, sequences as lists, all else by its value or type."""
    if isinstance(value, tensor):
        dtype = str(value.dtype).rpartition(".")[2]
        array = value.detach()
        array = (array.astype("float32") if dtype in ("bfloat16", "float16") else array).numpy()
        if array.dtype.kind == "c":
            data: Any = [array.real.ravel().tolist(), array.imag.ravel().tolist()]
        else:
            data = array.ravel().tolist()
        return {"dtype": dtype, "shape": list(array.shape), "data": data}
    if isinstance(value, (list, tuple)):
        return [plain(part, tensor) for part in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(type(value).__name__)


def evaluate(expression: str, paddle: Any) -> Any:
    """The plain result of an expression."""
    return plain(
        eval(compile(ast.parse(expression, mode="eval"), expression, "eval"), environment(paddle)), paddle.Tensor
    )
