"""A lower bound of the time that any plan takes, as a mixed-integer program.

Links are fluids, and time may be lost wherever it costs least: no plan of the simulator is faster. Computing a region
again takes at least the workspace of its first wanted storage, where that is needed.
"""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from oarlock.memory.offload.profile import Profile
from oarlock.memory.offload.simulate import Simulator


def least_seconds(profile: Profile, budget: int, time_limit: float = 20.0) -> float:
    """Seconds of a step that no plan within the budget can beat; infinite if there is no plan.

    Args:
        profile: of the step, with at most about 60 groups.
        budget: bytes.
        time_limit: of the solver, in seconds; beyond it its bound counts.
    """
    simulator = Simulator(profile)
    groups, regions = profile.groups, profile.regions
    again = [simulator.again(r, frozenset(region.inside)) for r, region in enumerate(regions)]
    base = simulator.base() / 2**20
    num_moments = len(profile.moments)
    steps = simulator._step
    program = _Program()
    ends: dict[int, int] = {}
    for g, group in enumerate(groups):
        if group.save is not None:
            ends[g] = simulator.piece(simulator.need[g])
    for r, region in enumerate(regions):  # arguments that nothing else saves
        for g in region.inputs:
            if g is not None and groups[g].save is None:
                ends[g] = max(ends.get(g, 0), simulator.piece(again[r].moment))
    movable = [g for g in ends if simulator._death[g] < ends[g]]
    run = [program.variable(1.0, integer=True) for _ in regions]
    cost = [program.variable(np.inf) for _ in regions]
    keep = {g: program.variable(1.0, integer=True) for g in movable}
    send = {g: program.variable(1.0, integer=True) for g in movable}
    redo: dict[tuple[int, int], int] = {}
    for r, region in enumerate(regions):
        for g in region.inside:
            if g in keep:
                redo[g, r] = program.variable(1.0)
                program.at_most([(redo[g, r], 1.0), (run[r], -1.0)], 0.0)
                seconds = simulator.again(r, frozenset([g])).seconds
                program.at_most([(redo[g, r], seconds), (cost[r], -1.0)], 0.0)
        for other in range(r):
            if region.begin < regions[other].end and regions[other].begin < region.end:
                program.at_most([(run[r], 1.0), (run[other], 1.0)], 1.0)
    for g in movable:
        if groups[g].save is not None:
            terms = [(keep[g], 1.0), (send[g], 1.0), *((v, 1.0) for (h, _), v in redo.items() if h == g)]
            program.exactly(terms, 1.0)
        else:
            for r, region in enumerate(regions):
                if g in region.inputs:
                    program.at_most([(run[r], 1.0), (keep[g], -1.0), (send[g], -1.0)], 0.0)
    extra = [program.variable(np.inf, cost=1.0) for _ in range(num_moments)]
    program.at_most([*((v, 1.0) for v in cost), *((v, -1.0) for v in extra)], 0.0)

    out: dict[int, list[int]] = {}
    back: dict[int, list[int]] = {}
    for g in movable:
        out[g] = [program.variable(1.0) for _ in range(num_moments + 1)]
        back[g] = [program.variable(1.0) for _ in range(num_moments + 1)]
        first = max(0, simulator.save[g])
        for m in range(num_moments + 1):
            program.at_most([(out[g][m], 1.0), (send[g], -1.0)], 0.0)
            program.at_most([(back[g][m], 1.0), (out[g][m], -1.0)], 0.0)
            if m <= first and groups[g].save is not None:
                program.at_most([(out[g][m], 1.0)], 0.0)
            if m:
                program.at_most([(out[g][m - 1], 1.0), (out[g][m], -1.0)], 0.0)
                program.at_most([(back[g][m - 1], 1.0), (back[g][m], -1.0)], 0.0)
            # What is needed is there: what was away is back.
            if simulator.piece(m) >= ends[g]:
                program.at_most([(out[g][m], 1.0), (back[g][m], -1.0)], 0.0)

    def held(piece: int, m: int) -> list[tuple[int, float]]:
        """What is kept, and what is sent and not away, at a moment."""
        terms = []
        for g in movable:
            if simulator._death[g] <= piece < ends[g]:
                size = groups[g].num_bytes / 2**20
                terms += [(keep[g], size), (send[g], size), (out[g][m], -size), (back[g][m], size)]
        return terms

    for (g, r), again_g in redo.items():
        m = simulator.need[g]
        if m >= num_moments:
            continue
        piece = simulator.piece(m)
        workspace = simulator.again(r, frozenset([g])).peak / 2**20
        earlier = [v for (h, other), v in redo.items() if other == r and h != g and simulator.need[h] <= m]
        terms = [*held(piece, m), (again_g, workspace), *((v, -workspace) for v in earlier)]
        program.at_most(terms, budget / 2**20 - float(simulator._before[piece]) / 2**20)
    for m in range(num_moments):
        for rate, moved in ((profile.out_rate, out), (profile.in_rate, back)):
            terms = []
            for g in movable:
                size = groups[g].num_bytes / rate
                terms += [(moved[g][m + 1], size), (moved[g][m], -size)]
            # A stall at the next moment counts for the link, too.
            later = [(extra[m + 1], -1.0)] if m + 1 < num_moments else []
            program.at_most([*terms, (extra[m], -1.0), *later], float(steps[m]))
        for piece in range(simulator.piece(m), simulator.piece(m + 1)):
            terms = held(piece, m)
            if terms:
                program.at_most(terms, budget / 2**20 - float(base[piece]))
            elif base[piece] > budget / 2**20:
                return float("inf")
    return simulator._start + float(steps.sum()) + program.solve(time_limit)


class _Program:
    def __init__(self) -> None:
        self._upper: list[float] = []
        self._cost: list[float] = []
        self._integer: list[int] = []
        self._rows: list[tuple[int, int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def variable(self, upper: float, *, integer: bool = False, cost: float = 0.0) -> int:
        self._upper.append(upper)
        self._cost.append(cost)
        self._integer.append(int(integer))
        return len(self._upper) - 1

    def at_most(self, terms: list[tuple[int, float]], bound: float, low: float = -np.inf) -> None:
        self._rows += [(len(self._high), variable, factor) for variable, factor in terms]
        self._low.append(low)
        self._high.append(bound)

    def exactly(self, terms: list[tuple[int, float]], bound: float) -> None:
        self.at_most(terms, bound, bound)

    def solve(self, time_limit: float) -> float:
        row, column, factor = zip(*self._rows, strict=True)
        matrix = coo_array((factor, (row, column)), shape=(len(self._high), len(self._upper))).tocsr()
        found = milp(
            np.array(self._cost),
            constraints=LinearConstraint(matrix, self._low, self._high),
            bounds=Bounds(0, np.array(self._upper)),
            integrality=np.array(self._integer),
            options={"time_limit": time_limit},
        )
        bound = found.mip_dual_bound
        return float("inf") if found.status == 2 else 0.0 if bound is None else max(0.0, float(bound))
