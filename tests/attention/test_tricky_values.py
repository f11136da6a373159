"""The cases in which attention kernels have gone wrong, one test each, on every backend: values, rounding, sizes."""

import gc

import pytest
import torch

from attention.oracle import dense_attention
from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.dropout import Dropout


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["query", "key", "value", "all"])
@pytest.mark.parametrize("rows", [15, 300])
def test_case_12_garbage_in_the_padding(kernel, garbage, where, rows):
    """What nobody sees, and rows that see nothing, may hold anything."""
    real = rows * 2 // 3
    tensors = kernel.inputs(rows)
    mask = ColumnMask.padding([real], rows)
    expected, _ = kernel.check(tensors, mask)
    dirty = [x.detach().clone() for x in tensors]
    for name, x in zip(("query", "key", "value"), dirty, strict=True):
        if where in (name, "all"):
            x[:, real:, :, ::3] = garbage
        x.requires_grad_()
    seed = torch.randn_like(expected[0])
    out, lse = kernel.run(dirty, mask)
    torch.testing.assert_close(out, expected[0], **kernel.tolerance)
    torch.testing.assert_close(lse, expected[1], **kernel.tolerance)
    clean = kernel.run(tensors, mask)[0]
    for x, wanted in zip(torch.autograd.grad(out, dirty, seed), torch.autograd.grad(clean, tensors, seed), strict=True):
        torch.testing.assert_close(x, wanted, **kernel.tolerance)


def test_case_12_garbage_in_the_padding_beside_a_sink(kernel):
    """Rows without keys then have a finite lse, and no gradient all the same."""
    tensors = kernel.inputs(15)
    mask = ColumnMask.padding([9], 15)
    sink = torch.randn(2, dtype=kernel.dtype, requires_grad=True)
    dirty = [x.detach().clone() for x in tensors]
    for x in dirty:
        x[:, 9:] = torch.nan
        x.requires_grad_()
    results = []
    for given in (tensors, dirty):
        out, lse = kernel.run(given, mask, learnable_sink=sink)
        gradients = torch.autograd.grad(out.square().sum() + lse.sum(), (*given, sink))
        results.append((out, lse, *gradients))
    for clean, got in zip(*results, strict=True):
        torch.testing.assert_close(got, clean, **kernel.tolerance)
    assert (results[1][1][..., 9:] == sink[:, None]).all()


@pytest.mark.parametrize("lengths", [(5, 3, 7), (100, 70, 130)])
def test_case_12_a_document_of_garbage_between_others(kernel, lengths):
    """It spoils its own rows and keys, and neither result nor gradient of its neighbours."""
    size, begin, end = sum(lengths), lengths[0], lengths[0] + lengths[1]
    tensors = kernel.inputs(size)
    mask = ColumnMask.causal_document(lengths)
    seed = torch.randn_like(tensors[0])

    def everything(given):
        out, lse = kernel.run(given, mask)
        return [out, lse.mT, *torch.autograd.grad((out, lse), given, (seed, seed[..., 0].mT))]

    dirty = [x.detach().clone() for x in tensors]
    for x in dirty:
        x[:, begin:end] = torch.nan
        x.requires_grad_()
    for clean, got in zip(everything(tensors), everything(dirty), strict=True):
        assert got[:, begin:end].isnan().all()
        for part in (slice(0, begin), slice(end, size)):
            torch.testing.assert_close(got[:, part], clean[:, part], **kernel.tolerance)


@pytest.mark.parametrize("name", ["key", "value", "query"])
def test_case_12_a_visible_nan_is_not_hidden(kernel, name):
    """It reaches the rows that see it, and no row of another document."""
    tensors = [x.detach() for x in kernel.inputs(12)]
    mask = ColumnMask.causal_document([5, 7])
    clean, _ = kernel.run(tensors, mask)
    tensors[["query", "key", "value"].index(name)][:, 2] = torch.nan
    out, _ = kernel.run(tensors, mask)
    poisoned = out.isnan().any(-1).any(-1)[0]
    assert poisoned.tolist() == [2 <= i < (3 if name == "query" else 5) for i in range(12)]
    torch.testing.assert_close(out[:, ~poisoned], clean[:, ~poisoned], **kernel.tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_case_13_half_precision_with_large_logits(kernel, dtype):
    """The error is at most twice that of the dense computation in the same dtype."""
    size = 14 if kernel.name == "decode" else 150
    query, key, value = (torch.randn(1, size, 2, 32).to(dtype).requires_grad_() for _ in range(3))
    for scale in (32**-0.5, 1e4 / 32):
        mask = ColumnMask.plain_causal(size)
        got = flashmask_attention(query, key, value, mask, softmax_scale=scale, backend=kernel.name)
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
    kernel.need(140, has_dropout=True)
    tensors = kernel.inputs(140, batch=2, heads=(4, 2))
    mask = ColumnMask.causal_document([[90, 50], [140]])
    pair = torch.tensor([2**40 + 3, -7])
    out, lse, seed_offset = kernel.run(tensors, mask, dropout=dropout, fixed_seed_offset=pair, return_seed_offset=True)
    assert torch.equal(seed_offset, pair)
    q, k, v = (x.double().transpose(1, 2) for x in tensors)
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    weights = (q @ k.mT * 8**-0.5).masked_fill(~mask.to_dense(), -torch.inf).softmax(-1)
    factors = Dropout(dropout, 2**40 + 3, -7).factors(weights.shape, weights.device)
    expected = ((weights * factors) @ v).transpose(1, 2)
    torch.testing.assert_close(out, expected.to(out.dtype), **kernel.tolerance)
    torch.testing.assert_close(lse, kernel.run(tensors, mask)[1], **kernel.tolerance)
    seed = torch.randn_like(out)
    for x, wanted in zip(
        torch.autograd.grad(out, tensors, seed), torch.autograd.grad(expected, tensors, seed), strict=True
    ):
        torch.testing.assert_close(x, wanted.to(x.dtype), **kernel.tolerance)
    evaluated = kernel.run(tensors, mask, dropout=dropout, training=False)[0]
    assert torch.equal(evaluated, kernel.run(tensors, mask)[0])


@pytest.mark.parametrize(("rows", "keys", "batch"), [(0, 5, 2), (5, 0, 2), (0, 0, 1), (4, 4, 0)])
def test_case_16_sizes_of_zero(kernel, rows, keys, batch):
    tensors = kernel.inputs(rows, keys, batch=batch)
    out, lse = kernel.run(tensors, None)
    assert out.shape == (batch, rows, 2, 8)
    assert (out == 0).all() or keys
    assert (lse == -torch.inf).all() or keys
    out.sum().backward()
    assert all((x.grad == 0).all() or keys for x in tensors)


def test_case_16_deterministic(kernel):
    size = 16 if kernel.name == "decode" else 260
    tensors = kernel.inputs(size, heads=(4, 2))
    mask = ColumnMask.causal_document([size // 3, size - size // 3])
    results = []
    for _ in range(2):
        out, lse = kernel.run(tensors, mask, deterministic=True)
        results.append((out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), tensors)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_case_17_two_columns_flip_their_meaning_with_causal(kernel):
    tensors = kernel.inputs(9)
    bounds = torch.tensor([5, 7]).expand(1, 1, 9, 2)
    i, j = torch.arange(9)[:, None], torch.arange(9)[None]
    kernel.check(tensors, ColumnMask(bounds, True, 9), ((j <= i) & ~((i >= 5) & (i < 7)))[None, None])
    kernel.check(tensors, ColumnMask(bounds.flip(-1), False, 9), ((i < 7) & (i >= 5) & (j >= 0))[None, None])


def test_case_17_a_window_of_w_holds_w_keys_beside_the_own_one(kernel):
    tensors = kernel.inputs(9)
    i, j = torch.arange(9)[:, None], torch.arange(9)[None]
    kernel.check(tensors, None, ((i - j <= 2) & (j <= i))[None, None], causal=True, window_size=2)
    kernel.check(tensors, None, ((i - j <= 2) & (j - i <= 2))[None, None], window_size=2)


def test_the_mask_may_be_gone_before_the_backward(kernel):
    tensors = kernel.inputs(12)
    bounds = ColumnMask.causal_document([5, 7]).bounds
    wanted = torch.autograd.grad(kernel.run(tensors, ColumnMask(bounds.clone(), True, 12))[0].square().sum(), tensors)
    loss = kernel.run(tensors, ColumnMask(bounds.clone(), True, 12))[0].square().sum()
    gc.collect()
    for x, other in zip(torch.autograd.grad(loss, tensors), wanted, strict=True):
        assert torch.equal(x, other)


@pytest.mark.parametrize("keys", [1, 30])
def test_scores_of_minus_infinity_are_not_hidden_keys(kernel, keys):
    """An infinite query whose scores all are -inf has no softmax: NaN, and not the 0 of a row without keys."""
    if kernel.name == "triton":
        pytest.xfail("takes such a row for one without keys; to look would wait for the device")
    query, key, value = (x.detach().abs() for x in kernel.inputs(3, keys))
    query[:, 1] = -torch.inf
    out, lse = kernel.run((query, key, value), ColumnMask.full(3, keys))
    assert out[:, 1].isnan().all()
    assert lse[..., 1].isnan().all()
    assert out[:, ::2].isfinite().all()


@pytest.mark.parametrize("scale", [-0.2, 0.0])
def test_a_scale_that_is_not_positive_leaves_hidden_pairs_hidden(scale):
    """ATen's causal kernel multiplies the -inf of hidden pairs by the scale."""
    tensors = [torch.randn(1, 129, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    out, lse = flashmask_attention(*tensors, causal=True, softmax_scale=scale, return_softmax_lse=True, backend="aten")
    wanted = dense_attention(*tensors, torch.ones(1, 1, 129, 129, dtype=torch.bool).tril(), scale)
    gradients = torch.autograd.grad(out.square().sum() + lse.sum(), tensors)
    expected = torch.autograd.grad(wanted[0].square().sum() + wanted[1].sum(), tensors)
    for got, want in zip((out, lse, *gradients), (*wanted, *expected), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)  # float64
