"""What a call of Paddle's API costs beyond the torch call that it makes.

    python benchmarks/paddle_api.py [--quick] [--json PATH]

| id               | value                                                                                   |
|------------------|-----------------------------------------------------------------------------------------|
| alias_positional | (paddle.add(x, y) - torch.add(x, y)) / torch.add(x, y)                                  |
| alias_keyword    | (paddle.add(input=x, other=y) - torch.add(x, y)) / torch.add(x, y)                      |
| strict_add       | x + y within paddle.strict() / x + y                                                    |
| patched_method   | (x.add(y) after patch_tensor() - x.add(y)) / torch.add(x, y)                            |

Tensors of six numbers, one thread. All calls run interleaved and the shortest time of each counts. The floor is an
empty Python function around torch.add: no wrapper written in Python can cost less.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import oarlock.paddle as paddle


def main() -> None:
    """Measure, print a table, and write rows {figure, value, detail} if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    seconds = shortest(calls(), rounds=60 if args.quick else 300)
    add = seconds["torch.add(x, y)"]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, shortest of interleaved runs\n")
    print("| call | ns | / torch.add |\n|---|---:|---:|")
    for name, time_of in seconds.items():
        print(f"| {name} | {time_of * 1e9:.0f} | {time_of / add:.2f} |")
    figures = {
        "alias_positional": seconds["paddle.add(x, y)"] / add - 1,
        "alias_keyword": seconds["paddle.add(input=x, other=y)"] / add - 1,
        "strict_add": seconds["x + y in strict mode"] / seconds["x + y"],
        "patched_method": (seconds["x.add(y) after patch_tensor()"] - seconds["x.add(y)"]) / add,
        "floor": seconds["an empty function around it"] / add - 1,
    }
    print("\n| figure | value |\n|---|---:|")
    for name, value in figures.items():
        print(f"| {name} | {value:.2f} |")
    if args.json:
        detail = f"torch {torch.__version__}, 6 numbers, 1 thread"
        rows = [{"figure": name, "value": value, "detail": detail} for name, value in figures.items()]
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def calls() -> dict[str, Callable[[], object]]:
    """The calls that are compared, by the name they are printed under."""
    x, y = torch.ones(2, 3), torch.ones(2, 3)
    with paddle.strict():
        strict_x, strict_y = paddle.ones([2, 3]), paddle.ones([2, 3])

    def empty(x: Tensor, y: Tensor) -> Tensor:
        return torch.add(x, y)

    torch_add, paddle_add, plain = torch.add, paddle.add, Tensor.add
    paddle.patch_tensor()
    patched = Tensor.add
    paddle.unpatch_tensor()
    return {
        "torch.add(x, y)": lambda: torch_add(x, y),
        "an empty function around it": lambda: empty(x, y),
        "paddle.add(x, y)": lambda: paddle_add(x, y),
        "paddle.add(input=x, other=y)": lambda: paddle_add(input=x, other=y),
        "x + y": lambda: x + y,
        "x + y in strict mode": lambda: strict_x + strict_y,
        "x.add(y)": lambda: plain(x, y),
        "x.add(y) after patch_tensor()": lambda: patched(x, y),
    }


def shortest(calls: dict[str, Callable[[], object]], rounds: int, repetitions: int = 500) -> dict[str, float]:
    """Seconds of each call, the least of all rounds; in a round every call runs once after the other."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(repetitions):
                call()
            best[name] = min(best[name], (time.perf_counter() - begin) / repetitions)
    return best


if __name__ == "__main__":
    main()
