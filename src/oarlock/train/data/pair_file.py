"""Preference pairs: a prompt stored once and both answers after it, packed into sequences.

A pair of k prompt tokens p, answers c1 .. cC and r1 .. rR lies in a sequence as

    shared   p1 .. p(k-1) | pk c1 .. c(C-1) | pk r1 .. r(R-1)                    k - 1 + C + R inputs
    twice    p1 .. p(k-1) pk c1 .. c(C-1) | p1 .. p(k-1) pk r1 .. r(R-1)         2 (k - 1) + C + R inputs

The last token of the prompt opens both answers, so that every input predicts one token. In the shared form the parts
see each other as `ColumnMask.share_question` says, and positions go on from the prompt's end in both answers. Twice is
for layers whose sliding window is shorter than the shared pair, since a window counts places in the sequence.

Letters: D pairs, P pairs of a packing, B batch, S sequence, G pairs of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from oarlock.attention import ColumnMask
from oarlock.attention.context_parallel import ContextPlan
from oarlock.train.data.batch import IGNORED, Batch
from oarlock.train.data.packing import Packing, PackingReport, arrange


@dataclass(frozen=True, kw_only=True)
class PairBatch(Batch):
    """Packed pairs. `num_targets` counts the tokens of all answers; `lengths` are those of the groups."""

    groups: list[list[list[int]]]
    """Per row the groups [prompt, answer, answer] or [whole text], as `ColumnMask.share_question` takes them."""
    answers: Tensor
    """int64 [B, S]: 2 g + 1 where the target is of the rejected answer of pair g, 2 g of the chosen one, else -1."""
    pairs: Tensor
    """int64 [G], which pairs of the file these are."""

    @property
    def num_losses(self) -> float:
        """What a loss is averaged over: pairs; ranks that hold parts of the same pairs count equal shares of them."""
        return len(self.pairs) / (1 if self.plan is None else self.plan.num_ranks)

    def mask(self, device: torch.device | str) -> ColumnMask:
        """Causal attention in each group, where no answer sees another."""
        if self.plan is not None:
            return self.plan.mask.to(device)
        return ColumnMask.share_question(self.groups, device=device)

    def shard(self, plan: ContextPlan) -> Self:
        """This process's share of the tokens, and all pairs."""
        return replace(super().shard(plan), answers=plan.shard(self.answers, 1, fill=-1))

    def to(self, device: torch.device | str) -> Self:
        """The same with its tensors on a device."""
        answers, pairs = (x.to(device, non_blocking=True) for x in (self.answers, self.pairs))
        return replace(super().to(device), answers=answers, pairs=pairs)


@dataclass(frozen=True, kw_only=True)
class PairPacking(Packing):
    """Pairs, row after row; `starts` and `lengths` are of their tokens in the file and of their inputs."""

    pairs: np.ndarray
    """int64 [P]."""
    parts: np.ndarray
    """int64 [P, 3]: tokens of prompt, chosen, rejected."""

    def mean_visible_within(self, window: int) -> float:
        """Keys that a token of a row sees on average, at most `window` of them; padding sees none."""
        given, chosen, rejected = (self.parts - [1, 0, 0]).T
        both = _visible(given + chosen, window) + _visible(given + rejected, window)
        is_shared = self.lengths == given + chosen + rejected
        visible = both - np.where(is_shared, _visible(given, window), 0.0)
        return float(visible.sum()) / (self.num_rows * self.seq_len)

    @property
    def report(self) -> PackingReport:
        """Fill and pairs per sequence."""
        return replace(super().report, unit="pairs")


@dataclass(frozen=True)
class PairFile:
    """Tokenised pairs."""

    tokens: np.ndarray
    """uint16 or uint32: prompt, chosen, rejected of pair after pair."""
    parts: np.ndarray
    """int64 [D, 3]: tokens of prompt, chosen, rejected; all at least 1."""
    is_shared: np.ndarray
    """bool [D], which of the two forms a pair takes in a sequence."""
    starts: np.ndarray
    """int64 [D], where a pair begins in `tokens`."""

    @classmethod
    def of(cls, tokens: np.ndarray, parts: np.ndarray, is_shared: np.ndarray) -> "PairFile":
        """From its arrays."""
        totals = parts.sum(axis=1)
        return cls(tokens, parts, is_shared, np.cumsum(totals) - totals)

    @property
    def num_documents(self) -> int:
        """Pairs D."""
        return len(self.parts)

    @property
    def num_targets(self) -> int:
        """Tokens of all answers."""
        return int(self.parts[:, 1:].sum())

    def pack(self, seq_len: int, generator: np.random.Generator) -> PairPacking:
        """Best-fit decreasing of whole pairs, as in `oarlock.train.data.packing`."""
        given = self.parts[:, 0] - 1
        lengths = given * np.where(self.is_shared, 1, 2) + self.parts[:, 1:].sum(axis=1)
        order, row_offsets = arrange(lengths, seq_len, generator)
        return PairPacking(
            seq_len,
            self.starts[order],
            lengths[order],
            np.zeros(len(order), np.int64),
            row_offsets,
            num_documents=self.num_documents,
            num_cut=0,
            pairs=order,
            parts=self.parts[order],
        )

    def assemble(self, seq_len: int, rows: Sequence[tuple[Packing, int] | None]) -> PairBatch:
        """Gather rows; see `Packable`."""
        shape = (len(rows), seq_len)
        inputs, targets = np.full(shape, self.tokens[-1], np.int64), np.full(shape, IGNORED, np.int64)
        positions, answers = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
        groups: list[list[list[int]]] = []
        pairs: list[int] = []
        for row, taken in enumerate(rows):
            at, of_row = 0, []
            for pair in _pairs_of(taken):
                for lengths, ids, wanted, place, which in self._forms(pair):
                    here = slice(at, at + len(ids))
                    inputs[row, here], targets[row, here], positions[row, here] = ids, wanted, place
                    answers[row, here] = np.where(which < 0, -1, 2 * len(pairs) + which)
                    at += len(ids)
                    of_row.append(lengths)
                pairs.append(pair)
            if left := seq_len - at:
                of_row.append([left])
                positions[row, at:] = np.arange(left)
            groups.append(of_row)
        lengths = [[sum(group) for group in of_row] for of_row in groups]
        tensors = [torch.from_numpy(array) for array in (inputs, targets, positions)]
        return PairBatch(
            *tensors,
            lengths=lengths,
            num_targets=int((targets != IGNORED).sum()),
            num_target_bytes=0,
            groups=groups,
            answers=torch.from_numpy(answers),
            pairs=torch.tensor(pairs, dtype=torch.int64),
        )

    def _forms(self, pair: int) -> list[tuple[list[int], np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Groups of a pair: lengths of its parts, inputs, targets, positions, and whose target it is (-1: nobody's)."""
        num_prompt, *sizes = self.parts[pair].tolist()
        given, begin = num_prompt - 1, int(self.starts[pair])
        prompt = self.tokens[begin : begin + num_prompt].astype(np.int64)
        head = (prompt[:-1], np.full(given, IGNORED), np.arange(given), np.full(given, -1))
        tails, first = [], begin + num_prompt
        for which, size in enumerate(sizes):
            answer = self.tokens[first : first + size].astype(np.int64)
            first += size
            tails.append((np.append(prompt[-1:], answer[:-1]), answer, given + np.arange(size), np.full(size, which)))
        if self.is_shared[pair]:
            return [([given, *sizes], *_joined(head, *tails))]
        return [([given + size], *_joined(head, tail)) for size, tail in zip(sizes, tails, strict=True)]


_Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _joined(*parts: _Columns) -> _Columns:
    ids, targets, positions, whose = (np.concatenate(column) for column in zip(*parts, strict=True))
    return ids, targets, positions, whose


def _pairs_of(taken: tuple[Packing, int] | None) -> list[int]:
    if taken is None:
        return []
    packing, row = taken
    assert isinstance(packing, PairPacking)
    return packing.pairs[packing.row_offsets[row] : packing.row_offsets[row + 1]].tolist()


def _visible(length: np.ndarray, window: int) -> np.ndarray:
    """Visible pairs of a causal text: 1 + 2 + ... up to the window, which then stays full."""
    ramp = np.minimum(length, window).astype(float)
    return ramp * (ramp + 1) / 2 + (length - ramp) * window
