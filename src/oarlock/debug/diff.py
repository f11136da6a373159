"""Where two runs part: the first record whose inputs match and whose outputs differ.

Records are paired by what they are, not by where they stand: iteration, phase, module, API, and which such call it is
in its module. So runs of different lengths, ranks and devices can be compared.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

Record = dict[str, Any]


@dataclass
class Difference:
    """Where the runs part, in words, with the records that show it (one is None where only one run has it)."""

    what: str
    a: Record | None
    b: Record | None


@dataclass
class Report:
    """Result of `compare`."""

    num_compared: int = 0
    """Pairs of records."""
    num_different: int = 0
    """Pairs whose outputs differ."""
    first: Difference | None = None
    """The first record whose inputs match and outputs differ; or a call that replaces another, or is one too many."""
    outside: list[Difference] = field(default_factory=list)
    """Tensors that differ though no record made them: data, weights, or what was written unseen."""
    only_a: list[Record] = field(default_factory=list)
    only_b: list[Record] = field(default_factory=list)
    has_contents: bool = True
    """Whether both traces hold digests; else only names, dtypes and shapes were compared."""

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.num_different or self.first or self.outside or self.only_a or self.only_b)

    def text(self) -> str:
        """The report in lines."""
        lines = [f"{self.num_compared:,} records compared, {self.num_different:,} with different outputs"]
        if not self.has_contents:
            lines.append("no digests in at least one run: only names, dtypes and shapes were compared")
        for title, records in (("A", self.only_a), ("B", self.only_b)):
            if records:
                names = ", ".join(record["name"] for record in records[:3]) + (", ..." if len(records) > 3 else "")
                lines.append(f"only in {title}: {len(records):,} records: {names}")
        for difference in self.outside[:5]:
            lines.append(difference.what)
        if len(self.outside) > 5:
            lines.append(f"... and {len(self.outside) - 5} more tensors from outside")
        if self.first is not None:
            lines += ["", self.first.what]
            for title, record in (("A", self.first.a), ("B", self.first.b)):
                if record is not None:
                    lines += _described(title, record)
        elif self.same:
            lines.append("the runs are the same")
        return "\n".join(lines)


def compare(a: Sequence[Record], b: Sequence[Record], *, tolerance: float | None = None) -> Report:
    """Compare the records of two traces.

    Args:
        a, b: see `read_records`.
        tolerance: relative; floating and complex tensors are then compared by their numbers instead of bit by bit: the
            product with random weights may differ by `tolerance` times the 2-norm, the largest value by `tolerance`
            of itself.

    Raises:
        ValueError: a tolerance, but the traces were made without probes.
    """
    same = _Same(tolerance)
    report = Report(has_contents=_has_contents(a) and _has_contents(b))
    if not report.has_contents:
        is_partial = _has_contents(a) or _has_contents(b)
        a, b = _without_contents(a, is_partial), _without_contents(b, is_partial)
    if tolerance is not None and not (_has_contents(a, "probe") and _has_contents(b, "probe")):
        raise ValueError("a tolerance needs traces with numbers to compare: make them with probes=True")
    pairs, only_a, only_b = _pair(a, b)
    report.only_a, report.only_b = only_a, only_b
    report.num_compared = len(pairs)
    replaced = _replacements(only_a, only_b, same)
    events = sorted([*((_place(x), x, y) for x, y in pairs), *((_place(x), x, y) for x, y in replaced)], key=_first)
    parted, made, other_calls = set(), set(), set()
    extra_writes = _outputs(only_a), _outputs(only_b)
    gradients = _Gradients(same)
    is_replacement = {id(x) for x, _ in replaced}
    for _, x, y in events:
        inputs_match, reordered = same.inputs(x, y)
        outputs_match = same.tensors(x["outputs"], y["outputs"])
        if x["kind"] == "leaf":
            inputs_match = gradients.have_come_equal(x)
        elif x.get("call") in other_calls:
            inputs_match = False  # a node also works with what its call has saved
        elif not (inputs_match and outputs_match):
            other_calls.add(x["name"])
        gradients.note(x, y, inputs_match)
        if id(x) not in is_replacement:
            report.num_different += not outputs_match
        elif report.first is None and inputs_match:
            what = f"A calls {x['api']} where B calls {y['api']}, on the same inputs:"
            report.first = Difference(what, x, y)
        if report.first is None and inputs_match and not outputs_match:
            order = ", which come in another order" if reordered else ""
            report.first = Difference(f"first record with the same inputs{order} and different outputs:", x, y)
        if not inputs_match and x["kind"] == "call":
            _note_outside(report, x, y, same, made, parted, extra_writes)
        made |= {t["name"] for t in x["outputs"]}
    if report.first is None and (report.num_different or report.outside) and (only_a or only_b):
        extra = min([*only_a, *only_b], key=_place)
        title = "A" if any(extra is record for record in only_a) else "B"
        what = f"a record that only {title} has comes before the runs part:"
        first = next((x for _, x, y in events if not same.tensors(x["outputs"], y["outputs"])), None)
        if first is not None and not report.outside:
            pair = (extra, None) if title == "A" else (None, extra)
            report.first = Difference(what, *pair)
    return report


def _outputs(records: Sequence[Record]) -> dict[str, int]:
    """Where a tensor of a name is first made or written."""
    found: dict[str, int] = {}
    for record in records:
        for tensor in record["outputs"]:
            found.setdefault(tensor["name"], record["place"])
    return found


def _note_outside(
    report: Report,
    x: Record,
    y: Record,
    same: _Same,
    made: set[str],
    parted: set[str],
    extra_writes: tuple[dict[str, int], dict[str, int]],
) -> None:
    for tensor, other in zip(x["inputs"], y["inputs"], strict=False):
        name = tensor["name"]
        if name in made or name in parted or same.tensor(tensor, other):
            continue
        only_a, only_b = extra_writes
        if only_a.get(name, math.inf) < x["place"] or only_b.get(other["name"], math.inf) < y["place"]:
            continue  # a record of one run only has written it
        parted.add(name)
        what = f"{name} differs before anything recorded has made it (first used by {x['name']}, step {x['step']})"
        report.outside.append(Difference(what, x, y))


class _Same:
    """Whether tensors of two records are the same."""

    def __init__(self, tolerance: float | None) -> None:
        self._tolerance = tolerance

    def tensor(self, a: Record, b: Record) -> bool:
        if self._tolerance is None:
            return _key(a) == _key(b)
        if a["shape"] != b["shape"] or (a.get("nan", 0), a.get("inf", 0)) != (b.get("nan", 0), b.get("inf", 0)):
            return False
        if "probe" not in a or "probe" not in b:
            return _key(a) == _key(b)
        scale = max(a["norm"], b["norm"])
        near = abs(a["probe"] - b["probe"]) <= self._tolerance * scale
        return near and math.isclose(a["max_abs"], b["max_abs"], rel_tol=self._tolerance, abs_tol=0.0)

    def tensors(self, a: Sequence[Record], b: Sequence[Record]) -> bool:
        return len(a) == len(b) and all(map(self.tensor, a, b))

    def inputs(self, a: Record, b: Record) -> tuple[bool, bool]:
        """Whether they match, and whether only in another order."""
        if self.tensors(a["inputs"], b["inputs"]):
            return True, False
        if Counter(map(_key, a["inputs"])) == Counter(map(_key, b["inputs"])):
            return True, True
        return False, False


class _Gradients:
    """Gradients by name: what accumulates in a leaf comes from several nodes, and from the iterations before."""

    def __init__(self, same: _Same) -> None:
        self._same = same
        self._come: dict[tuple[str, int], bool] = {}
        self._held_differ: set[str] = set()
        self._users: dict[tuple[str, int], list[str]] = defaultdict(list)  # calls by a tensor that goes into them
        self._nodes: dict[tuple[str, int], bool] = {}  # by call: whether its nodes have worked on the same

    def note(self, x: Record, y: Record, inputs_match: bool) -> None:
        """A call's inputs; a node's or leaf's outputs."""
        if x["kind"] == "call":
            for tensor in x["inputs"]:
                self._users[tensor["name"], x["step"]].append(x["name"])
            return
        if call := x.get("call"):
            self._nodes[call, x["step"]] = inputs_match and self._nodes.get((call, x["step"]), True)
        for tensor, other in zip(x["outputs"], y["outputs"], strict=False):
            name, is_same = tensor["name"], self._same.tensor(tensor, other)
            if x["kind"] == "node":
                self._come[name, x["step"]] = is_same and self._come.get((name, x["step"]), True)
            elif not is_same:
                self._held_differ.add(name)

    def have_come_equal(self, leaf: Record) -> bool:
        """Whether all that was added to a leaf is the same in both runs.

        As the nodes have told; of calls with several nodes only the first is recorded, so where none has told of the
        leaf: whether those of the calls that the leaf went into had the same to work on.
        """
        name, step = leaf["outputs"][0]["name"], leaf["step"]
        if name in self._held_differ:
            return False
        if (name, step) in self._come:
            return self._come[name, step]
        users = [(call, step) for call in self._users[name.removesuffix("@grad"), step]]
        worked = [self._nodes[user] for user in users if user in self._nodes]
        return bool(worked) and all(worked)


def _key(tensor: Record) -> Hashable:
    return tensor["dtype"], tuple(tensor["shape"]), tensor.get("digest")


def _has_contents(records: Iterable[Record], what: str = "digest") -> bool:
    return any(what in tensor for record in records for tensor in record["outputs"])


def _without_contents(records: Sequence[Record], is_partial: bool) -> list[Record]:
    """The records with tensors of which names, dtypes and shapes are left.

    Where only one run has digests, both without what only such runs record: leaves, and what nodes give.
    """
    kept, both = ("name", "dtype", "shape"), ("inputs", "outputs")
    found = []
    for record in records:
        if is_partial and record["kind"] == "leaf":
            continue
        sides = {side: [{key: tensor[key] for key in kept} for tensor in record[side]] for side in both}
        if is_partial and record["kind"] == "node":
            sides["outputs"] = []
        found.append(record | sides)
    return found


def _first(event: tuple[Any, ...]) -> int:
    return event[0]


def _place(record: Record) -> int:
    return record["place"]


def _pair(a: Sequence[Record], b: Sequence[Record]) -> tuple[list[tuple[Record, Record]], list[Record], list[Record]]:
    groups_a, groups_b = _groups(a), _groups(b)
    pairs: list[tuple[Record, Record]] = []
    only_a: list[Record] = []
    only_b: list[Record] = []
    for kind, mine in groups_a.items():
        others = groups_b.get(kind, [])
        if len(mine) == len(others):
            pairs += zip(mine, others, strict=True)
            continue
        keys = [[tuple(map(_key, record["inputs"])) for record in group] for group in (mine, others)]
        at_a = at_b = 0
        blocks = SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks()
        for i, j, count in blocks:
            # Between what matches, as many as both have are the same calls with other inputs.
            both = min(i - at_a, j - at_b)
            pairs += zip(mine[at_a : at_a + both], others[at_b : at_b + both], strict=True)
            only_a += mine[at_a + both : i]
            only_b += others[at_b + both : j]
            pairs += zip(mine[i : i + count], others[j : j + count], strict=True)
            at_a, at_b = i + count, j + count
    only_b += [record for kind, others in groups_b.items() if kind not in groups_a for record in others]
    return pairs, sorted(only_a, key=_place), sorted(only_b, key=_place)


def _groups(records: Sequence[Record]) -> dict[Hashable, list[Record]]:
    threads: dict[int, int] = {}
    groups: dict[Hashable, list[Record]] = defaultdict(list)
    for place, record in enumerate(records):
        record["place"] = place
        thread = threads.setdefault(record["thread"], len(threads)) if "thread" in record else 0
        node = record.get("node", "")
        groups[record["step"], record["phase"], record["kind"], thread, record["module"], record["api"], node].append(
            record
        )
    return groups


def _replacements(only_a: list[Record], only_b: list[Record], same: _Same) -> list[tuple[Record, Record]]:
    """Records of one run only that do something else to the same tensors in the same module."""
    places: dict[Hashable, list[Record]] = defaultdict(list)
    for record in only_b:
        places[_situation(record)].append(record)
    pairs = []
    for record in only_a:
        others = places.get(_situation(record))
        if others and not same.tensors(record["outputs"], others[0]["outputs"]):
            pairs.append((record, others.pop(0)))
    return pairs


def _situation(record: Record) -> Hashable:
    inputs = frozenset(Counter(map(_key, record["inputs"])).items())
    return record["step"], record["phase"], record["kind"], record["module"], inputs


def _described(title: str, record: Record) -> list[str]:
    where = f"step {record['step']}, {record['phase']}"
    lines = [f"{title}: {record['name']} ({where})"]
    for kind in ("inputs", "outputs"):
        for tensor in record[kind]:
            numbers = [f"{key}={tensor[key]:.6g}" for key in ("max_abs", "norm", "probe") if key in tensor]
            numbers += [f"{key}={tensor[key]}" for key in ("nan", "inf") if key in tensor]
            digest = [tensor["digest"][:12]] if "digest" in tensor else []
            shape = "x".join(map(str, tensor["shape"])) or "scalar"
            lines.append(f"   {kind[:-1]:6} {tensor['name']} {tensor['dtype']} {shape} {' '.join(digest + numbers)}")
    return lines
