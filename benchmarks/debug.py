"""What debugging costs: python benchmarks/debug.py [--quick] [--json PATH]

A forward and backward pass of 20 x (Linear 64 + GELU) on 8 rows, and of the default model, on one thread: plain,
recorded by Oarlock, and under torch's own tools. Minima of interleaved runs, as multiples of plain.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils._debug_mode import DebugMode

from oarlock import debug
from oarlock.models import Decoder
from oarlock.train import load_config
from oarlock.train.build import decoder_config

_ROOT = Path(__file__).resolve().parents[1]
_STEPS = 25  # in one context: entering it is paid once in a run, not in each step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, only the small model")
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")

    torch.manual_seed(0)
    small = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(20)])
    rows = torch.randn(8, 64)
    ratios = {"small": measure(small, lambda: small(rows).sum(), 8 if args.quick else 20, peers=True)}
    if not args.quick:
        model, tokens = default_model()
        ratios["default model"] = measure(model, lambda: loss_of(model, tokens), 4, peers=False)

    print(f"{'':16}" + "".join(f"{name:>16}" for name in ratios))
    for name in ratios["small"]:
        print(f"{name:16}" + "".join(f"{table[name]:>15.2f}x" if name in table else "" for table in ratios.values()))
    figures = []
    for where, table in ratios.items():
        suffix = "" if where == "small" else "_model"
        for name in ("names", "stacks", "hooks", "digests", "sha1", "errors"):
            figures.append({"figure": name + suffix, "value": table[name], "detail": f"x plain, {where}"})
    table = ratios["small"]
    # The same information: the calls and nodes with stacks; digests of all tensors and ids.
    figures.append({"figure": "vs_anomaly", "value": table["anomaly"] / table["hooks"], "detail": "anomaly / hooks"})
    figures.append(
        {"figure": "vs_debugmode", "value": table["DebugMode"] / table["digests"], "detail": "with hashes / digests"}
    )
    for figure in figures:
        print(f"[{figure['figure']}] {figure['value']:.2f}  {figure['detail']}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def default_model() -> tuple[Decoder, Tensor]:
    """The model of configs/shakespeare.toml, and a batch of one short sequence."""
    config = load_config(_ROOT / "configs" / "shakespeare.toml")
    model = Decoder(decoder_config(config.model, 4096, 256))
    model.initialize(torch.Generator().manual_seed(0))
    return model, torch.randint(0, 4096, (2, 256))


def loss_of(model: Decoder, tokens: Tensor) -> Tensor:
    logits = model.logits(model(tokens))
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def measure(model: nn.Module, loss: Callable[[], Tensor], rounds: int, *, peers: bool) -> dict[str, float]:
    """Time of a forward and backward pass under each tool, as a multiple of the plain one."""

    def anomaly() -> AbstractContextManager[object]:
        return torch.autograd.set_detect_anomaly(True)

    def debug_mode() -> AbstractContextManager[object]:
        mode = DebugMode(record_nn_module=True, record_ids=True, record_stack_trace=True)
        return _Both(mode, DebugMode.log_tensor_hashes())

    tools: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "plain": nullcontext,
        "names": lambda: debug.trace(model, nodes=False),
        "stacks": lambda: debug.trace(model, nodes=False, stacks=True),
        "hooks": lambda: debug.trace(model, stacks=True),
        "digests": lambda: debug.trace(model, stacks=True, digests="digest64"),
        "sha1": lambda: debug.trace(model, stacks=True, digests="sha1"),
        "errors": lambda: debug.errors(model),
    }
    if peers:
        tools |= {"anomaly": anomaly, "DebugMode": debug_mode}
    best = dict.fromkeys(tools, float("inf"))
    for number in range(rounds):
        for name, tool in tools.items():
            if name in ("anomaly", "DebugMode") and number % 4:
                continue
            with tool():
                for _ in range(_STEPS if peers else 2):
                    began = time.perf_counter()
                    loss().backward()
                    best[name] = min(best[name], time.perf_counter() - began)
    return {name: seconds / best["plain"] for name, seconds in best.items()}


class _Both:
    """Two contexts as one."""

    def __init__(self, first: AbstractContextManager[object], second: AbstractContextManager[object]) -> None:
        self._contexts = (first, second)

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *about: object) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*about)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
