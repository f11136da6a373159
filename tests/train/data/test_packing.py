"""Packing predicts every target exactly once, fills rows like plain best-fit decreasing, and repeats itself by seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarlock.train.data import Packing, TokenFile, pack
from oarlock.train.data.packing import _best_fit

NUM_TOKENS = st.lists(st.integers(0, 40), min_size=1, max_size=60)


def file_of(num_tokens: list[int]) -> TokenFile:
    """Documents whose targets are all different: a lost or doubled one shows."""
    fresh = iter(range(10, 10**6))
    documents = [[next(fresh) for _ in range(count)] for count in num_tokens]
    return TokenFile.from_documents(documents, [3 * count for count in num_tokens], begin_id=1, end_id=2)


def packed(file: TokenFile, seq_len: int, seed: int = 0) -> Packing:
    return pack(file.offsets, file.num_bytes, seq_len, np.random.default_rng(seed))


@given(num_tokens=NUM_TOKENS, seq_len=st.integers(1, 50), seed=st.integers(0, 3))
def test_every_target_is_predicted_once_from_its_own_document(num_tokens: list[int], seq_len: int, seed: int) -> None:
    file = file_of(num_tokens)
    packing = packed(file, seq_len, seed)
    pairs = [
        (int(file.tokens[start + i]), int(file.tokens[start + i + 1]))
        for start, length in zip(packing.starts, packing.lengths, strict=True)
        for i in range(length)
    ]
    expected = []
    for index in range(file.num_documents):
        inputs = [1, *file.document(index).tolist()]
        expected += list(zip(inputs, [*inputs[1:], 2], strict=True))
    assert sorted(pairs) == sorted(expected)
    assert packing.num_bytes.sum() == file.total_bytes
    assert (packing.num_bytes >= 0).all()


@given(num_tokens=NUM_TOKENS, seq_len=st.integers(1, 50))
def test_rows_hold_at_most_a_sequence_and_cut_only_what_is_longer(num_tokens: list[int], seq_len: int) -> None:
    file = file_of(num_tokens)
    packing = packed(file, seq_len)
    rows = [packing.lengths[a:b] for a, b in zip(packing.row_offsets, packing.row_offsets[1:], strict=False)]
    assert all(0 < row.sum() <= seq_len for row in rows)
    pieces = sum(-(-(count + 1) // seq_len) for count in num_tokens)
    report = packing.report
    assert report.num_pieces == len(packing.lengths) == pieces
    assert report.num_cut == sum(count + 1 > seq_len for count in num_tokens)
    assert report.num_documents == len(num_tokens)
    assert report.fill == pytest.approx(file.num_targets / (len(rows) * seq_len))
    assert report.pieces_per_sequence == pytest.approx(pieces / len(rows))
    visible = sum(i + 1 for row in rows for length in row for i in range(length))
    assert packing.mean_visible == pytest.approx(visible / (len(rows) * seq_len))
    for window in (1, 3, seq_len):
        visible = sum(min(i + 1, window) for row in rows for length in row for i in range(length))
        assert packing.mean_visible_within(window) == pytest.approx(visible / (len(rows) * seq_len))
    if len(rows) > 1:  # no two rows could be one
        assert sum(sorted(row.sum() for row in rows)[:2]) > seq_len


@given(lengths=st.lists(st.integers(1, 20), max_size=80))
def test_best_fit_is_the_plain_definition(lengths: list[int]) -> None:
    room: list[int] = []
    for length in lengths:
        fitting = [left for left in room if left >= length]
        if fitting:
            room[room.index(min(fitting))] -= length
        else:
            room.append(20 - length)
    rows, num_rows = _best_fit(np.array(lengths, np.int64), 20)
    assert num_rows == len(room)
    filled = np.bincount(rows, weights=lengths, minlength=num_rows) if lengths else np.zeros(0)
    assert sorted(20 - filled) == sorted(room)


def test_documents_of_many_sizes_fill_the_sequences() -> None:
    sizes = np.random.default_rng(0).lognormal(5, 1, 2000).astype(int).tolist()
    report = packed(file_of(sizes), 1024).report
    assert report.fill > 0.99
    assert "documents per sequence" in str(report)


@pytest.mark.parametrize(
    ("num_tokens", "seq_len"),
    [
        (np.random.default_rng(1).integers(0, 30, 200).tolist(), 64),
        (np.random.default_rng(1).choice(1000, 300, replace=False).tolist(), 2048),  # no two of one length
    ],
)
def test_same_seed_same_packing_and_epochs_differ(num_tokens: list[int], seq_len: int) -> None:
    file = file_of(num_tokens)
    first, again, other = (packed(file, seq_len, seed) for seed in (5, 5, 6))
    for name in ("starts", "lengths", "num_bytes", "row_offsets"):
        assert np.array_equal(getattr(first, name), getattr(again, name))

    def companions(packing: Packing) -> set[frozenset[int]]:
        bounds = zip(packing.row_offsets, packing.row_offsets[1:], strict=False)
        return {frozenset(packing.starts[a:b].tolist()) for a, b in bounds}

    assert len(companions(first) & companions(other)) < len(companions(first)) / 2


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="seq_len = 0"):
        packed(file_of([3]), 0)
    with pytest.raises(ValueError, match="no documents"):
        pack(np.zeros(1, np.int64), np.zeros(0, np.int64), 8, np.random.default_rng(0))
