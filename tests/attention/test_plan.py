"""The plan of a mask covers each visible pair exactly once, and knows the shapes that need no mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.oracle import column_masks
from oarlock.attention import ColumnMask, plan
from oarlock.attention.plan import Kind, tile_plan


def coverage(mask):
    """How often the plan computes each pair as visible: int [M, Sq, Sk]."""
    found = tile_plan(mask)
    times = torch.zeros(len(found.tiles), mask.seqlen_q, mask.seqlen_k, dtype=torch.long)
    for index, tiles in enumerate(found.tiles):
        for tile in tiles:
            for segment in tile.segments:
                rows, keys = slice(*tile.rows), slice(*segment.keys)
                block = torch.ones_like(times[index, rows, keys])
                if segment.kind is Kind.CAUSAL:
                    assert block.shape[0] == block.shape[1]
                    block = block.tril()
                elif segment.kind is Kind.PARTIAL:
                    bias = found.bias(index, tile, segment, torch.float32)
                    assert set(bias.values.unique().tolist()) <= {0.0, -torch.inf}
                    block = (bias.values == 0).long()
                    blind_rows = (
                        torch.zeros(len(block), dtype=torch.bool) if bias.blind_rows is None else bias.blind_rows
                    )
                    assert torch.equal(blind_rows, block.sum(1) == 0)
                times[index, rows, keys] += block
    return times


@settings(deadline=None, max_examples=120)
@given(mask=column_masks(120, batch=2, heads=(1, 2)), sizes=st.tuples(*[st.integers(1, 40)] * 4))
def test_each_visible_pair_is_computed_once_and_no_other(mask, sizes):
    constants = ("TILE_ROWS", "MIN_RUN", "MIN_FULL_KEYS", "MIN_GAP_KEYS")
    with pytest.MonkeyPatch.context() as patch:
        for name, size in zip(constants, sizes, strict=True):
            patch.setattr(plan, name, size)
        found = coverage(mask)
    assert torch.equal(found.expand(mask.batch * mask.num_heads, -1, -1), mask.to_dense().flatten(0, 1).long())


@pytest.mark.parametrize(
    "mask",
    [
        ColumnMask.causal_document([1, 40, 300, 2, 3, 160, 1], window=50),
        ColumnMask.sliding_window(300, 500, left=90, right=20),
        ColumnMask.plain_causal(300, 900),
        ColumnMask.plain_causal(900, 300),
    ],
)
def test_masks_of_the_usual_shapes(mask):
    assert torch.equal(coverage(mask), mask.to_dense().flatten(0, 1).long())


def test_equal_masks_share_one_plan():
    mask = ColumnMask.causal_document([[30, 20]] * 3)
    assert len(tile_plan(mask).tiles) == 1
    assert len(tile_plan(ColumnMask.causal_document([[30, 20], [20, 30]])).tiles) == 2


def test_a_document_is_one_causal_square_and_a_decoding_step_one_rectangle():
    documents = tile_plan(ColumnMask.causal_document([100, 40, 500]))
    assert [(tile.rows, tile.segments[0].keys) for tile in documents.tiles[0]] == [
        (span, span) for span in ((0, 100), (100, 140), (140, 640))
    ]
    assert {segment.kind for tile in documents.tiles[0] for segment in tile.segments} == {Kind.CAUSAL}
    assert documents.covers_rows
    assert documents.covers_keys_once
    assert documents.single is None
    assert tile_plan(ColumnMask.plain_causal(1, 800)).single is Kind.FULL
    assert tile_plan(ColumnMask.plain_causal(500)).single is Kind.CAUSAL
    assert tile_plan(ColumnMask.plain_causal(500, 800)).single is None


def test_a_prefix_is_computed_without_a_mask():
    (tile,) = tile_plan(ColumnMask.plain_causal(256, 1000)).tiles[0]
    assert [(s.keys, s.kind) for s in tile.segments] == [((0, 744), Kind.FULL), ((744, 1000), Kind.CAUSAL)]


def test_windows_share_their_masks_and_the_kept_masks_are_bounded(monkeypatch):
    mask = ColumnMask.causal_document([4096], window=512)
    found = tile_plan(mask)
    assert tile_plan(mask) is found
    partial = [(t, s) for t in found.tiles[0] for s in t.segments if s.kind is Kind.PARTIAL]
    kept = {found.bias(0, tile, segment, torch.float32).values.data_ptr() for tile, segment in partial}
    assert len(partial) > 10
    assert len(kept) <= 2  # all tiles but the last, shorter one

    monkeypatch.setattr(plan, "BIAS_BYTES", 0)
    bare = tile_plan(ColumnMask.causal_document([4096], window=512))
    first, again = (bare.bias(0, *partial[0], torch.float32).values for _ in range(2))
    assert first.data_ptr() != again.data_ptr()
    assert torch.equal(first, again)
