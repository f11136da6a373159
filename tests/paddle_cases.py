"""What a recorded call may use, the same under Paddle (when recorded) and under Oarlock (when tested)."""

import ast
import math
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
    matrix; `t(values)` a tensor; `z(3, 4)` float32 with zeros; `grad(function, x)` the gradient of the sum of squares.
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

    def filled(made: Any) -> Any:
        """A layer whose parameters and buffers have values that depend on their names' order only."""
        state = {}
        for number, (name, value) in enumerate(sorted(made.state_dict().items())):
            drawn = 0.5 * np.random.RandomState(number).standard_normal(list(value.shape))
            state[name] = (np.abs(drawn) + 0.5 if "variance" in name else drawn).astype("float32")
        made.set_state_dict(state)
        return made

    def layer(made: Any, *tensors: Any) -> Any:
        """[results, gradients of the fractional inputs, of the parameters by name, buffers] of a filled layer."""
        filled(made)
        fractional = [x for x in tensors if x is not None and "float" in str(x.dtype)]
        for x in fractional:
            x.stop_gradient = False
        result = made(*tensors)
        results = []
        todo = [result]
        while todo:
            each = todo.pop(0)
            if isinstance(each, (list, tuple)):
                todo = list(each) + todo
            else:
                results.append(each)
        sum((r * r).sum() for r in results if "float" in str(r.dtype)).backward()
        named = sorted(made.named_parameters(), key=lambda pair: pair[0])
        return [results, [x.grad for x in fractional], [p.grad for _, p in named], list(made.buffers())]

    def steps(make: Any, count: int = 6) -> Any:
        """The weights after some steps of an optimizer, which `make(parameters)` gives."""
        made = filled(paddle.nn.Linear(3, 2))
        optimizer = make(made.parameters())
        for number in range(count):
            loss = ((made(t(array((4, 3)) + number, "float32")) - t(array((4, 2)), "float32")) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
        return [made.weight, made.bias]

    def rates(schedule: Any, count: int = 15) -> Any:
        """The rates of a schedule."""
        found = []
        for _ in range(count):
            found.append(float(schedule()))
            schedule.step()
        return found

    def beams(cell: Any, size: int, count: int, **more: Any) -> Any:
        """What a beam search over 7 tokens finds, with its scores and lengths."""
        embedding, output = filled(paddle.nn.Embedding(7, 5)), filled(paddle.nn.Linear(5, 7))
        decoder = paddle.nn.BeamSearchDecoder(
            filled(cell),
            0,
            1,
            size,
            lambda ids: embedding(ids) * 3,
            lambda h: output(h) * t([0.5, 3, 3, 3, 3, 3, 3], "float32"),
        )
        start = t(array((3, 5)) * 2, "float32")
        start = (start, start) if isinstance(cell, paddle.nn.LSTMCell) else start
        found, states, *rest = paddle.nn.dynamic_decode(decoder, start, count, **more)
        return [found, states.log_probs, states.finished, states.lengths, states.cell_states, rest]

    def stored(x: Any) -> Any:
        """What a sparse tensor stores, and the dense tensor that it stands for."""
        where = [x.indices()] if x.is_sparse_coo() else [x.crows(), x.cols()]
        return [*[index.astype("int64") for index in where], x.values(), x.to_dense()]

    def shown(made: Any) -> Any:
        """What a layer prints, its state dict's keys and shapes, the ends of its parameters' names."""
        state = [(key, list(value.shape)) for key, value in made.state_dict().items()]
        return [repr(made), state, [parameter.name.rpartition(".")[2] for parameter in made.parameters()]]

    return {
        "shown": shown,
        "stored": stored,
        "beams": beams,
        "layer": layer,
        "filled": filled,
        "steps": steps,
        "rates": rates,
        "nn": paddle.nn,
        "optim": paddle.optimizer,
        "lr": paddle.optimizer.lr,
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
        "z": lambda *shape: t(array(shape) * (np.arange(math.prod(shape)).reshape(shape) % 3 > 0), "float32"),
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
