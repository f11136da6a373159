"""The cases in which attention kernels have gone wrong, one test each, on every backend: masks, heads, shapes."""

import pytest
import torch

from attention.oracle import dense_attention
from oarlock.attention import ColumnMask, flashmask_attention


def test_case_01_rows_that_see_nothing(kernel):
    """out 0, lse -inf, gradients finite and 0, also through exp(lse)."""
    tensors = kernel.inputs(14)
    bounds = torch.full((1, 1, 14, 2), 14)
    bounds[..., 0], bounds[..., 1] = 4, 9
    mask = ColumnMask(bounds, True, 14)
    (out, lse), _ = kernel.check(tensors, mask)
    assert (out[:, 4:9] == 0).all()
    assert (lse[..., 4:9] == -torch.inf).all()
    out, lse = kernel.run(tensors, mask)
    (lse.exp().sum() + out.sum()).backward()
    for x in tensors:
        assert x.grad.isfinite().all()
    assert (tensors[0].grad[:, 4:9] == 0).all()


def test_case_01_merging_partial_results(kernel):
    """Attention over two halves of the keys, merged by lse in plain autograd, is attention over all; blind rows too."""
    q, k, v = kernel.inputs(12, 20)
    parts = []
    for keys, shown in ((slice(0, 10), 9), (slice(10, 20), 6)):
        mask = ColumnMask(torch.full((1, 1, 10, 1), shown), True, 12)
        parts.append(kernel.run((q, k[:, keys], v[:, keys]), mask))
    (out_a, lse_a), (out_b, lse_b) = parts
    lse = torch.logaddexp(lse_a, lse_b)
    seen = (lse > -torch.inf).detach()
    weights = [torch.where(seen, (x - lse.masked_fill(~seen, 0)).exp(), 0).mT[..., None] for x in (lse_a, lse_b)]
    out = weights[0] * out_a + weights[1] * out_b
    visible = torch.cat([ColumnMask(torch.full((1, 1, 10, 1), n), True, 12).to_dense() for n in (9, 6)], dim=-1)
    expected, _ = dense_attention(q, k, v, visible, 8**-0.5)
    torch.testing.assert_close(out, expected.to(out.dtype), **kernel.tolerance)
    seed = torch.randn_like(out)
    for x, wanted in zip(
        torch.autograd.grad((out * seed)[:, :9].sum(), (q, k, v)),
        torch.autograd.grad((expected * seed)[:, :9].sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(x, wanted.to(x.dtype), **kernel.tolerance)


def test_case_02_columns_that_nobody_sees(kernel):
    """dK = dV = 0 exactly; and no row sees anything at all."""
    tensors = kernel.inputs(13)
    bounds = torch.full((1, 1, 13, 1), 13)
    bounds[:, :, 3:8] = 0
    _, (_, dk, dv) = kernel.check(tensors, ColumnMask(bounds, True, 13))
    assert (dk[:, 3:8] == 0).all()
    assert (dv[:, 3:8] == 0).all()
    (out, lse), gradients = kernel.check(tensors, ColumnMask(torch.zeros(1, 1, 13, 1).int(), True, 13))
    assert (out == 0).all()
    assert (lse == -torch.inf).all()
    assert all((x == 0).all() for x in gradients)


@pytest.mark.parametrize(
    ("rows", "keys"), [(1, 300), (5, 9), (16, 7), (127, 128), (128, 129), (129, 127), (300, 200), (70, 300)]
)
def test_case_03_causal_is_aligned_to_the_bottom_right(kernel, rows, keys):
    visible = torch.arange(keys)[None] <= torch.arange(rows)[:, None] + keys - rows
    kernel.check(kernel.inputs(rows, keys), None, visible[None, None], causal=True)


def test_case_04_equivalent_spellings(kernel):
    """Empty intervals in any spelling give the same bits."""
    tensors, size = kernel.inputs(15), 15
    j = torch.arange(size)
    empties = [(15, 15), (0, 0), (j, j), (9, 4), (-5, -2), (20, 40)]
    results = []
    for begin, end in empties:
        columns = [torch.as_tensor(x).expand(size) for x in (begin, end, 3, 5)]
        mask = ColumnMask(torch.stack(columns, -1)[None, None], False, size)
        out, lse = kernel.run(tensors, mask)
        results.append((out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), tensors)))
    for result in results[1:]:
        assert all(torch.equal(x, first) for x, first in zip(result, results[0], strict=True))


@pytest.mark.parametrize(
    "intervals",
    [(2, 8, 5, 11), (2, 5, 5, 9), (9, 12, 1, 4), (1, 4, 9, 12), (0, 16, 3, 5), (3, 5, 3, 5), (9, 20, -4, 2)],
)
def test_case_05_two_intervals_overlapping_touching_or_swapped(kernel, intervals):
    bounds = torch.tensor(intervals).expand(1, 1, 16, 4).clone()
    bounds[:, :, ::3] = 16
    kernel.check(kernel.inputs(16), ColumnMask(bounds, False, 16))


def test_case_06_invisible_columns_and_unions(kernel):
    """LTS <= j hides the column; tiles that are hidden only by the union of the intervals and the triangle."""
    j = torch.arange(16)
    hidden = torch.stack([torch.minimum(j, torch.tensor(5)), torch.full((16,), 16)], -1)
    kernel.check(kernel.inputs(16), ColumnMask(hidden[None, None], True, 16))
    kernel.check(kernel.inputs(16), ColumnMask((j // 2)[None, None, :, None], True, 16))


def test_case_06_tiles_hidden_by_a_union(kernel):
    size = 400
    kernel.need(size)
    bounds = torch.tensor([0, 150, 150, 290]).expand(1, 1, size, 4).clone()
    bounds[:, :, :100] = torch.tensor([size, size, 290, 400])
    kernel.check(kernel.inputs(size), ColumnMask(bounds, False, size))


@pytest.mark.parametrize("mask_heads", [1, 2, 6])
def test_case_07_mask_heads_and_grouped_queries(kernel, mask_heads):
    """Masks that differ per batch row and head; dK and dV sum over the queries of a group."""
    bounds = torch.randint(0, 16, (3, mask_heads, 15, 4))
    kernel.check(kernel.inputs(14, 15, batch=3, heads=(6, 2)), ColumnMask(bounds, False, 14))


@pytest.mark.parametrize("layout", [(1, True), (2, True), (2, False), (4, False)])
@pytest.mark.parametrize("rows", [12, 300])
def test_case_08_block_masks(kernel, layout, rows):
    """Equal to the dense intersection for every layout, with blocks that reach beyond the ends."""
    kernel.need(rows, has_block_mask=True)
    n, causal = layout
    bounds = torch.randint(0, rows + 1, (2, 2, 300, n)) if n > 1 else torch.randint(rows // 2, rows + 1, (2, 2, 300, n))
    mask = ColumnMask(bounds[:, :, torch.arange(300) // 50 * 50], causal, rows)
    blocks = torch.rand(2, 2, -(-rows // 128), 3) < 0.6
    blocks[0, 0, -1] = False
    blocks[0, 1, :, 1] = False
    pairs = blocks.repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :rows, :300]
    tensors = kernel.inputs(rows, 300, batch=2, dims=(8, 8))
    kernel.check(tensors, mask, mask.to_dense() & pairs, block_mask=blocks.int())
    kernel.check(tensors, mask, mask.to_dense() & pairs[:1], block_mask=blocks[:1])


def test_case_09_the_gradient_of_lse(kernel):
    tensors = [x.double().detach().requires_grad_() for x in kernel.inputs(6, dims=(3, 4))]
    if kernel.dtype != torch.float64:
        return test_case_09_z_loss(kernel)
    mask = ColumnMask(torch.tensor([6, 3, 6, 5, 6, 6])[None, None, :, None], True, 6)
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def function(q, k, v, sink):
        return tuple(kernel.run((q, k, v), mask, learnable_sink=sink))

    assert torch.autograd.gradcheck(function, (*tensors, sink))


def test_case_09_z_loss(kernel):
    """A loss of lse alone, as a z-loss is."""
    tensors = kernel.inputs(12)
    mask = ColumnMask.causal_document([5, 7])
    _, lse = kernel.run(tensors, mask)
    _, expected = dense_attention(*tensors, mask.to_dense(), 8**-0.5)
    ours, theirs = (torch.autograd.grad(x.square().mean(), tensors[:2]) for x in (lse, expected))
    for x, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, wanted, **kernel.tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_case_10_sinks(kernel, dtype):
    """-inf is no sink; a row without keys has out 0 and lse = sink; the gradient against autograd."""
    tensors = kernel.inputs(12)
    mask = ColumnMask(torch.full((1, 1, 12, 1), 9), True, 12)
    sink = torch.tensor([-torch.inf, 0.5], dtype=dtype, requires_grad=True)
    out, lse = kernel.run(tensors, mask, learnable_sink=sink)
    plain_out, plain_lse = kernel.run(tensors, mask)
    torch.testing.assert_close(out[:, :, 0], plain_out[:, :, 0])
    torch.testing.assert_close(lse[:, 0], plain_lse[:, 0])
    assert (lse[:, 1, 9:] == 0.5).all()
    assert (out[:, 9:] == 0).all()
    expected_out, expected_lse = dense_attention(*tensors, mask.to_dense(), 8**-0.5)
    total = torch.logaddexp(expected_lse.clamp(min=-1e30), sink.double()[:, None].clamp(min=-1e30))
    expected = expected_out * (expected_lse.clamp(min=-1e30) - total).exp().mT[..., None]
    torch.testing.assert_close(out, expected.to(out.dtype), **kernel.tolerance)
    seed = torch.randn_like(out)
    (ours,), (theirs,) = (torch.autograd.grad(x, sink, seed) for x in (out, expected))
    assert ours.dtype == dtype
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-2 if dtype.itemsize == 2 else 1e-4, atol=1e-4)


@pytest.mark.parametrize("dims", [(192, 128), (7, 5), (3, 11), (576, 512), (1, 1)])
def test_case_11_head_dims(kernel, dims):
    kernel.check(kernel.inputs(10, 13, heads=(2, 1), dims=dims), ColumnMask.plain_causal(10, 13))


def test_case_11_strides_and_integer_types(kernel):
    """Transposed, sliced and expanded tensors; an int64 mask of batch 1, and one that is expanded."""
    kernel.need(14)
    whole = torch.randn(2, 3, 14, 3 * 16, dtype=kernel.dtype)
    q, k, v = (x.transpose(1, 2) for x in whole.chunk(3, dim=-1))
    bounds = ColumnMask.causal_document([6, 8]).bounds.long()
    for tensors in (
        (q[..., ::2], k[..., 1::2], v[..., :8]),
        (q, k[:1].expand(2, -1, -1, -1), v[:, :, :1].expand(-1, -1, 3, -1)),
        (q.flip(1), k.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2), v),
    ):
        leaves = [x.detach().requires_grad_() for x in tensors]
        for given in (bounds, bounds.expand(2, 1, -1, -1), bounds.expand(2, 3, -1, -1)):
            kernel.check(leaves, ColumnMask(given, True, 14))
            got = flashmask_attention(*tensors, given, causal=True, backend=kernel.name)
            torch.testing.assert_close(
                got, flashmask_attention(*leaves, ColumnMask(given, True, 14), backend=kernel.name)
            )
