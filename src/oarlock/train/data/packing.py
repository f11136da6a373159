"""Documents packed into sequences of S tokens: best-fit decreasing, no token lost, no document cut without need.

    pieces = pack(offsets, num_bytes, seq_len, np.random.default_rng(0))
    print(pieces.report)

A document of n tokens has L = n + 1 inputs (begin marker, t1 .. tn) and L targets (t1 .. tn, end marker): the target
of a token is the token after it. A document with L > S is cut into ceil(L / S) pieces; the last target of a piece is
the first input of the next one, so every target is predicted once.

Letters: D documents, P pieces, R rows (sequences), S tokens per sequence.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

# Lengths are compared in steps of S / 64 and shuffled within a step: packs then differ between epochs.
_STEPS = 64


@dataclass(frozen=True)
class PackingReport:
    """What a packing looks like."""

    num_sequences: int
    num_documents: int
    num_cut: int
    """Documents longer than a sequence."""
    num_pieces: int
    fill: float
    """Share of the sequences' tokens that is not padding."""
    pieces_per_sequence: float
    unit: str = "documents"

    def __str__(self) -> str:
        return (
            f"{self.num_sequences} sequences, fill {self.fill:.2%}, "
            f"{self.pieces_per_sequence:.2f} {self.unit} per sequence, "
            f"{self.num_cut} of {self.num_documents} {self.unit} cut"
        )


@dataclass(frozen=True)
class Packing:
    """Pieces of documents, row after row."""

    seq_len: int
    starts: np.ndarray
    """int64 [P], index of a piece's first input in the token file; its targets begin one later."""
    lengths: np.ndarray
    """int64 [P], inputs (= targets) of a piece."""
    num_bytes: np.ndarray
    """int64 [P], bytes of text of a piece; the pieces of a cut document share its bytes in proportion."""
    row_offsets: np.ndarray
    """int64 [R + 1]: row r holds the pieces row_offsets[r] to row_offsets[r + 1]."""
    num_documents: int
    num_cut: int

    @property
    def num_rows(self) -> int:
        """Sequences R."""
        return len(self.row_offsets) - 1

    @property
    def mean_visible(self) -> float:
        """Keys that a token of a row sees on average: itself and those before it in its piece; padding sees none."""
        return self.mean_visible_within(self.seq_len)

    def mean_visible_within(self, window: int) -> float:
        """The same where a token sees only the last `window` of these keys, itself included."""
        ramp = np.minimum(self.lengths, window).astype(float)  # the first tokens of a piece see 1, 2, ... keys
        visible = ramp * (ramp + 1) / 2 + (self.lengths - ramp) * window
        return float(visible.sum()) / (self.num_rows * self.seq_len)

    @property
    def report(self) -> PackingReport:
        """Fill, documents per sequence, documents cut."""
        return PackingReport(
            num_sequences=self.num_rows,
            num_documents=self.num_documents,
            num_cut=self.num_cut,
            num_pieces=len(self.lengths),
            fill=float(self.lengths.sum()) / (self.num_rows * self.seq_len),
            pieces_per_sequence=len(self.lengths) / self.num_rows,
        )


def pack(offsets: np.ndarray, num_bytes: np.ndarray, seq_len: int, generator: np.random.Generator) -> Packing:
    """Pack all documents of a token file, in rows of random order.

    Args:
        offsets: int64 [D + 1], where documents (with both markers) begin in the token file.
        num_bytes: int64 [D], bytes of their texts.
        seq_len: tokens S of a sequence.
        generator: decides the order of equal lengths and of the rows; the same state gives the same packing.

    Returns:
        Rows of pieces with at most S tokens each, every target in exactly one of them.

    Raises:
        ValueError: seq_len < 1, or no documents.
    """
    if seq_len < 1:
        raise ValueError(f"seq_len = {seq_len}: must be at least 1")
    if len(num_bytes) == 0:
        raise ValueError("no documents to pack")
    starts, lengths, piece_bytes, num_cut = _cut(offsets, num_bytes, seq_len)
    order, row_offsets = arrange(lengths, seq_len, generator)
    return Packing(seq_len, starts[order], lengths[order], piece_bytes[order], row_offsets, len(num_bytes), num_cut)


def arrange(lengths: np.ndarray, seq_len: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Best-fit decreasing into rows of random order.

    Args:
        lengths: int64 [P], each at most S.
        seq_len: tokens S of a row.
        generator: as in `pack`.

    Returns:
        The pieces row after row, int64 [P], and where the rows begin in it, int64 [R + 1].
    """
    order = generator.permutation(len(lengths))
    step = max(1, seq_len // _STEPS)
    order = order[np.argsort(-(lengths[order] // step), kind="stable")]
    rows, num_rows = _best_fit(lengths[order], seq_len)
    place = generator.permutation(num_rows)[rows]
    by_row = np.argsort(place, kind="stable")
    order = order[by_row]
    row_offsets = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(place, minlength=num_rows), out=row_offsets[1:])
    return order, row_offsets


def _cut(offsets: np.ndarray, num_bytes: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Starts, lengths and bytes of the pieces, and the number of documents cut."""
    targets = np.diff(offsets) - 1
    num_pieces = -(-targets // seq_len)
    document = np.repeat(np.arange(len(targets)), num_pieces)
    first_piece = np.cumsum(num_pieces) - num_pieces
    begin = (np.arange(len(document)) - first_piece[document]) * seq_len
    end = np.minimum(begin + seq_len, targets[document])

    def bytes_before(position: np.ndarray) -> np.ndarray:
        return position * num_bytes[document] // targets[document]

    return offsets[document] + begin, end - begin, bytes_before(end) - bytes_before(begin), int((num_pieces > 1).sum())


def _best_fit(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, int]:
    """Put each length, in the given order, into the fullest row it fits in; O(log S) comparisons each.

    Returns:
        Row of each length, and the number of rows.
    """
    rows = np.empty(len(lengths), np.int64)
    num_rows = 0
    open_rows: dict[int, list[int]] = {}  # room left -> rows
    rooms: list[int] = []  # the keys of open_rows, ascending
    for index, length in enumerate(lengths.tolist()):
        at = bisect_left(rooms, length)
        if at == len(rooms):
            row, room = num_rows, capacity
            num_rows += 1
        else:
            room = rooms[at]
            row = open_rows[room].pop()
            if not open_rows[room]:
                del open_rows[room], rooms[at]
        rows[index] = row
        if left := room - length:
            if left not in open_rows:
                open_rows[left] = []
                insort(rooms, left)
            open_rows[left].append(row)
    return rows, num_rows
