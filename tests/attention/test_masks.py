"""Column masks: their counts against the written-out mask, their constructors against the predicates they state."""

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.oracle import LAYOUTS, column_masks, visible_pairs
from oarlock.attention import ColumnMask
from oarlock.attention.masks import FULL, PARTIAL, SKIP


def rows_and_keys(seqlen_q, seqlen_k):
    return torch.arange(seqlen_q)[:, None], torch.arange(seqlen_k)[None]


@settings(deadline=None, max_examples=60)
@given(mask=column_masks(24, batch=2, heads=(1, 2)))
def test_to_dense_is_the_definition(mask):
    assert torch.equal(mask.to_dense(), visible_pairs(mask.bounds, mask.causal, mask.seqlen_q))


@settings(deadline=None, max_examples=150)
@given(mask=column_masks(90, batch=2, heads=(1, 3)), block_q=st.integers(1, 40), block_k=st.integers(1, 40))
def test_counts_and_classes_equal_the_sums_of_the_dense_mask(mask, block_q, block_k):
    dense = mask.to_dense()
    assert torch.equal(mask.visible_per_row(), dense.sum(-1))
    assert mask.density == pytest.approx(dense.double().mean().item(), abs=1e-12)

    tiles_q, tiles_k = -(-mask.seqlen_q // block_q), -(-mask.seqlen_k // block_k)
    pad = (0, tiles_k * block_k - mask.seqlen_k, 0, tiles_q * block_q - mask.seqlen_q)

    def tile_sums(x):
        x = torch.nn.functional.pad(x.long(), pad)
        return x.view(*x.shape[:2], tiles_q, block_q, tiles_k, block_k).sum((3, 5))

    counts, areas = tile_sums(dense), tile_sums(torch.ones_like(dense))
    assert torch.equal(mask.visible_per_tile(block_q, block_k), counts)
    classes = torch.where(counts == 0, SKIP, torch.where(counts == areas, FULL, PARTIAL))
    assert torch.equal(mask.tile_classes(block_q, block_k), classes.to(torch.int8))


@pytest.mark.parametrize("empty", [(9, 9), (0, 0), (5, 5), (7, 3), (-4, 0), (12, 30)])
def test_every_spelling_of_an_empty_interval_means_the_same(empty):
    bounds = torch.tensor(empty, dtype=torch.int32).expand(1, 1, 6, 2)
    assert torch.equal(ColumnMask(bounds, True, 9).to_dense(), ColumnMask.plain_causal(9, 6).to_dense())
    rest = torch.tensor([2, 4, *empty], dtype=torch.int32).expand(1, 1, 6, 4)
    swapped = rest.roll(2, dims=-1)
    alone = ColumnMask(rest, False, 9)
    assert torch.equal(alone.to_dense(), ColumnMask(swapped, False, 9).to_dense())
    assert alone.visible_per_row().tolist() == [[[0 if 2 <= i < 4 else 6 for i in range(9)]]]


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(9, 9), (4, 9), (9, 4), (1, 7), (0, 3), (3, 0)])
def test_constructors_with_rows_and_keys(seqlen_q, seqlen_k):
    i, j = rows_and_keys(seqlen_q, seqlen_k)
    position = i + seqlen_k - seqlen_q
    everything = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool)
    assert torch.equal(ColumnMask.full(seqlen_q, seqlen_k).to_dense()[0, 0], everything)
    causal = ColumnMask.plain_causal(seqlen_q, seqlen_k, batch=2)
    assert torch.equal(causal.to_dense(), (j <= position).expand(2, 1, -1, -1))
    for left, right in ((0, 0), (3, 0), (2, 1)):
        window = ColumnMask.sliding_window(seqlen_q, seqlen_k, left=left, right=right)
        assert torch.equal(window.to_dense()[0, 0], (j >= position - left) & (j <= position + right))


def test_documents():
    i, j = rows_and_keys(10, 10)
    lengths = [[3, 1, 0, 6], [10]]
    document = torch.tensor([[0, 0, 0, 1, 3, 3, 3, 3, 3, 3], [0] * 10])
    same = document[:, :, None] == document[:, None, :]
    assert torch.equal(ColumnMask.document(lengths).to_dense()[:, 0], same)
    assert torch.equal(ColumnMask.causal_document(lengths).to_dense()[:, 0], same & (j <= i))
    windowed = ColumnMask.causal_document(lengths, window=2)
    assert torch.equal(windowed.to_dense()[:, 0], same & (j <= i) & (i - j < 2))
    assert torch.equal(
        ColumnMask.causal_document(lengths[0]).to_dense(), ColumnMask.causal_document([lengths[0]]).to_dense()
    )
    assert ColumnMask.causal_document(lengths).batch == 2


def test_moving_and_pickling_keep_the_mask(device):
    mask = ColumnMask.causal_document([3, 5])
    assert mask.to("cpu") is mask
    moved = mask.to(device)
    assert moved.device.type == device.type
    assert torch.equal(moved.to_dense().cpu(), mask.to_dense())
    assert torch.equal(moved.visible_per_row().cpu(), mask.visible_per_row())
    copy = pickle.loads(pickle.dumps(mask))
    assert torch.equal(copy.bounds, mask.bounds)
    assert (copy.causal, copy.seqlen_q) == (True, 8)


def test_int64_bounds_are_converted_and_clamped():
    mask = ColumnMask(torch.tensor([[[[2**40], [-(2**40)]]]]), True, 2)
    assert mask.bounds.dtype == torch.int32
    assert mask.to_dense().tolist() == [[[[True, False], [True, False]]]]


def test_what_a_mask_refuses():
    with pytest.raises(TypeError, match=r"int32 \(or int64\) tensor of row indices, got torch.float32"):
        ColumnMask(torch.zeros(1, 1, 4, 1), True, 4)
    with pytest.raises(ValueError, match=r"\[batch, heads, seqlen_k, n\], got \[4, 1\]"):
        ColumnMask(torch.zeros(4, 1, dtype=torch.int32), True, 4)
    for n, causal in [(n, causal) for n in (1, 2, 3, 4) for causal in (True, False) if (n, causal) not in LAYOUTS]:
        with pytest.raises(ValueError, match="the second column is LTE with causal and UTE without"):
            ColumnMask(torch.zeros(1, 1, 4, n, dtype=torch.int32), causal, 4)
    with pytest.raises(ValueError, match=r"same sum, got \[4, 5\]"):
        ColumnMask.causal_document([[4], [2, 3]])
    with pytest.raises(ValueError, match="not be negative"):
        ColumnMask.document([5, -1])
    with pytest.raises(ValueError, match="window must be at least 1"):
        ColumnMask.causal_document([4], window=0)
    with pytest.raises(ValueError, match="left and right"):
        ColumnMask.sliding_window(4, left=-1)
