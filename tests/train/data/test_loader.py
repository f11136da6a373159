"""Batches against a loop over the documents; resumption at any step; ranks share rows without overlap or loss."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oarlock.train.data import Batch, EvaluationLoader, PackedLoader, TokenFile

BEGIN, END = 1, 2


def file_of(num_tokens: list[int]) -> TokenFile:
    fresh = iter(range(10, 10**6))
    documents = [[next(fresh) for _ in range(count)] for count in num_tokens]
    return TokenFile.from_documents(documents, [2 * count for count in num_tokens], BEGIN, END)


@pytest.fixture(scope="module")
def file() -> TokenFile:
    return file_of(np.random.default_rng(0).integers(0, 50, 83).tolist())


def assert_equal(first: Batch, second: Batch) -> None:
    for name in ("input_ids", "targets", "position_ids"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert first.lengths == second.lengths
    assert (first.num_targets, first.num_target_bytes) == (second.num_targets, second.num_target_bytes)


def predictions(batches: list[Batch]) -> Counter[tuple[int, int]]:
    """(input, target) pairs that carry a loss."""
    pairs: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        used = batch.targets != -100
        pairs.update(zip(batch.input_ids[used].tolist(), batch.targets[used].tolist(), strict=True))
    return pairs


def expected_predictions(file: TokenFile) -> Counter[tuple[int, int]]:
    pairs: Counter[tuple[int, int]] = Counter()
    for index in range(file.num_documents):
        pairs.update(pairwise([BEGIN, *file.document(index).tolist(), END]))
    return pairs


def test_a_batch_written_out() -> None:
    file = TokenFile.from_documents([[5, 6, 7], [8]], [30, 10], BEGIN, END)
    batch = PackedLoader(file, seq_len=8, batch_size=1).next_batch()
    assert batch.lengths == [[4, 2, 2]]
    assert batch.input_ids.tolist() == [[1, 5, 6, 7, 1, 8, 2, 2]]
    assert batch.targets.tolist() == [[5, 6, 7, 2, 8, 2, -100, -100]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 0, 1]]
    assert (batch.num_targets, batch.num_target_bytes) == (6, 40)
    assert {tensor.dtype for tensor in (batch.input_ids, batch.targets, batch.position_ids)} == {torch.int64}


def test_a_cut_document_written_out() -> None:
    file = TokenFile.from_documents([[5, 6, 7, 8]], [11], BEGIN, END)
    rows = list(EvaluationLoader(file, seq_len=3, batch_size=1))
    rows.sort(key=lambda batch: batch.num_targets, reverse=True)
    assert [batch.input_ids.tolist() for batch in rows] == [[[1, 5, 6]], [[7, 8, 2]]]
    assert [batch.targets.tolist() for batch in rows] == [[[5, 6, 7]], [[8, 2, -100]]]
    assert [batch.position_ids.tolist() for batch in rows] == [[[0, 1, 2]], [[0, 1, 0]]]
    assert [batch.num_target_bytes for batch in rows] == [6, 5]  # 11 bytes over 5 targets: 3/5 and the rest


def test_rows_are_what_a_loop_over_documents_gives(file: TokenFile) -> None:
    tokens = file.tokens.tolist()
    for batch in EvaluationLoader(file, seq_len=32, batch_size=3):
        assert batch.input_ids.shape == batch.targets.shape == batch.position_ids.shape == (3, 32)
        for row, lengths in enumerate(batch.lengths):
            assert sum(lengths) == 32
            at = 0
            for length in lengths:
                inputs, targets, positions = (
                    tensor[row, at : at + length].tolist()
                    for tensor in (batch.input_ids, batch.targets, batch.position_ids)
                )
                assert positions == list(range(length))
                if targets[0] == -100:
                    assert at + length == 32
                    assert inputs == [END] * length
                    assert targets == [-100] * length
                elif inputs[0] != BEGIN:  # later pieces and whole documents alike stand together in the file
                    start = tokens.index(inputs[0])
                    assert inputs == tokens[start : start + length]
                    assert targets == tokens[start + 1 : start + length + 1]
                else:
                    assert BEGIN not in inputs[1:]
                    assert inputs[1:] == targets[:-1]
                at += length


@given(
    num_tokens=st.lists(st.integers(0, 30), min_size=1, max_size=30),
    seq_len=st.integers(1, 40),
    batch_size=st.integers(1, 4),
    world_size=st.integers(1, 4),
)
def test_evaluation_covers_everything_once(
    num_tokens: list[int], seq_len: int, batch_size: int, world_size: int
) -> None:
    file = file_of(num_tokens)
    ranks = [list(EvaluationLoader(file, seq_len, batch_size, rank, world_size)) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    assert len(ranks[0]) == len(EvaluationLoader(file, seq_len, batch_size, 0, world_size))
    batches = [batch for rank in ranks for batch in rank]
    assert all(batch.input_ids.shape == (batch_size, seq_len) for batch in batches)
    assert predictions(batches) == expected_predictions(file)
    assert sum(batch.num_targets for batch in batches) == file.num_targets
    assert sum(batch.num_target_bytes for batch in batches) == file.total_bytes


@pytest.mark.parametrize(("batch_size", "world_size"), [(1, 1), (3, 2), (7, 4)])
def test_epochs_follow_each_other_without_loss(file: TokenFile, batch_size: int, world_size: int) -> None:
    loaders = [PackedLoader(file, 32, batch_size, 9, rank, world_size) for rank in range(world_size)]
    num_epochs = 3
    rows: list[tuple[list[int], list[int]]] = []
    while loaders[0].epoch < num_epochs:
        for batch in [loader.next_batch() for loader in loaders]:
            rows += zip(batch.input_ids.tolist(), batch.targets.tolist(), strict=True)
    reference = PackedLoader(file, 32, 1, 9)
    epochs = []
    for epoch in range(num_epochs):
        of_epoch = []
        while reference.epoch == epoch:
            batch = reference.next_batch()
            of_epoch.append((batch.input_ids[0].tolist(), batch.targets[0].tolist()))
        epochs.append(of_epoch)
    flat = [row for epoch in epochs for row in epoch]
    assert rows[: len(flat)] == flat  # in order, across batches that span two epochs
    for epoch in epochs:
        pairs = Counter(
            pair for inputs, targets in epoch for pair in zip(inputs, targets, strict=True) if pair[1] != -100
        )
        assert pairs == expected_predictions(file)
    assert epochs[0] != epochs[1]


@given(steps=st.integers(0, 60), batch_size=st.integers(1, 5), rank=st.integers(0, 1))
def test_resumes_bitwise_at_any_step(file: TokenFile, steps: int, batch_size: int, rank: int) -> None:
    loader = PackedLoader(file, 48, batch_size, 3, rank, 2)
    for _ in range(steps):
        loader.next_batch()
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = PackedLoader(file, 48, batch_size, 3, rank, 2)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    for _ in range(12):
        assert_equal(loader.next_batch(), resumed.next_batch())


def test_resumes_with_another_world_size(file: TokenFile) -> None:
    """Two ranks of two rows take the same rows per step as four ranks of one, before and after a change."""
    two = [PackedLoader(file, 32, 2, 0, rank, 2) for rank in range(2)]
    for _ in range(5):
        for loader in two:
            loader.next_batch()
    four = [PackedLoader(file, 32, 1, 0, rank, 4) for rank in range(4)]
    for loader in four:
        loader.load_state_dict(two[0].state_dict())
    for _ in range(30):
        assert torch.equal(
            torch.cat([loader.next_batch().input_ids for loader in two]),
            torch.cat([loader.next_batch().input_ids for loader in four]),
        )


def test_a_batch_may_be_larger_than_an_epoch() -> None:
    file = TokenFile.from_documents([[5, 6], [7]], [2, 1], BEGIN, END)
    batch = PackedLoader(file, seq_len=5, batch_size=7).next_batch()
    assert predictions([batch]) == Counter({pair: 7 * n for pair, n in expected_predictions(file).items()})


def test_wrong_states_are_refused(file: TokenFile) -> None:
    loader = PackedLoader(file, 32, 2, seed=1)
    state = loader.state_dict()
    for other, name in (
        (PackedLoader(file, 32, 2, seed=2), "seed was 1, now it is 2"),
        (PackedLoader(file, 64, 2, seed=1), "seq_len was 32, now it is 64"),
        (PackedLoader(file_of([3, 4]), 32, 2, seed=1), "num_documents was 83, now it is 2"),
    ):
        with pytest.raises(ValueError, match=name):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="position 999999"):
        loader.load_state_dict({**state, "position": 999_999})


@pytest.mark.parametrize(
    ("batch_size", "rank", "world_size", "message"),
    [(0, 0, 1, "batch_size = 0"), (1, 0, 0, "world_size = 0"), (1, 2, 2, "rank = 2"), (1, -1, 2, "rank = -1")],
)
def test_wrong_sizes_are_refused(file: TokenFile, batch_size: int, rank: int, world_size: int, message: str) -> None:
    for kind in (lambda *args: PackedLoader(*args[:3], 0, *args[3:]), EvaluationLoader):
        with pytest.raises(ValueError, match=message):
            kind(file, 32, batch_size, rank, world_size)


def test_batches_move_to_a_device(file: TokenFile, device: torch.device) -> None:
    batch = PackedLoader(file, 32, 2).next_batch()
    moved = batch.to(device)
    assert moved.input_ids.device.type == moved.targets.device.type == moved.position_ids.device.type == device.type
    assert torch.equal(moved.targets.cpu(), batch.targets)
    assert moved.lengths == batch.lengths
