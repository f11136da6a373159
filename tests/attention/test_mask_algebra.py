"""Combining, padding, localising and converting masks, against the same on dense masks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attention.oracle import column_masks, dense_attention
from oarlock.attention import ColumnMask


@settings(deadline=None, max_examples=60)
@given(mask=column_masks(40, batch=2, heads=(1, 2)))
def test_from_dense_gives_any_column_mask_back(mask):
    """Exact and never larger than the mask that it came from."""
    again = ColumnMask.from_dense(mask.to_dense())
    assert torch.equal(again.to_dense(), mask.to_dense())
    assert again.bounds.shape[3] <= mask.bounds.shape[3] or again.bounds.shape[3] == 2
    assert again.equal(mask)
    assert ((again.bounds >= 0) & (again.bounds <= mask.seqlen_q)).all()


def test_from_dense_names_the_first_column_in_the_way():
    visible = torch.ones(9, 6, dtype=torch.bool)
    visible[::2, 4] = False
    with pytest.raises(ValueError, match=r"causal=False column 4 is the first that fails, it hides \[0, 1\), \[2, 3\)"):
        ColumnMask.from_dense(visible)
    visible = torch.ones(2, 3, 9, 6, dtype=torch.bool)
    visible[1, 2, ::2, 5] = False
    with pytest.raises(ValueError, match="column 5 of batch row 1, head 2"):
        ColumnMask.from_dense(visible)
    with pytest.raises(ValueError, match="must be bool"):
        ColumnMask.from_dense(torch.ones(3, 3))


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_and_is_the_intersection_or_an_error(data):
    first = data.draw(column_masks(25))
    seed = data.draw(st.integers(0, 2**31))
    n, causal = data.draw(st.sampled_from([(1, True), (2, True), (2, False), (4, False)]))
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 1, first.seqlen_k, n)
    second = ColumnMask(torch.randint(-1, first.seqlen_q + 2, shape, generator=generator), causal, first.seqlen_q)
    visible = first.to_dense() & second.to_dense()
    try:
        both = first & second
    except ValueError as error:
        assert "the intersection of the masks does not fit" in str(error)  # noqa: PT017
        with pytest.raises(ValueError, match="does not fit"):
            ColumnMask.from_dense(visible)
        return
    assert torch.equal(both.to_dense(), visible)
    assert (second & first).equal(both)


def test_and_of_the_usual_masks_stays_small():
    documents, window = ColumnMask.causal_document([7, 13, 5]), ColumnMask.sliding_window(25, left=3)
    both = documents & window
    assert (both.causal, both.bounds.shape[3]) == (True, 1)
    assert both.equal(ColumnMask.causal_document([7, 13, 5], window=4))
    padded = ColumnMask.causal_document([7, 13, 5]) & ColumnMask.padding([22, 25], 25)
    assert padded.bounds.shape == (2, 1, 25, 1)
    heads = ColumnMask(documents.bounds.repeat(1, 3, 1, 1), True, 25) & window
    assert heads.num_heads == 3
    with pytest.raises(ValueError, match="different size"):
        documents & ColumnMask.full(24)


@settings(deadline=None, max_examples=60)
@given(mask=column_masks(30, batch=2), rows=st.integers(0, 5), keys=st.integers(0, 5))
def test_padding_appends_what_sees_nothing(mask, rows, keys):
    wanted = torch.zeros(2, 1, mask.seqlen_q + rows, mask.seqlen_k + keys, dtype=torch.bool)
    wanted[:, :, : mask.seqlen_q, : mask.seqlen_k] = mask.to_dense()
    try:
        padded = mask.pad_to(mask.seqlen_q + rows, mask.seqlen_k + keys)
    except ValueError as error:
        assert "does not fit" in str(error)  # noqa: PT017
        with pytest.raises(ValueError, match="does not fit"):
            ColumnMask.from_dense(wanted)
        return
    assert torch.equal(padded.to_dense(), wanted)
    if rows:
        with pytest.raises(ValueError, match="fewer"):
            padded.pad_to(mask.seqlen_q)


@settings(deadline=None, max_examples=100)
@given(mask=column_masks(40, batch=2, heads=(1, 2)), data=st.data())
def test_localize_is_a_choice_of_rows(mask, data):
    rows = torch.tensor(
        data.draw(st.lists(st.integers(0, mask.seqlen_q - 1), unique=True).map(sorted)), dtype=torch.long
    )
    local = mask.localize(rows)
    assert torch.equal(local.to_dense(), mask.to_dense()[:, :, rows])
    with pytest.raises(ValueError, match="ascending"):
        mask.localize(torch.tensor([1, 1]))


@settings(deadline=None, max_examples=60)
@given(mask=column_masks(30, batch=2, heads=(1, 3)))
def test_flops_count_the_visible_pairs(mask):
    pairs = int(mask.to_dense().expand(2, mask.num_heads, -1, -1).sum()) * 6 // mask.num_heads
    assert mask.flops(6, 16) == 4 * 16 * pairs
    assert mask.flops(6, 16, 8) == 2 * (16 + 8) * pairs
    assert mask.flops(6, 16, 8, backward=True) == 2 * (3 * 16 + 2 * 8) * pairs
    assert mask.flops(6, 16, batch=4) == 8 * 16 * pairs


FLEX = {
    "documents": ColumnMask.causal_document([[100, 156, 44], [300]]),
    "prefix": ColumnMask.prefix_lm(300, 150),
    "global": ColumnMask.global_window(300, num_global=9, left=30, right=20),
    "rows and keys": ColumnMask.plain_causal(200, 330),
    "heads": ColumnMask.key_eviction(torch.randint(0, 300, (1, 2, 300))),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", FLEX)
def test_flex_block_masks(name):
    """The same blocks as create_block_mask, which evaluates every pair, and the same attention."""
    mask = FLEX[name]
    ours = mask.to_flex_block_mask(num_heads=4, block_size=64)
    heads = 4 if mask.num_heads > 1 else None
    theirs = create_block_mask(
        ours.mask_mod, mask.batch, heads, mask.seqlen_q, mask.seqlen_k, device="cpu", BLOCK_SIZE=64
    )
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    for which in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, which), getattr(theirs, which)), which

    query = torch.randn(mask.batch, mask.seqlen_q, 4, 8)
    key, value = torch.randn(2, mask.batch, mask.seqlen_k, 4, 8).unbind()
    expected, _ = dense_attention(query, key, value, mask.to_dense(), 8**-0.5)
    got = flex_attention(*(x.transpose(1, 2) for x in (query, key, value)), block_mask=ours).transpose(1, 2)
    torch.testing.assert_close(got, expected.float(), rtol=1e-5, atol=1e-5)


def test_flex_needs_a_fitting_number_of_heads():
    with pytest.raises(ValueError, match="multiple of the mask's 2 heads"):
        FLEX["heads"].to_flex_block_mask(num_heads=3)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    keys=st.lists(st.integers(1, 6), min_size=5, max_size=5),
    causal=st.booleans(),
)
def test_cu_seqlens_come_back(rows, keys, causal):
    """Through the mask, whenever its documents are told apart; the mask of what comes back is always the same."""
    cu = [torch.tensor([0, *lengths]).cumsum(0) for lengths in (rows, keys[: len(rows)])]
    mask = ColumnMask.from_cu_seqlens(*cu, causal=causal)
    try:
        found = mask.to_cu_seqlens()
    except ValueError:
        # Rows that see nothing, or keys that nobody sees, leave no trace of their document.
        assert causal and (~mask.to_dense().any(-1)).any()  # noqa: PT018
        return
    assert ColumnMask.from_cu_seqlens(*found[:2], causal=found.causal).equal(mask)
    assert found.max_seqlen_q == int(found.cu_seqlens_q.diff().max())


def test_cu_seqlens_of_batches_and_of_other_masks():
    found = ColumnMask.causal_document([[3, 5], [8]]).to_cu_seqlens()
    assert found.cu_seqlens_q.tolist() == [0, 3, 8, 16]
    assert (found.max_seqlen_k, found.causal) == (8, True)
    assert ColumnMask.document([2, 3]).to_cu_seqlens().causal is False
    assert ColumnMask.plain_causal(5, 9).to_cu_seqlens().cu_seqlens_k.tolist() == [0, 9]
    others = [
        ColumnMask.causal_document([9], window=3),
        ColumnMask.share_question([[2, 3, 4]]),
        ColumnMask.prefix_lm(9, 4),
        ColumnMask.padding([5], 9),
        ColumnMask.block_causal(9, block=3),
        ColumnMask.key_eviction(torch.arange(1, 19).view(1, 2, 9)),
    ]
    for mask in others:
        with pytest.raises(ValueError, match="not a document mask"):
            mask.to_cu_seqlens()


def test_a_picture_is_valid_and_dark_where_visible(tmp_path):
    import xml.etree.ElementTree as ElementTree

    path = tmp_path / "mask.svg"
    drawn = ColumnMask.causal_document([300, 724]).plot(path, title="a < b & c")
    assert path.read_text() == drawn == drawn._repr_svg_()
    root = ElementTree.fromstring(drawn)
    assert root.find("{*}text").text == "a < b & c"
    rects = root.findall("{*}g/{*}g/{*}rect")
    area = sum(float(r.get("width")) * float(r.get("height")) * (float(r.get("fill-opacity")) >= 0.5) for r in rects)
    assert area / 256**2 == pytest.approx((300**2 + 724**2) / 2 / 1024**2, rel=0.05)
    assert len(drawn) < 20_000
