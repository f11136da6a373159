"""Sliding windows laid over masks, against the dense definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.attention import ColumnMask
from oarlock.models.window import with_window


def dense_window(seqlen_q: int, seqlen_k: int, window: int) -> torch.Tensor:
    position = torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    return position - torch.arange(seqlen_k) < window


@settings(max_examples=60, deadline=None)
@given(
    seqlen_q=st.integers(1, 12), past=st.integers(0, 9), window=st.integers(1, 25), two=st.booleans(), data=st.data()
)
def test_equals_the_dense_intersection_or_is_refused(seqlen_q, past, window, two, data):
    seqlen_k = seqlen_q + past
    rows = st.integers(0, seqlen_q + 2)
    columns = [data.draw(st.lists(rows, min_size=seqlen_k, max_size=seqlen_k)) for _ in range(2 if two else 1)]
    mask = ColumnMask(torch.tensor(columns, dtype=torch.int32).T[None, None].contiguous(), True, seqlen_q)
    expected = mask.to_dense() & dense_window(seqlen_q, seqlen_k, window)
    try:
        assert torch.equal(with_window(mask, window).to_dense(), expected)
    except ValueError:
        assert two
    else:
        assert with_window(mask, window) is with_window(mask, window)  # made once


def test_documents_with_a_window_are_the_constructor_of_the_same_name():
    ours = with_window(ColumnMask.causal_document([5, 9, 2]), 4)
    assert torch.equal(ours.to_dense(), ColumnMask.causal_document([5, 9, 2], window=4).to_dense())


def test_padding_hidden_from_all_rows_stays_hidden():
    """Left padding of generation: a column whose first hidden row is 0."""
    bounds = torch.tensor([0, 0, 6, 6, 6, 6], dtype=torch.int32).view(1, 1, 6, 1)
    mask = with_window(ColumnMask(bounds, True, 6), 3)
    assert not mask.to_dense()[..., :2].any()


def test_none_is_the_mask_itself_and_bidirectional_masks_are_refused():
    mask = ColumnMask.plain_causal(4)
    assert with_window(mask, None) is mask
    with pytest.raises(ValueError, match="needs a causal mask"):
        with_window(ColumnMask.full(4), 2)
    shown_again = ColumnMask(torch.tensor([[1, 2]] * 6, dtype=torch.int32).view(1, 1, 6, 2), True, 6)
    with pytest.raises(ValueError, match="do not fit one column mask"):
        with_window(shown_again, 5)
