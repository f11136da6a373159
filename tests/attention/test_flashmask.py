"""flashmask_attention against the dense definition in float64: values, log-sum-exp and gradients through both."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attention.oracle import column_masks, dense_attention
from oarlock.attention import ColumnMask, flashmask_attention

# Rounding of float64 dot products of a few hundred terms, and of half dtypes beside a float64 oracle.
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def random_inputs(device, batch, seqlen_q, seqlen_k, heads=(2, 2), dims=(8, 8), dtype=torch.float64):
    shapes = [
        (batch, seqlen_q, heads[0], dims[0]),
        (batch, seqlen_k, heads[1], dims[0]),
        (batch, seqlen_k, heads[1], dims[1]),
    ]
    return [torch.randn(shape, dtype=torch.float64).to(device, dtype).requires_grad_() for shape in shapes]


def compare(inputs, mask, backend, *, visible=None, scale=None, **arguments):
    """Values and gradients of our function and of the oracle, with gradients arriving at out and at lse."""
    device = inputs[0].device
    visible = mask.to_dense().to(device) if visible is None else visible
    scale = inputs[0].shape[-1] ** -0.5 if scale is None else scale
    expected = dense_attention(*inputs, visible, scale)
    got = flashmask_attention(*inputs, mask, return_softmax_lse=True, backend=backend, **arguments)
    assert got[0].dtype == inputs[0].dtype
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)
    seeds = [torch.randn_like(x) for x in got]
    ours = torch.autograd.grad(got, inputs, seeds)
    for gradient, wanted in zip(ours, torch.autograd.grad(expected, inputs, seeds), strict=True):
        torch.testing.assert_close(gradient, wanted, **EXACT)
    return got, ours


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mask=column_masks(70, batch=2, heads=(1, 2, 4)), dims=st.sampled_from([(8, 8), (4, 6), (6, 3)]))
def test_random_masks(mask, dims, device, backend):
    mask = mask.to(device)
    compare(random_inputs(device, 2, mask.seqlen_q, mask.seqlen_k, (4, 2), dims), mask, backend)


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mask=column_masks(420))
def test_random_masks_of_several_tiles(mask, device, backend):
    mask = mask.to(device)
    compare(random_inputs(device, 1, mask.seqlen_q, mask.seqlen_k), mask, backend)


@pytest.mark.parametrize(
    "mask",
    [
        ColumnMask.plain_causal(300, 700),
        ColumnMask.plain_causal(400, 150),
        ColumnMask.causal_document([[3, 200, 1, 130], [334]]),
        ColumnMask.causal_document([500, 260], window=64),
        ColumnMask.document([90, 10, 300]),
        ColumnMask(ColumnMask.causal_document([[90, 40]] * 2).bounds.repeat(1, 2, 1, 1), True, 130),
        ColumnMask.sliding_window(300, 420, left=50, right=9),
        ColumnMask.full(40, 700),
    ],
    ids=["prefix", "more rows than keys", "documents", "window", "bidirectional", "equal heads", "two-sided", "full"],
)
def test_the_usual_masks(mask, device, backend):
    batch = max(mask.batch, 2)  # a mask of batch 1 holds for every batch row
    compare(random_inputs(device, batch, mask.seqlen_q, mask.seqlen_k), mask.to(device), backend)


@pytest.mark.parametrize("window", [None, 3, (2, 5), 0])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(9, 9), (5, 12)])
def test_without_a_mask_causal_and_window_decide(window, causal, seqlen_q, seqlen_k, device, backend):
    position = torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    key = torch.arange(seqlen_k)[None]
    visible = torch.ones(1, 1, seqlen_q, seqlen_k, dtype=torch.bool)
    if window is not None:
        left, right = window if isinstance(window, tuple) else (window, window)
        visible = visible & (key >= position - left) & (key <= position + right)
    if causal:
        visible = visible & (key <= position)
    inputs = random_inputs(device, 2, seqlen_q, seqlen_k)
    compare(inputs, None, backend, visible=visible.to(device), causal=causal, window_size=window)


def test_a_softmax_scale(device, backend):
    mask = ColumnMask.plain_causal(20, device=device)
    compare(random_inputs(device, 1, 20, 20), mask, backend, scale=0.7, softmax_scale=0.7)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "batch"), [(0, 5, 2), (5, 0, 2), (0, 0, 1), (4, 4, 0)])
def test_sizes_of_zero(seqlen_q, seqlen_k, batch, device, backend):
    inputs = random_inputs(device, batch, seqlen_q, seqlen_k)
    out, lse = flashmask_attention(*inputs, causal=True, return_softmax_lse=True, backend=backend)
    assert out.shape == inputs[0].shape
    assert (out == 0).all()
    assert (lse == -torch.inf).all() or batch == 0 or seqlen_k > 0
    for gradient, x in zip(torch.autograd.grad(out.sum(), inputs), inputs, strict=True):
        assert torch.equal(gradient, torch.zeros_like(x))


def test_rows_and_columns_that_see_nothing(device, backend):
    """out 0, lse -inf, and gradients that are exactly 0 even if exp(lse) is used further on."""
    bounds = torch.tensor([6, 0, 6, 3, 6, 6], dtype=torch.int32, device=device)[None, None, :, None].repeat(1, 1, 1, 2)
    bounds[..., 1] = torch.tensor([4, 9, 4, 4, 4, 4])  # rows 0..3 hidden; columns 1 and 3 hidden from all rows
    mask = ColumnMask(bounds, False, 6)
    inputs = random_inputs(device, 1, 6, 6)
    out, lse = flashmask_attention(*inputs, mask, return_softmax_lse=True, backend=backend)
    assert (out[:, :4] == 0).all()
    assert (lse[:, :, :4] == -torch.inf).all()
    assert lse[:, :, 4:].isfinite().all()
    dq, dk, dv = torch.autograd.grad(out.square().sum() + lse.exp().sum(), inputs)
    assert (dq[:, :4] == 0).all()
    assert (dk[:, [1, 3]] == 0).all()
    assert (dv[:, [1, 3]] == 0).all()
    assert all(x.isfinite().all() for x in (dq, dk, dv))


@pytest.mark.parametrize("uses", [("out",), ("lse",), ("out", "lse")])
def test_gradcheck(uses, device, backend):
    mask = ColumnMask.causal_document([3, 4], window=2, device=device)
    inputs = random_inputs(device, 1, 7, 7, (2, 1), (3, 2))

    def function(*tensors):
        out, lse = flashmask_attention(*tensors, mask, return_softmax_lse=True, backend=backend)
        return tuple({"out": out, "lse": lse}[name] for name in uses)

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("changed", [(5, 305), (305, 309)], ids=["long", "short, in one tile with others"])
def test_documents_do_not_leak(changed, device, backend):
    """Other keys and values in one document change no bit of another one's output and gradients."""
    mask = ColumnMask.causal_document([5, 300, 4, 3, 40, 148], device=device)
    begin, end = changed
    inputs = random_inputs(device, 1, 500, 500, dtype=torch.float32)
    seed = torch.randn_like(inputs[0])

    def run(tensors):
        out = flashmask_attention(*tensors, mask, backend=backend)
        return [out, *torch.autograd.grad(out, tensors, seed)]

    before = run(inputs)
    others = [x.detach().clone().requires_grad_() for x in inputs]
    with torch.no_grad():
        for x in others[1:]:
            x[:, begin:end] += torch.randn_like(x[:, begin:end])
    for old, new in zip(before, run(others), strict=True):
        assert torch.equal(old[:, :begin], new[:, :begin])
        assert torch.equal(old[:, end:], new[:, end:])
        assert not torch.equal(old[:, begin:end], new[:, begin:end])


def test_a_document_alone_equals_the_document_in_a_pack(device, backend):
    mask = ColumnMask.causal_document([70, 200], device=device)
    inputs = random_inputs(device, 1, 270, 270)
    packed = flashmask_attention(*inputs, mask, backend=backend)
    alone = flashmask_attention(*[x[:, 70:] for x in inputs], causal=True, backend=backend)
    torch.testing.assert_close(packed[:, 70:], alone, **EXACT)


def test_decoding_with_left_padding(device, backend):
    """One row per sequence; the first columns of a sequence are padding and hidden from all rows."""
    pads = torch.tensor([0, 7, 40, 64], device=device)
    bounds = torch.where(torch.arange(64, device=device) < pads[:, None], 0, 1)[:, None, :, None]
    mask = ColumnMask(bounds, True, 1)
    out, lse = compare(random_inputs(device, 4, 1, 64, (4, 2)), mask, backend)[0]
    assert (out[3] == 0).all()
    assert (lse[3] == -torch.inf).all()


@pytest.mark.parametrize("layout", ["head-major", "fused", "expanded", "last dim strided"])
def test_strided_inputs_and_gradients(layout, device, backend):
    batch, seqlen, heads, dim = 2, 33, 2, 8
    if layout == "head-major":
        inputs = [torch.randn(batch, heads, seqlen, dim, device=device).transpose(1, 2) for _ in range(3)]
    elif layout == "fused":
        inputs = list(torch.randn(batch, seqlen, heads, 3 * dim, device=device).split(dim, dim=-1))
    elif layout == "expanded":
        inputs = [torch.randn(1, seqlen, 1, dim, device=device).expand(batch, -1, heads, -1) for _ in range(3)]
    else:
        inputs = [torch.randn(batch, dim, seqlen, heads, device=device).permute(0, 2, 3, 1) for _ in range(3)]
    mask = ColumnMask.causal_document([13, 20], device=device)

    def gradients(tensors):
        tensors = [x.detach().requires_grad_() for x in tensors]
        out = flashmask_attention(*tensors, mask, backend=backend)
        return [out, *torch.autograd.grad(out.sum(), tensors)]  # the gradient of a sum has stride 0

    for strided, dense in zip(gradients(inputs), gradients([x.contiguous() for x in inputs]), strict=True):
        torch.testing.assert_close(strided, dense)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_are_as_exact_as_their_rounding(dtype, device, backend):
    """The error against float64 is a few units in the last place of the dtype, forward and backward."""
    mask = ColumnMask.causal_document([100, 60, 40], window=50, device=device)
    inputs = random_inputs(device, 1, 200, 200, (4, 2), (16, 16), dtype)
    expected, expected_lse = dense_attention(*inputs, mask.to_dense(), 0.25)
    out, lse = flashmask_attention(*inputs, mask, return_softmax_lse=True, backend=backend)
    unit = torch.finfo(dtype).eps
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    seed = torch.randn_like(out)
    pairs = zip(
        (out, lse, *torch.autograd.grad(out, inputs, seed)),
        (expected, expected_lse, *torch.autograd.grad(expected, inputs, seed.double())),
        strict=True,
    )
    for got, wanted in pairs:
        scale = wanted.abs().max()
        assert (got.double() - wanted).abs().max() <= 4 * unit * scale
