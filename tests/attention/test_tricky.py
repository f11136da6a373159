"""The cases in which attention kernels have gone wrong, one test each, on every backend.

float64 where a backend has it, compared to rounding; else float32, whose dot products of a few hundred terms of size 1
differ from the float64 oracle by some 1e-6.
"""

import pytest
import torch

from attention.oracle import dense_attention
from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.request import OP
from oarlock.providers import providers

EXACT, ROUNDED = {"rtol": 1e-9, "atol": 1e-11}, {"rtol": 2e-5, "atol": 2e-5}


@pytest.fixture(params=[p.name for p in providers(OP)])
def kernel(request, device):
    """Name, dtype and tolerance of a backend."""
    if request.param != "reference" and device.type != "cpu":
        pytest.skip("runs on the CPU")
    dtype = torch.float32 if request.param == "fused" else torch.float64
    return request.param, dtype, ROUNDED if dtype == torch.float32 else EXACT


def skip_decode(kernel, seqlen_q):
    if kernel[0] == "decode" and seqlen_q > 16:
        pytest.skip("takes at most 16 rows")


def inputs(kernel, rows, keys=None, *, batch=1, heads=(2, 2), dims=(8, 8)):
    keys = rows if keys is None else keys
    skip_decode(kernel, rows)
    shapes = [(batch, rows, heads[0], dims[0]), (batch, keys, heads[1], dims[0]), (batch, keys, heads[1], dims[1])]
    return [torch.randn(shape, dtype=kernel[1]).requires_grad_() for shape in shapes]


def run(kernel, tensors, mask, **options):
    return flashmask_attention(*tensors, mask, return_softmax_lse=True, backend=kernel[0], **options)


def check(kernel, tensors, mask, visible=None, **options):
    """Values and gradients through out and lse; returns both."""
    visible = mask.to_dense() if visible is None else visible
    got = run(kernel, tensors, mask, **options)
    expected = dense_attention(*tensors, visible, tensors[0].shape[-1] ** -0.5)
    seeds = [torch.randn_like(x) for x in got]
    ours, theirs = torch.autograd.grad(got, tensors, seeds), torch.autograd.grad(expected, tensors, seeds)
    for x, wanted in zip((*got, *ours), (*expected, *theirs), strict=True):
        torch.testing.assert_close(x, wanted.to(x.dtype), **kernel[2])
    return got, ours


def test_case_01_rows_that_see_nothing(kernel):
    """out 0, lse -inf, gradients finite and 0, also through exp(lse)."""
    tensors = inputs(kernel, 14)
    bounds = torch.full((1, 1, 14, 2), 14)
    bounds[..., 0], bounds[..., 1] = 4, 9
    mask = ColumnMask(bounds, True, 14)
    (out, lse), _ = check(kernel, tensors, mask)
    assert (out[:, 4:9] == 0).all()
    assert (lse[..., 4:9] == -torch.inf).all()
    out, lse = run(kernel, tensors, mask)
    (lse.exp().sum() + out.sum()).backward()
    for x in tensors:
        assert x.grad.isfinite().all()
    assert (tensors[0].grad[:, 4:9] == 0).all()


def test_case_01_merging_partial_results(kernel):
    """Attention over two halves of the keys, merged by lse in plain autograd, is attention over all; blind rows too."""
    q, k, v = inputs(kernel, 12, 20)
    parts = []
    for keys, shown in ((slice(0, 10), 9), (slice(10, 20), 6)):
        mask = ColumnMask(torch.full((1, 1, 10, 1), shown), True, 12)
        parts.append(run(kernel, (q, k[:, keys], v[:, keys]), mask))
    (out_a, lse_a), (out_b, lse_b) = parts
    lse = torch.logaddexp(lse_a, lse_b)
    seen = (lse > -torch.inf).detach()
    weights = [torch.where(seen, (x - lse.masked_fill(~seen, 0)).exp(), 0).mT[..., None] for x in (lse_a, lse_b)]
    out = weights[0] * out_a + weights[1] * out_b
    visible = torch.cat([ColumnMask(torch.full((1, 1, 10, 1), n), True, 12).to_dense() for n in (9, 6)], dim=-1)
    expected, _ = dense_attention(q, k, v, visible, 8**-0.5)
    torch.testing.assert_close(out, expected.to(out.dtype), **kernel[2])
    seed = torch.randn_like(out)
    for x, wanted in zip(
        torch.autograd.grad((out * seed)[:, :9].sum(), (q, k, v)),
        torch.autograd.grad((expected * seed)[:, :9].sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(x, wanted.to(x.dtype), **kernel[2])


def test_case_02_columns_that_nobody_sees(kernel):
    """dK = dV = 0 exactly; and no row sees anything at all."""
    tensors = inputs(kernel, 13)
    bounds = torch.full((1, 1, 13, 1), 13)
    bounds[:, :, 3:8] = 0
    _, (_, dk, dv) = check(kernel, tensors, ColumnMask(bounds, True, 13))
    assert (dk[:, 3:8] == 0).all()
    assert (dv[:, 3:8] == 0).all()
    (out, lse), gradients = check(kernel, tensors, ColumnMask(torch.zeros(1, 1, 13, 1).int(), True, 13))
    assert (out == 0).all()
    assert (lse == -torch.inf).all()
    assert all((x == 0).all() for x in gradients)


@pytest.mark.parametrize(
    ("rows", "keys"), [(1, 300), (5, 9), (16, 7), (127, 128), (128, 129), (129, 127), (300, 200), (70, 300)]
)
def test_case_03_causal_is_aligned_to_the_bottom_right(kernel, rows, keys):
    visible = torch.arange(keys)[None] <= torch.arange(rows)[:, None] + keys - rows
    check(kernel, inputs(kernel, rows, keys), None, visible[None, None], causal=True)


def test_case_04_equivalent_spellings(kernel):
    """Empty intervals in any spelling give the same bits."""
    tensors, size = inputs(kernel, 15), 15
    j = torch.arange(size)
    empties = [(15, 15), (0, 0), (j, j), (9, 4), (-5, -2), (20, 40)]
    results = []
    for begin, end in empties:
        columns = [torch.as_tensor(x).expand(size) for x in (begin, end, 3, 5)]
        mask = ColumnMask(torch.stack(columns, -1)[None, None], False, size)
        results.append(run(kernel, tensors, mask))
    for out, lse in results[1:]:
        torch.testing.assert_close(out, results[0][0], **kernel[2])
        torch.testing.assert_close(lse, results[0][1], **kernel[2])


@pytest.mark.parametrize(
    "intervals",
    [(2, 8, 5, 11), (2, 5, 5, 9), (9, 12, 1, 4), (1, 4, 9, 12), (0, 16, 3, 5), (3, 5, 3, 5), (9, 20, -4, 2)],
)
def test_case_05_two_intervals_overlapping_touching_or_swapped(kernel, intervals):
    bounds = torch.tensor(intervals).expand(1, 1, 16, 4).clone()
    bounds[:, :, ::3] = 16
    check(kernel, inputs(kernel, 16), ColumnMask(bounds, False, 16))


def test_case_06_invisible_columns_and_unions(kernel):
    """LTS <= j hides the column; tiles that are hidden only by the union of the intervals and the triangle."""
    j = torch.arange(16)
    hidden = torch.stack([torch.minimum(j, torch.tensor(5)), torch.full((16,), 16)], -1)
    check(kernel, inputs(kernel, 16), ColumnMask(hidden[None, None], True, 16))
    check(kernel, inputs(kernel, 16), ColumnMask((j // 2)[None, None, :, None], True, 16))


def test_case_06_tiles_hidden_by_a_union(kernel):
    size = 400
    skip_decode(kernel, size)
    bounds = torch.tensor([0, 150, 150, 290]).expand(1, 1, size, 4).clone()
    bounds[:, :, :100] = torch.tensor([size, size, 290, 400])
    check(kernel, inputs(kernel, size), ColumnMask(bounds, False, size))


@pytest.mark.parametrize("mask_heads", [1, 2, 6])
def test_case_07_mask_heads_and_grouped_queries(kernel, mask_heads):
    """Masks that differ per batch row and head; dK and dV sum over the queries of a group."""
    bounds = torch.randint(0, 16, (3, mask_heads, 15, 4))
    check(kernel, inputs(kernel, 14, 15, batch=3, heads=(6, 2)), ColumnMask(bounds, False, 14))


@pytest.mark.parametrize("layout", [(1, True), (2, True), (2, False), (4, False)])
@pytest.mark.parametrize("rows", [12, 300])
def test_case_08_block_masks(kernel, layout, rows):
    """Equal to the dense intersection for every layout, with blocks that reach beyond the ends."""
    if kernel[0] == "decode":
        pytest.skip("takes no block mask")
    n, causal = layout
    bounds = torch.randint(0, rows + 1, (2, 2, 300, n)) if n > 1 else torch.randint(rows // 2, rows + 1, (2, 2, 300, n))
    mask = ColumnMask(bounds[:, :, torch.arange(300) // 50 * 50], causal, rows)
    blocks = torch.rand(2, 2, -(-rows // 128), 3) < 0.6
    blocks[0, 0, -1] = False
    blocks[0, 1, :, 1] = False
    pairs = blocks.repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :rows, :300]
    tensors = inputs(kernel, rows, 300, batch=2, dims=(8, 8))
    check(kernel, tensors, mask, mask.to_dense() & pairs, block_mask=blocks.int())
    check(kernel, tensors, mask, mask.to_dense() & pairs[:1], block_mask=blocks[:1])


def test_case_09_the_gradient_of_lse(kernel):
    tensors = [x.double().detach().requires_grad_() for x in inputs(kernel, 6, dims=(3, 4))]
    if kernel[1] != torch.float64:
        return test_case_09_z_loss(kernel)
    mask = ColumnMask(torch.tensor([6, 3, 6, 5, 6, 6])[None, None, :, None], True, 6)
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def function(q, k, v, sink):
        return tuple(run(kernel, (q, k, v), mask, learnable_sink=sink))

    assert torch.autograd.gradcheck(function, (*tensors, sink))


def test_case_09_z_loss(kernel):
    """A loss of lse alone, as a z-loss is."""
    tensors = inputs(kernel, 12)
    mask = ColumnMask.causal_document([5, 7])
    _, lse = run(kernel, tensors, mask)
    _, expected = dense_attention(*tensors, mask.to_dense(), 8**-0.5)
    ours, theirs = (torch.autograd.grad(x.square().mean(), tensors[:2]) for x in (lse, expected))
    for x, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, wanted, **kernel[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_case_10_sinks(kernel, dtype):
    """-inf is no sink; a row without keys has out 0 and lse = sink; the gradient against autograd."""
    tensors = inputs(kernel, 12)
    mask = ColumnMask(torch.full((1, 1, 12, 1), 9), True, 12)
    sink = torch.tensor([-torch.inf, 0.5], dtype=dtype, requires_grad=True)
    out, lse = run(kernel, tensors, mask, learnable_sink=sink)
    plain_out, plain_lse = run(kernel, tensors, mask)
    torch.testing.assert_close(out[:, :, 0], plain_out[:, :, 0])
    torch.testing.assert_close(lse[:, 0], plain_lse[:, 0])
    assert (lse[:, 1, 9:] == 0.5).all()
    assert (out[:, 9:] == 0).all()
    expected_out, expected_lse = dense_attention(*tensors, mask.to_dense(), 8**-0.5)
    total = torch.logaddexp(expected_lse.clamp(min=-1e30), sink.double()[:, None].clamp(min=-1e30))
    expected = expected_out * (expected_lse.clamp(min=-1e30) - total).exp().mT[..., None]
    torch.testing.assert_close(out, expected.to(out.dtype), **kernel[2])
    seed = torch.randn_like(out)
    (ours,), (theirs,) = (torch.autograd.grad(x, sink, seed) for x in (out, expected))
    assert ours.dtype == dtype
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-4)


@pytest.mark.parametrize("dims", [(192, 128), (7, 5), (3, 11), (576, 512), (1, 1)])
def test_case_11_head_dims(kernel, dims):
    check(kernel, inputs(kernel, 10, 13, heads=(2, 1), dims=dims), ColumnMask.plain_causal(10, 13))


def test_case_11_strides_and_integer_types(kernel):
    """Transposed, sliced and expanded tensors; an int64 mask of batch 1, and one that is expanded."""
    skip_decode(kernel, 14)
    whole = torch.randn(2, 3, 14, 3 * 16, dtype=kernel[1])
    q, k, v = (x.transpose(1, 2) for x in whole.chunk(3, dim=-1))
    bounds = ColumnMask.causal_document([6, 8]).bounds.long()
    for tensors in (
        (q[..., ::2], k[..., 1::2], v[..., :8]),
        (q, k[:1].expand(2, -1, -1, -1), v[:, :, :1].expand(-1, -1, 3, -1)),
        (q.flip(1), k.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2), v),
    ):
        leaves = [x.detach().requires_grad_() for x in tensors]
        for given in (bounds, bounds.expand(2, 1, -1, -1), bounds.expand(2, 3, -1, -1)):
            check(kernel, leaves, ColumnMask(given, True, 14))
            got = flashmask_attention(*tensors, given, causal=True, backend=kernel[0])
            torch.testing.assert_close(
                got, flashmask_attention(*leaves, ColumnMask(given, True, 14), backend=kernel[0])
            )


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["query", "key", "value", "all"])
@pytest.mark.parametrize("rows", [15, 300])
def test_case_12_garbage_in_the_padding(kernel, garbage, where, rows):
    """What nobody sees, and rows that see nothing, may hold anything."""
    real = rows * 2 // 3
    tensors = inputs(kernel, rows)
    mask = ColumnMask.padding([real], rows)
    expected, _ = check(kernel, tensors, mask)
    dirty = [x.detach().clone() for x in tensors]
    for name, x in zip(("query", "key", "value"), dirty, strict=True):
        if where in (name, "all"):
            x[:, real:, :, ::3] = garbage
        x.requires_grad_()
    seed = torch.randn_like(expected[0])
    out, lse = run(kernel, dirty, mask)
    torch.testing.assert_close(out, expected[0], **kernel[2])
    torch.testing.assert_close(lse, expected[1], **kernel[2])
    clean = run(kernel, tensors, mask)[0]
    for x, wanted in zip(torch.autograd.grad(out, dirty, seed), torch.autograd.grad(clean, tensors, seed), strict=True):
        torch.testing.assert_close(x, wanted, **kernel[2])


@pytest.mark.parametrize("name", ["key", "value", "query"])
def test_case_12_a_visible_nan_is_not_hidden(kernel, name):
    """It reaches the rows that see it, and no row of another document."""
    tensors = [x.detach() for x in inputs(kernel, 12)]
    mask = ColumnMask.causal_document([5, 7])
    clean, _ = run(kernel, tensors, mask)
    tensors[["query", "key", "value"].index(name)][:, 2] = torch.nan
    out, _ = run(kernel, tensors, mask)
    poisoned = out.isnan().any(-1).any(-1)[0]
    assert poisoned.tolist() == [2 <= i < (3 if name == "query" else 5) for i in range(12)]
    torch.testing.assert_close(out[:, ~poisoned], clean[:, ~poisoned], **kernel[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_case_13_half_precision_with_large_logits(kernel, dtype):
    """The error is at most twice that of the dense computation in the same dtype."""
    size = 14 if kernel[0] == "decode" else 150
    query, key, value = (torch.randn(1, size, 2, 32).to(dtype).requires_grad_() for _ in range(3))
    for scale in (32**-0.5, 1e4 / 32):
        mask = ColumnMask.plain_causal(size)
        got = flashmask_attention(query, key, value, mask, softmax_scale=scale, backend=kernel[0])
        exact, _ = dense_attention(query, key, value, mask.to_dense(), scale)
        scores = (query.transpose(1, 2) @ key.transpose(1, 2).mT).float() * scale
        weights = scores.masked_fill(~mask.to_dense(), -torch.inf).softmax(-1).to(dtype)
        rough = (weights @ value.transpose(1, 2)).transpose(1, 2)
        bound = 2 * (rough.double() - exact).abs().max() + 1e-3
        assert (got.double() - exact).abs().max() <= bound
        seed = torch.randn_like(got)
        ours = torch.autograd.grad(got, (query, key, value), seed)
        theirs = torch.autograd.grad(exact, (query, key, value), seed.double())
        roughs = torch.autograd.grad(rough, (query, key, value), seed)
        for x, wanted, other in zip(ours, theirs, roughs, strict=True):
            assert x.isfinite().all()
            error, allowed = (x.double() - wanted).abs().max(), (other.double() - wanted).abs().max()
            # A saturated softmax has gradients near 0, where the rounding of out in rowsum(out * dout) shows.
            assert error <= 2 * allowed + 1e-2 * max(1.0, wanted.abs().max().item())


@pytest.mark.parametrize("dropout", [0.25, 0.7])
def test_case_14_dropout(kernel, dropout):
    """Against the dense definition with the documented factors, forward and backward; lse ignores it."""
    from oarlock.attention.dropout import Dropout

    if kernel[0] in ("aten", "decode"):
        pytest.skip("drops no weights")
    tensors = inputs(kernel, 140, batch=2, heads=(4, 2))
    mask = ColumnMask.causal_document([[90, 50], [140]])
    pair = torch.tensor([2**40 + 3, -7])
    out, lse, seed_offset = run(kernel, tensors, mask, dropout=dropout, fixed_seed_offset=pair, return_seed_offset=True)
    assert torch.equal(seed_offset, pair)
    q, k, v = (x.double().transpose(1, 2) for x in tensors)
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    weights = (q @ k.mT * 8**-0.5).masked_fill(~mask.to_dense(), -torch.inf).softmax(-1)
    factors = Dropout(dropout, 2**40 + 3, -7).factors(weights.shape, weights.device)
    expected = ((weights * factors) @ v).transpose(1, 2)
    torch.testing.assert_close(out, expected.to(out.dtype), **kernel[2])
    torch.testing.assert_close(lse, run(kernel, tensors, mask)[1], **kernel[2])
    seed = torch.randn_like(out)
    for x, wanted in zip(
        torch.autograd.grad(out, tensors, seed), torch.autograd.grad(expected, tensors, seed), strict=True
    ):
        torch.testing.assert_close(x, wanted.to(x.dtype), **kernel[2])
    evaluated = run(kernel, tensors, mask, dropout=dropout, training=False)[0]
    assert torch.equal(evaluated, run(kernel, tensors, mask)[0])


@pytest.mark.parametrize(("rows", "keys", "batch"), [(0, 5, 2), (5, 0, 2), (0, 0, 1), (4, 4, 0)])
def test_case_16_sizes_of_zero(kernel, rows, keys, batch):
    tensors = inputs(kernel, rows, keys, batch=batch)
    out, lse = run(kernel, tensors, None)
    assert out.shape == (batch, rows, 2, 8)
    assert (out == 0).all() or keys
    assert (lse == -torch.inf).all() or keys
    out.sum().backward()
    assert all((x.grad == 0).all() or keys for x in tensors)


def test_case_16_deterministic(kernel):
    size = 16 if kernel[0] == "decode" else 260
    tensors = inputs(kernel, size, heads=(4, 2))
    mask = ColumnMask.causal_document([size // 3, size - size // 3])
    results = []
    for _ in range(2):
        out, lse = run(kernel, tensors, mask, deterministic=True)
        results.append((out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), tensors)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_case_17_two_columns_flip_their_meaning_with_causal(kernel):
    tensors = inputs(kernel, 9)
    bounds = torch.tensor([5, 7]).expand(1, 1, 9, 2)
    i, j = torch.arange(9)[:, None], torch.arange(9)[None]
    check(kernel, tensors, ColumnMask(bounds, True, 9), ((j <= i) & ~((i >= 5) & (i < 7)))[None, None])
    check(kernel, tensors, ColumnMask(bounds.flip(-1), False, 9), ((i < 7) & (i >= 5) & (j >= 0))[None, None])


def test_case_17_a_window_of_w_holds_w_keys_beside_the_own_one(kernel):
    tensors = inputs(kernel, 9)
    i, j = torch.arange(9)[:, None], torch.arange(9)[None]
    check(kernel, tensors, None, ((i - j <= 2) & (j <= i))[None, None], causal=True, window_size=2)
    check(kernel, tensors, None, ((i - j <= 2) & (j - i <= 2))[None, None], window_size=2)
