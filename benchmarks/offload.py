"""Planned activations against single policies and a lower bound; links and layers take their time by sleeping.

    python benchmarks/offload.py [--quick] [--json PATH]

| id              | value                                                                                      |
|-----------------|--------------------------------------------------------------------------------------------|
| gradient_errors | gradients that are not bitwise those without a plan, over all cases                        |
| peak_error      | measured peak / planned peak - 1, the largest over all cases                               |
| vs_milp         | planned time / lower bound of a mixed-integer program, the largest over all cases          |
| vs_best_single  | planned time / the best single policy's within the same budget, the largest                |
| mixed_cases     | the same, the largest over the cases named mixed                                           |
| measured_ratio  | the same by the clock (fastest of the repeats, in turns), the median over all cases        |
| duplicate_bytes | sent to the second tier beyond one copy of each storage                                    |

A layer is a wide cheap part and a narrow dear one, as a block's activations and its matmuls are; budgets are shares of
the peak with everything kept. Single policies, each as good as it can be within the budget: computing whole layers
again and keeping the rest; sending out and keeping the rest; and both to the full: all layers again, everything sent
out.
"""

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from _offload_bound import least_seconds
from oarlock.memory import OutOfMemoryError
from oarlock.memory.offload import HostTier, Plan, make_plan, profile
from oarlock.memory.offload.search import Search
from oarlock.memory.offload.simulate import Simulator

NUM_LAYERS = 5
WIDE, NARROW = 0.002, 0.012  # seconds of the two parts forward; twice that backward
RATES = {"slow link": 12e6, "middle link": 30e6, "fast link": 120e6}
MIXED = ("slow link 50%", "middle link 50%")


class Slow(torch.autograd.Function):
    """x * weight, and it takes a while."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, seconds: float) -> Tensor:
        time.sleep(seconds)
        ctx.save_for_backward(x, weight)
        ctx.seconds = seconds
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        time.sleep(2 * ctx.seconds)
        return grad * weight, (grad * x).sum(), None


class Wide(nn.Module):
    """Four times as many numbers in between."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(1.1)), nn.Parameter(torch.tensor(0.9))

    def forward(self, x: Tensor) -> Tensor:
        h = Slow.apply(x.repeat(4, 1), self.a, WIDE / 2)
        return Slow.apply(torch.tanh(h), self.b, WIDE / 2).view(4, *x.shape).mean(0)


class Narrow(nn.Module):
    """Dear, and small."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.05))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(Slow.apply(x, self.a, NARROW))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = Wide(), Narrow()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(self.wide(x))


def single_policies(plan: Plan) -> list[Plan]:
    """What one policy alone does best within the budget of a plan."""
    measured, budget = plan.profile, plan.budget
    simulator = Simulator(measured)
    layers = [r for r, region in enumerate(measured.regions) if region.key[1].count(".") == 0]
    found: list[Plan] = []

    def keep_if_it_fits(search: Search) -> None:
        if (best := search.best) is not None:
            found.append(
                dataclasses.replace(
                    plan, choices=best.choices, regions=tuple(sorted(best.regions)), outcome=best.outcome
                )
            )

    again, sent, full = (Search(simulator, budget) for _ in range(3))
    for count in range(len(layers) + 1):
        for some in (frozenset(layers[:count]), frozenset(layers[len(layers) - count :])):
            again.trial(again._with_regions(some), some)
    sent._fewest_sent(frozenset())
    full.trial(("offload",) * len(measured.groups), frozenset())
    for search in (again, sent, full):
        keep_if_it_fits(search)
    return found


def timed(plan: Plan, model: nn.Module, tier: HostTier, x: Tensor, repeats: int) -> tuple[float, int]:
    """(fastest measured seconds, measured peak) of a step under a plan."""
    seconds, peak = [], 0
    for _ in range(repeats):
        with plan.apply(model, tier=tier) as run:
            began = time.perf_counter()
            step(model, x)
            seconds.append(time.perf_counter() - began)
        peak = max(peak, run.peak)
    return min(seconds), peak


def by_case(values: dict[str, float]) -> str:
    return ", ".join(f"{case} {value:.3f}" for case, value in values.items())


def step(model: nn.Module, x: Tensor) -> None:
    model.zero_grad()
    model(x).square().sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two repeats, two budgets: under 50 s")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(Layer() for _ in range(NUM_LAYERS)))
    x = torch.randn(256, 256)
    step(model, x)
    expected = [p.grad.clone() for p in model.parameters()]
    shares = (70, 50) if arguments.quick else (80, 65, 50, 40)
    repeats = 2 if arguments.quick else 5
    errors, duplicates, peaks, bounds, clocks, singles, rows = 0, 0, [], {}, {}, {}, []
    for name, rate in RATES.items():
        with HostTier(out_rate=rate, in_rate=rate) as tier:
            measured = profile(model, lambda: step(model, x), tier=tier)
            for share in shares:
                case = f"{name} {share}%"
                try:
                    plan = make_plan(measured, f"{share}%")
                except OutOfMemoryError as error:
                    print(f"{case}: {error}")
                    continue
                before = tier.out_bytes
                seconds, peak = timed(plan, model, tier, x, repeats)
                sent = tier.out_bytes - before
                errors += sum(not torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))
                duplicates += max(0, sent - repeats * plan.outcome.out_bytes)
                peaks.append(abs(peak / plan.peak - 1))
                bound = least_seconds(measured, plan.budget, 3.0 if arguments.quick else 20.0)
                bounds[case] = plan.outcome.seconds / bound
                others = single_policies(plan)
                best = min((each.outcome.seconds for each in others), default=None)
                if best is not None:
                    singles[case] = plan.outcome.seconds / best
                    fastest = min(others, key=lambda each: each.outcome.seconds)
                    clocks[case] = seconds / timed(fastest, model, tier, x, repeats)[0]
                rows.append((case, seconds, plan.outcome.seconds, bound, best, peaks[-1], plan))
    print(f"{'case':18} {'measured':>9} {'planned':>9} {'bound':>9} {'best single':>12} {'peak error':>11}")
    for case, seconds, planned, bound, best, error, _ in rows:
        single = "-" if best is None else f"{best:.3f} s"
        print(f"{case:18} {seconds:8.3f}s {planned:8.3f}s {bound:8.3f}s {single:>12} {error:11.5f}")
    figures: list[tuple[str, float, str]] = [
        ("gradient_errors", errors, f"{len(rows)} cases"),
        ("peak_error", max(peaks), "measured against planned"),
        ("vs_milp", max(bounds.values()), f"{len(measured.groups)} groups; {by_case(bounds)}"),
        ("vs_best_single", max(singles.values()), by_case(singles)),
        ("mixed_cases", max(v for k, v in singles.items() if k in MIXED), ", ".join(MIXED)),
        ("measured_ratio", statistics.median(clocks.values()), f"{repeats} repeats; {by_case(clocks)}"),
        ("duplicate_bytes", duplicates, ""),
    ]
    for name, value, detail in figures:
        print(f"{name:16} {value:8.4f}  {detail}")
    if arguments.json:
        entries = [{"figure": name, "value": value, "detail": detail} for name, value, detail in figures]
        arguments.json.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
