"""The fused C++ attention against the dense definition in float64, for each instruction set that this CPU has."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.oracle import column_masks, dense_attention
from oarlock import _native
from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.backends.fused import fused, fused_backward
from oarlock.attention.dropout import Dropout
from oarlock.attention.request import OP, AttentionRequest, Options
from oarlock.providers import select

# A few units in the last place of float32, times the length of the sums (hundreds of terms), of the largest result.
UNITS = 40

IN_SUBPROCESS = "OARLOCK_ISA" in os.environ
EXAMPLES = 8 if IN_SUBPROCESS else 40


def random_inputs(mask, heads=(2, 2), dims=(16, 16), batch=1, dtype=torch.float32):
    (num_q, num_k), (dim, value_dim) = heads, dims
    shapes = [
        (batch, mask.seqlen_q, num_q, dim),
        (batch, mask.seqlen_k, num_k, dim),
        (batch, mask.seqlen_k, num_k, value_dim),
    ]
    return [torch.randn(shape).to(dtype) for shape in shapes]


def run(inputs, mask, grad_out=None, grad_lse=None, *, block_mask=None, dropout=None):
    """out, lse, dq, dk, dv of the fused kernels."""
    options = Options(mask, inputs[0].shape[-1] ** -0.5, block_mask, dropout)
    out, lse = fused(*inputs, options)
    grad_out = torch.ones_like(out) if grad_out is None else grad_out
    return [out, lse, *fused_backward(grad_out, grad_lse, *inputs, out, lse, options)]


def compare(inputs, mask, visible=None, **options):
    """Values and gradients, arriving at out and lse, against the oracle."""
    visible = mask.to_dense() if visible is None else visible
    leaves = [x.double().requires_grad_() for x in inputs]
    out, lse = dense_attention(*leaves, visible, inputs[0].shape[-1] ** -0.5)
    grad_out, grad_lse = torch.randn(out.shape).to(inputs[0].dtype), torch.randn(lse.shape)
    gradients = torch.autograd.grad((out, lse), leaves, (grad_out.double(), grad_lse.double()))
    got = run(inputs, mask, grad_out, grad_lse, **options)
    for ours, theirs in zip(got, (out, lse, *gradients), strict=True):
        is_infinite = theirs.isinf()
        assert torch.equal(ours.isinf(), is_infinite)
        ours, theirs = ours[~is_infinite], theirs[~is_infinite]
        if theirs.numel():
            rounding = 0 if ours.dtype == torch.float32 else 4 * torch.finfo(ours.dtype).eps
            bound = UNITS * torch.finfo(torch.float32).eps + rounding
            assert (ours.double() - theirs).abs().max() <= bound * max(1.0, theirs.abs().max().item())
    return got


DIMS = st.sampled_from([(16, 16), (8, 24), (7, 5), (40, 1), (1, 33), (64, 64), (128, 96)])


@settings(deadline=None, max_examples=EXAMPLES)
@given(mask=column_masks(90, batch=2, heads=(1, 2, 4)), dims=DIMS)
def test_random_masks(mask, dims):
    compare(random_inputs(mask, (4, 2), dims, batch=2), mask)


@settings(deadline=None, max_examples=EXAMPLES // 2)
@given(mask=column_masks(700), dims=st.sampled_from([(16, 16), (72, 40)]))
def test_random_masks_of_several_tiles(mask, dims):
    compare(random_inputs(mask, (2, 1), dims), mask)


@settings(deadline=None, max_examples=EXAMPLES // 4)
@given(mask=column_masks(500, heads=(1, 2)), seed=st.integers(0, 2**31))
def test_random_block_masks(mask, seed):
    blocks = [-(-length // 128) for length in (mask.seqlen_q, mask.seqlen_k)]
    keep = torch.rand(1, mask.num_heads, *blocks, generator=torch.Generator().manual_seed(seed)) < 0.6
    pairs = keep.repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, : mask.seqlen_q, : mask.seqlen_k]
    compare(random_inputs(mask), mask, mask.to_dense() & pairs, block_mask=keep)


@pytest.mark.parametrize(
    "mask",
    [
        ColumnMask.plain_causal(300, 700),
        ColumnMask.plain_causal(700, 300),
        ColumnMask.causal_document([3, 200, 1, 130, 500]),
        ColumnMask.causal_document([500, 260], window=64),
        ColumnMask.document([90, 10, 600]),
        ColumnMask.sliding_window(300, 420, left=50, right=9),
        ColumnMask.full(129, 1),
        ColumnMask.full(1, 700),
    ],
    ids=["prefix", "more rows than keys", "documents", "window", "bidirectional", "two-sided", "one key", "one row"],
)
def test_the_usual_masks(mask):
    compare(random_inputs(mask, (4, 2), (64, 64), batch=2), mask)


@pytest.mark.parametrize(("dim", "value_dim"), [(576, 512), (192, 128), (3, 2)])
def test_head_dims(dim, value_dim):
    mask = ColumnMask.causal_document([150, 90])
    compare(random_inputs(mask, dims=(dim, value_dim)), mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dims", [(64, 64), (10, 6)])
def test_half_dtypes_round_only_their_results(dtype, dims):
    mask = ColumnMask.causal_document([200, 100], window=90)
    got = compare(random_inputs(mask, (4, 2), dims, dtype=dtype), mask)
    assert [x.dtype for x in got] == [dtype, torch.float32, dtype, dtype, dtype]


def test_half_conversions_keep_special_values():
    """One key: out is v exactly; the smallest and largest numbers, denormals, infinity and NaN go there and back."""
    values = [0.0, -0.0, 6e-8, -6.1e-5, 6e-5, 1.0009765625, 65504.0, torch.inf, -torch.inf, torch.nan]
    for dtype in (torch.float16, torch.bfloat16):
        value = torch.tensor(values, dtype=dtype).view(1, 1, 1, -1)
        ones = torch.ones(1, 1, 1, 4, dtype=dtype)
        out, _ = fused(ones, ones, value, Options(ColumnMask.full(1), 1.0))
        torch.testing.assert_close(out, value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["head-major", "fused", "expanded", "last dim strided"])
def test_strides_do_not_matter(layout, dtype):
    batch, seqlen, heads, dim = 2, 133, 2, 16
    if layout == "head-major":
        inputs = [torch.randn(batch, heads, seqlen, dim).transpose(1, 2) for _ in range(3)]
    elif layout == "fused":
        inputs = list(torch.randn(batch, seqlen, heads, 3 * dim).split(dim, dim=-1))
    elif layout == "expanded":
        inputs = [torch.randn(1, seqlen, 1, dim).expand(batch, -1, heads, -1) for _ in range(3)]
    else:
        inputs = [torch.randn(batch, dim, seqlen, heads).permute(0, 2, 3, 1) for _ in range(3)]
    inputs = [x.to(dtype) if layout != "expanded" else x[:1, :, :1].to(dtype).expand(x.shape) for x in inputs]
    mask = ColumnMask.causal_document([13, 120])
    grad_out = torch.ones(1, dtype=dtype).expand(batch, seqlen, heads, dim)
    dense = [x.contiguous() for x in inputs]
    for a, b in zip(run(inputs, mask, grad_out), run(dense, mask, grad_out.contiguous()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "batch"), [(0, 5, 2), (5, 0, 2), (0, 0, 1), (4, 4, 0)])
def test_sizes_of_zero(seqlen_q, seqlen_k, batch):
    mask = ColumnMask.plain_causal(seqlen_q, seqlen_k)
    inputs = random_inputs(mask, batch=batch)
    out, lse, *gradients = run(inputs, mask)
    assert out.shape == inputs[0].shape
    assert seqlen_k or (out == 0).all()
    assert seqlen_k or (lse == -torch.inf).all()
    for gradient, x in zip(gradients, inputs, strict=True):
        assert gradient.shape == x.shape
        assert (seqlen_q and seqlen_k) or (gradient == 0).all()


def test_blind_rows_and_unseen_keys_have_gradients_of_exactly_zero():
    bounds = torch.full((1, 1, 300, 2), 300, dtype=torch.int32)
    bounds[..., 1] = 140  # rows before 140 see nothing
    bounds[0, 0, 10:200, 1] = 300  # and nobody sees these keys
    mask = ColumnMask(bounds, False, 300)
    inputs = random_inputs(mask)
    inputs[0][:, :140] = torch.nan  # garbage in padding rows reaches nothing either
    grad_out = torch.randn(1, 300, 2, 16)
    grad_out[:, :140] = torch.nan
    out, lse, dq, dk, dv = run(inputs, mask, grad_out, torch.ones(1, 2, 300))
    assert (out[:, :140] == 0).all()
    assert (lse[:, :, :140] == -torch.inf).all()
    for zero in (dq[:, :140], dk[:, 10:200], dv[:, 10:200]):
        assert torch.equal(zero, torch.zeros_like(zero))
    assert all(x.isfinite().all() for x in (out, dq, dk, dv))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", [1, 2], ids=["key", "value"])
def test_garbage_in_a_hidden_key_reaches_no_row(which, bad):
    """Key 333 is hidden from its neighbours' rows in the same tile, and visible to rows 333 to 339."""
    mask = ColumnMask.causal_document([333, 7, 100])
    inputs = random_inputs(mask)
    grad_out = torch.randn(1, 440, 2, 16)
    clean = run(inputs, mask, grad_out)
    inputs[which][0, 333, 1, 3] = bad
    dirty = run(inputs, mask, grad_out)
    sees = slice(333, 340)
    for before, after in zip(clean, dirty, strict=True):
        before, after = (x.transpose(1, 2) if x.dim() == 3 else x for x in (before, after))
        others = torch.ones(440, dtype=torch.bool)
        others[sees] = False
        torch.testing.assert_close(before[:, others], after[:, others], rtol=1e-6, atol=1e-6)
        assert torch.equal(before[:, :, :1], after[:, :, :1])
    if which == 2 or bad != bad:  # an infinite key can mean a score of -infinity and a weight of 0
        assert not dirty[0][0, sees, 1].isfinite().all(-1).any()
        assert dirty[2][0, sees, 1].isnan().all()


def test_a_nan_in_full_tiles_propagates():
    mask = ColumnMask.full(200, 300)
    inputs = random_inputs(mask)
    inputs[1][0, 7, 0, 0] = torch.tensor([-1], dtype=torch.int32).view(torch.float32)  # a NaN with all bits set
    out, lse, *gradients = run(inputs, mask)
    assert out[:, :, 0].isnan().all()
    assert lse[:, 0].isnan().all()
    assert gradients[1][:, :, 0].isnan().all()
    assert all(x[:, :, 1].isfinite().all() for x in (out, *gradients))


def test_dropout_is_that_of_the_formula():
    mask = ColumnMask.causal_document([200, 150])
    inputs = random_inputs(mask, (4, 2), batch=2)
    dropout = Dropout(0.3, 2**63 + 12345, -7)
    factors = dropout.factors((2, 4, 350, 350), torch.device("cpu")).double()
    q, k, v = leaves = [x.double().requires_grad_() for x in inputs]
    k_all, v_all = (x.repeat_interleave(2, dim=2).transpose(1, 2) for x in (k, v))
    scores = (q.transpose(1, 2) @ k_all.mT * 0.25).masked_fill(~mask.to_dense(), -torch.inf)
    expected = ((scores.softmax(-1) * factors) @ v_all).transpose(1, 2)
    grad_out = torch.randn(expected.shape)
    gradients = torch.autograd.grad(expected, leaves, grad_out.double())
    out, lse, *got = run(inputs, mask, grad_out, dropout=dropout)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)
    for ours, theirs in zip((out, *got), (expected, *gradients), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (6, 6)])
def test_threads_change_no_bit_of_the_forward_and_only_rounding_of_the_backward(heads, threads):
    mask = ColumnMask.causal_document([700, 30, 470])
    inputs = random_inputs(mask, heads, (32, 48))
    grad_out = torch.randn(1, 1200, heads[0], 48)
    results = []
    for count in (1, 2, 3, 2):
        threads(count)
        results.append(run(inputs, mask, grad_out))
    one, two, three, again = results
    for a, b, c, d in zip(one, two, three, again, strict=True):
        assert torch.equal(b, d)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)
    for a, b, c in zip(one[:3], two[:3], three[:3], strict=True):  # out, lse and dq are not sums over pieces
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (3, 3)])
def test_deterministic_gradients_have_the_same_bits_for_any_number_of_threads(heads, threads):
    mask = ColumnMask.causal_document([700, 30, 1470])
    inputs = [x.requires_grad_() for x in random_inputs(mask, heads, (32, 48))]
    grad_out = torch.randn(1, 2200, heads[0], 48)
    results = []
    for count in (1, 2, 3, 3):
        threads(count)
        out = flashmask_attention(*inputs, mask, backend="fused", deterministic=True)
        results.append(torch.autograd.grad(out, inputs, grad_out))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    default = torch.autograd.grad(flashmask_attention(*inputs, mask, backend="fused"), inputs, grad_out)
    for a, b in zip(results[0], default, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_python_threads_do_not_disturb_each_other():
    mask = ColumnMask.causal_document([150, 250])
    calls = [random_inputs(mask, dims=(16 * (i + 1), 16)) for i in range(4)]
    alone = [run(inputs, mask) for inputs in calls]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda inputs: run(inputs, mask), calls * 3))
    for got, wanted in zip(together, alone * 3, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_it_is_the_default_on_the_cpu_and_refuses_the_rest():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        request = AttentionRequest(torch.device("cpu"), dtype, has_block_mask=True, has_dropout=True)
        assert select(OP, request).name == "fused"
    with pytest.raises(ValueError, match="needs float32, bfloat16 or float16"):
        flashmask_attention(*[torch.zeros(1, 2, 1, 4, dtype=torch.float64)] * 3, backend="fused")


def test_wrappers_refuse_what_does_not_fit():
    mask = ColumnMask.full(4)
    q, k, v = random_inputs(mask)
    options = _native.AttentionOptions(mask.flat_bounds, False, 1, 1, 1.0)
    with pytest.raises(TypeError, match="key must be float32"):
        _native.attention_forward(q, k.double(), v, options)
    with pytest.raises(ValueError, match="key must have shape"):
        _native.attention_forward(q, k[..., :3], v, options)
    with pytest.raises(ValueError, match="bounds must have shape"):
        _native.attention_forward(q, k[:, :3], v[:, :3], options)


@pytest.mark.parametrize("isa", ["avx2", "baseline"])
def test_every_instruction_set(isa):
    """Most tests of this file once more, in a process of their own for each set below the best one."""
    order = ["avx512", "avx2", "baseline"]
    if order.index(isa) <= order.index(_native.isa()) or IN_SUBPROCESS:
        pytest.skip(f"{_native.isa()} is tested here")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        str(Path(__file__)),
        "-k",
        "not thread",
    ]
    result = subprocess.run(
        command, env={**os.environ, "OARLOCK_ISA": isa}, capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:]
