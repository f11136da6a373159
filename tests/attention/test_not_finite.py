"""NaN and infinity: what holds one reaches whatever sees it, and never what is hidden from it, forward and backward.

The oracle is the definition in float64, pair by pair, where hidden pairs are left out by a choice and not by a product.
"""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attention.oracle import column_masks
from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.request import BACKWARD, OP, Options
from oarlock.providers import providers

NAMES = ("query", "key", "value", "grad_out", "grad_lse")
KERNELS = ["fused", "aten", "reference"]


def chosen(pairs, values):
    """Values at the chosen pairs, 0 elsewhere, whatever is there."""
    return torch.where(pairs, values, torch.zeros((), dtype=torch.float64))


def definition(query, key, value, grad_out, grad_lse, visible, scale):
    """out, lse, dq, dk, dv; heads first inside, [B, H, Q, K] or [B, H, Q, K, D] for everything about pairs."""
    group = query.shape[2] // key.shape[2]
    q, do = (x.double().transpose(1, 2) for x in (query, grad_out))
    q = q + 0 * q  # an infinity is a NaN, whatever the signs of its scores
    k, v = (x.double().transpose(1, 2).repeat_interleave(group, dim=1) for x in (key, value))
    pairs = visible.repeat_interleave(q.shape[1] // visible.shape[1], dim=1).expand(q.shape[0], -1, -1, -1)
    scores = (q[:, :, :, None] * k[:, :, None]).sum(-1) * scale
    top = torch.where(pairs, scores, -torch.inf).amax(-1, keepdim=True)
    top = torch.where(top == -torch.inf, 0.0, top)
    total = chosen(pairs, torch.exp(scores - top)).sum(-1, keepdim=True)
    lse = torch.log(total) + top
    weights = chosen(pairs, torch.exp(scores - lse))
    deep = pairs[..., None]
    out = chosen(deep, weights[..., None] * v[:, :, None]).sum(3)
    delta = chosen(pairs.any(-1), (do * out).sum(-1) - grad_lse)
    slopes = chosen(pairs, weights * ((do[:, :, :, None] * v[:, :, None]).sum(-1) - delta[..., None]) * scale)
    dq = chosen(deep, slopes[..., None] * k[:, :, None]).sum(3)
    dk = chosen(deep, slopes[..., None] * q[:, :, :, None]).sum(2).unflatten(1, (-1, group)).sum(2)
    dv = chosen(deep, weights[..., None] * do[:, :, :, None]).sum(2).unflatten(1, (-1, group)).sum(2)
    return [out.transpose(1, 2), lse.squeeze(-1), *(x.transpose(1, 2) for x in (dq, dk, dv))]


def reached(tensors, visible):
    """bool [B, Q, H] and [B, K, Hk]: rows that hold or see something not finite, and the keys that these see."""
    query, key, value, grad_out, grad_lse = tensors
    group = query.shape[2] // key.shape[2]
    pairs = visible.repeat_interleave(query.shape[2] // visible.shape[1], dim=1).expand(query.shape[0], -1, -1, -1)
    bad_key = ~(key.isfinite().all(-1) & value.isfinite().all(-1))
    bad_key = bad_key.transpose(1, 2).repeat_interleave(group, dim=1)
    bad_row = ~(query.isfinite().all(-1) & grad_out.isfinite().all(-1)).transpose(1, 2) | ~grad_lse.isfinite()
    rows = (bad_row | (pairs & bad_key[:, :, None]).any(-1)) & pairs.any(-1)
    keys = (pairs & rows[..., None]).any(2).unflatten(1, (-1, group)).any(2)
    return rows.transpose(1, 2), keys.transpose(1, 2)


def run(kernel, tensors, mask, block_mask=None):
    forward, backward = (next(p.function for p in providers(op) if p.name == kernel) for op in (OP, BACKWARD))
    query, key, value, grad_out, grad_lse = tensors
    options = Options(mask, query.shape[-1] ** -0.5, block_mask)
    out, lse = forward(query, key, value, options)
    return [out, lse, *backward(grad_out, grad_lse, query, key, value, out, lse, options)]


def random_tensors(mask, heads=(2, 1), dims=(16, 16), batch=1):
    rows, keys = (batch, mask.seqlen_q), (batch, mask.seqlen_k)
    return [
        torch.randn(*rows, heads[0], dims[0]),
        torch.randn(*keys, heads[1], dims[0]),
        torch.randn(*keys, heads[1], dims[1]),
        torch.randn(*rows, heads[0], dims[1]),
        torch.randn(batch, heads[0], mask.seqlen_q),
    ]


def check(kernel, tensors, mask, visible=None, block_mask=None, *, is_exact=False):
    """What is not reached is right, and a NaN becomes no number; is_exact: nor does a number become a NaN."""
    visible = mask.to_dense() if visible is None else visible
    got = run(kernel, tensors, mask, block_mask)
    wanted = definition(*tensors, visible, tensors[0].shape[-1] ** -0.5)
    rows, keys = reached(tensors, visible)
    for ours, theirs, bad in zip(got, wanted, [rows, rows.transpose(1, 2), rows, keys, keys], strict=True):
        clean = ~bad if bad.dim() == ours.dim() else ~bad[..., None].expand_as(ours)
        assert not theirs[clean].isnan().any()
        torch.testing.assert_close(ours[clean].double(), theirs[clean], rtol=2e-5, atol=2e-5)
        if is_exact:
            assert torch.equal(ours.isnan(), theirs.isnan())
        else:
            assert ours[theirs.isnan()].isnan().all()


def spoil(tensors, name, bad, place):
    """One entry; of a few rows beside it in the same registers, none sees the same keys."""
    x = tensors[NAMES.index(name)]
    if name == "grad_lse":
        x[0, -1, place] = bad
    else:
        x[0, place, -1, 3] = bad


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_documents_that_share_a_chunk_of_keys(kernel, name, bad):
    """Borders at 43 and 50 lie inside a vector of rows and a chunk of keys; row 45 sees three of the chunk's keys."""
    torch.manual_seed(0)
    mask = ColumnMask.causal_document([43, 7, 70])
    tensors = random_tensors(mask)
    spoil(tensors, name, bad, 45)
    check(kernel, tensors, mask, is_exact=kernel == "fused")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", [0, 130, 259])
def test_plain_causal(kernel, name, place):
    """The backend of tiles has no mask of its own here: the kernel it calls hides the triangle."""
    torch.manual_seed(1)
    mask = ColumnMask.plain_causal(260)
    tensors = random_tensors(mask)
    spoil(tensors, name, torch.nan, place)
    check(kernel, tensors, mask, is_exact=kernel == "fused")


@pytest.mark.parametrize("kernel", KERNELS)
@settings(deadline=None, max_examples=20)
@given(mask=column_masks(70, batch=2, heads=(1, 2, 4)), data=st.data())
def test_random_masks(kernel, mask, data):
    tensors = random_tensors(mask, (4, 2), (8, 5), batch=2)
    for _ in range(data.draw(st.integers(1, 3))):
        name, bad = data.draw(st.sampled_from(NAMES)), data.draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
        size = mask.seqlen_k if name in ("key", "value") else mask.seqlen_q
        spoil(tensors, name, bad, data.draw(st.integers(0, size - 1)))
    # A row whose scores all are -infinity, by an infinite key, counts as one that sees nothing.
    out, lse, *_ = definition(*tensors, mask.to_dense(), 8**-0.5)
    assume(not (out.isnan().any(-1).mT & (lse == -torch.inf)).any())
    check(kernel, tensors, mask, is_exact=kernel == "fused")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_block_masks(kernel, name):
    torch.manual_seed(2)
    mask = ColumnMask.sliding_window(300, left=200, right=9)
    keep = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1]], dtype=torch.bool).view(1, 1, 3, 3)
    pairs = keep.repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :300, :300]
    tensors = random_tensors(mask)
    spoil(tensors, name, torch.nan, 140)
    check(kernel, tensors, mask, mask.to_dense() & pairs, keep)


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_that_see_nothing_hold_garbage_of_every_kind(kernel):
    mask = ColumnMask.padding([50], 90)
    tensors = random_tensors(mask)
    for x in tensors[:4]:
        x[:, 50:] = torch.nan
    tensors[4][..., 50:] = torch.inf
    check(kernel, tensors, mask)
    assert all(x[:, 50:].eq(0).all() for x in run(kernel, tensors, mask)[2:])


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_sink_of_a_head_learns_from_what_that_head_sees(kernel):
    """Garbage in rows without keys reaches no sink, and a NaN only that of its own head."""
    mask = ColumnMask.padding([50], 90)
    tensors = [x.requires_grad_() for x in random_tensors(mask, (2, 2))[:3]]
    sink = torch.zeros(2, requires_grad=True)

    def gradient(grad_out):
        out = flashmask_attention(*tensors, mask, learnable_sink=sink, backend=kernel)
        return torch.autograd.grad(out, sink, grad_out)[0]

    grad_out = torch.randn(1, 90, 2, 16)
    clean = gradient(grad_out)
    grad_out[:, 60] = torch.nan
    assert torch.equal(gradient(grad_out), clean)
    grad_out[:, 3, 1] = torch.nan
    spoiled = gradient(grad_out)
    assert spoiled[1].isnan()
    assert torch.equal(spoiled[0], clean[0])
