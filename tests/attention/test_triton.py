"""The Triton kernels against the dense definition in float64.

On the CPU they run in Triton's interpreter, which must be chosen before Triton is imported: there this file runs itself
again in a process of its own. The interpreter takes milliseconds per operation, hence the small sizes.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attention.oracle import LAYOUTS, dense_attention
from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.dropout import Dropout
from oarlock.attention.request import OP, AttentionRequest, Options
from oarlock.providers import explain

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# Rounding of float32 dot products of some tens of terms (on a GPU in three TF32 products, which keep 21 bits), and of
# results and weights in half dtypes.
ROUNDING = 4e-6 if INTERPRETED else 3e-5
TOLERANCE = {torch.float32: ROUNDING, torch.bfloat16: 4e-2, torch.float16: 6e-3}


@pytest.fixture
def chip(device):
    """The device of the kernels."""
    if device.type == "cpu" and not INTERPRETED:
        pytest.skip("runs in the interpreter's process")
    return device


def test_in_the_interpreter(device):
    """All other tests of this file."""
    if device.type != "cpu" or INTERPRETED:
        pytest.skip("the tests run in this process")
    interpret(__file__)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", ["test_tricky.py", "test_tricky_values.py"])
def test_the_tricky_cases_in_the_interpreter(file, device):
    if device.type != "cpu" or INTERPRETED:
        pytest.skip("the tests run in that file")
    interpret(Path(__file__).with_name(file), "-k", "triton", timeout=1700)


def interpret(*arguments, timeout=220):
    """Runs tests in a process whose Triton interprets."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def tiles(rows, keys):
    from oarlock.attention.backends.triton.tiles import Tiles

    return Tiles(rows, keys, 4, 1)


def random_mask(layout, batch, heads, rows, keys):
    """Bounds of any spelling, equal in runs of neighbours, as real masks have them."""
    num_bounds, causal = layout
    bounds = torch.randint(-3, rows + 4, (batch, heads, keys, num_bounds))
    return ColumnMask(bounds[:, :, torch.arange(keys) // 20 * 20].int(), causal, rows)


def random_inputs(mask, batch, heads, dims, dtype=torch.float32):
    shapes = [
        (batch, mask.seqlen_q, heads[0], dims[0]),
        (batch, mask.seqlen_k, heads[1], dims[0]),
        (batch, mask.seqlen_k, heads[1], dims[1]),
    ]
    return [torch.randn(shape).to(dtype) for shape in shapes]


def run(inputs, options, seeds=None, **arguments):
    """out, lse, dq, dk, dv of the kernels."""
    from oarlock.attention.backends.triton import launch

    out, lse = launch.forward(*inputs, options, **arguments)
    grad_out, grad_lse = (torch.ones_like(out), None) if seeds is None else seeds
    return [out, lse, *launch.backward(grad_out, grad_lse, *inputs, out, lse, options, **arguments)]


def compare(chip, inputs, mask, visible=None, *, scale=None, block_mask=None, **arguments):
    """Values and gradients, arriving at out and lse, against the oracle; returns ours."""
    scale = inputs[0].shape[-1] ** -0.5 if scale is None else scale
    leaves = [x.double().requires_grad_() for x in inputs]
    out, lse = dense_attention(*leaves, mask.to_dense() if visible is None else visible, scale)
    seeds = torch.randn(out.shape).to(inputs[0].dtype), torch.randn(lse.shape)
    gradients = torch.autograd.grad((out, lse), leaves, [x.double() for x in seeds])
    options = Options(mask.to(chip), scale, None if block_mask is None else block_mask.to(chip))
    got = run([x.to(chip) for x in inputs], options, [x.to(chip) for x in seeds], **arguments)
    for ours, theirs in zip(got, (out, lse, *gradients), strict=True):
        ours = ours.double().cpu()
        assert torch.equal(ours.isinf(), theirs.isinf())
        error = torch.where(theirs.isinf(), 0.0, ours - theirs).abs().max()
        assert error <= TOLERANCE[inputs[0].dtype] * max(1.0, theirs[~theirs.isinf()].abs().max().item())
    return got


@pytest.mark.parametrize(
    ("layout", "mask_heads", "mask_batch"),
    [(LAYOUTS[0], 4, 1), (LAYOUTS[1], 2, 2), (LAYOUTS[2], 1, 2), (LAYOUTS[3], 4, 2)],
)
def test_every_layout_and_number_of_mask_heads(layout, mask_heads, mask_batch, chip):
    """Grouped heads, D other than Dv and no powers of two, lengths that fill no tile, one mask for all batch rows."""
    mask = random_mask(layout, mask_batch, mask_heads, 50, 40)
    compare(chip, random_inputs(mask, 2, (4, 2), (20, 33)), mask, tiles=tiles(32, 32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_dtypes_and_other_tiles(dtype, chip):
    mask = random_mask((2, False), 1, 1, 50, 70)
    compare(chip, random_inputs(mask, 1, (2, 2), (16, 24), dtype), mask, tiles=tiles(16, 64))


@pytest.mark.parametrize("dims", [(192, 128), (250, 256)])
def test_large_head_dims(dims, chip):
    mask = random_mask((1, True), 1, 1, 40, 40)
    compare(chip, random_inputs(mask, 1, (2, 1), dims), mask, tiles=tiles(32, 32))


def test_rows_and_keys_that_see_nothing(chip):
    """out 0, lse -inf and gradients 0, exactly; tiles without any visible pair are written too."""
    bounds = torch.full((1, 1, 70, 2), 70)
    bounds[..., 0], bounds[..., 1] = 10, 45
    bounds[:, :, 20:50, 0], bounds[:, :, 20:50, 1] = 0, 70
    mask = ColumnMask(bounds, True, 70)
    out, lse, dq, dk, dv = compare(chip, random_inputs(mask, 1, (1, 1), (16, 16)), mask, tiles=tiles(16, 16))
    assert (out[:, 10:45] == 0).all()
    assert (lse[..., 10:45] == -torch.inf).all()
    assert (dq[:, 10:45] == 0).all()
    assert (dk[:, 20:50] == 0).all()
    assert (dv[:, 20:50] == 0).all()


def test_negative_and_zero_scales(chip):
    mask = random_mask((2, True), 1, 1, 20, 40)
    for scale in (-0.7, 0.0):
        compare(chip, random_inputs(mask, 1, (1, 1), (16, 16)), mask, scale=scale, tiles=tiles(32, 32))


def test_block_masks(chip):
    """Equal to the dense intersection; one block mask for all batch rows or one each, lengths that fill no block."""
    mask = random_mask((4, False), 1, 2, 150, 140)
    blocks = torch.tensor([[[1, 0], [1, 1]], [[0, 1], [1, 1]]]).bool().expand(2, 2, 2, 2).clone()
    blocks[1, 0] = False
    pairs = blocks.repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :150, :140]
    inputs = random_inputs(mask, 2, (2, 2), (16, 16))
    compare(chip, inputs, mask, mask.to_dense() & pairs, block_mask=blocks, tiles=tiles(64, 128))
    compare(chip, inputs, mask, mask.to_dense() & pairs[:1], block_mask=blocks[:1], tiles=tiles(128, 64))


def test_dropout_drops_the_pairs_of_the_hash(chip):
    """The forward, and P dV^T-like gradients, against the documented factors; lse ignores them."""
    mask = random_mask((1, True), 1, 1, 40, 50)
    dropout = Dropout(0.4, 2**63 + 5, -7)
    inputs = random_inputs(mask, 2, (2, 1), (16, 24))
    leaves = [x.double().requires_grad_() for x in inputs]
    q, k, v = (x.transpose(1, 2) for x in leaves)
    visible = mask.to_dense()
    scores = (q @ k.mT / 4).masked_fill(~visible, -torch.inf).masked_fill(~visible.any(-1, keepdim=True), 0)
    weights = scores.softmax(-1) * dropout.factors((2, 2, 40, 50), torch.device("cpu")) * visible
    out = (weights @ v).transpose(1, 2)
    seeds = torch.randn(out.shape), torch.zeros(2, 2, 40)
    gradients = torch.autograd.grad(out, leaves, seeds[0].double())
    options = Options(mask.to(chip), 0.25, dropout=dropout)
    inputs, seeds = ([x.to(chip) for x in xs] for xs in (inputs, seeds))
    got = run(inputs, options, seeds, tiles=tiles(32, 32))
    plain_lse = run(inputs, Options(mask.to(chip), 0.25), seeds, tiles=tiles(32, 32))[1]
    torch.testing.assert_close(got[1], plain_lse)
    for ours, theirs in zip((got[0], *got[2:]), (out, *gradients), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.float(), rtol=0, atol=5 * ROUNDING)


@pytest.mark.parametrize(
    ("name", "garbage"), [("query", torch.nan), ("key", torch.nan), ("value", torch.nan), ("value", torch.inf)]
)
def test_garbage_reaches_only_rows_that_see_it(name, garbage, chip):
    """Two documents that share a tile: what is not finite in the first one changes nothing of the second one."""
    mask = ColumnMask.causal_document([19, 13])
    inputs = random_inputs(mask, 1, (1, 1), (16, 16))
    options = Options(mask.to(chip), 0.25)
    clean = run([x.to(chip) for x in inputs], options, tiles=tiles(32, 32))
    inputs[["query", "key", "value"].index(name)][:, 4, :, 3] = garbage
    dirty = run([x.to(chip) for x in inputs], options, tiles=tiles(32, 32))
    for ours, wanted in zip(dirty, clean, strict=True):
        dim = 2 if ours.dim() == 3 else 1
        torch.testing.assert_close(ours.narrow(dim, 19, 13), wanted.narrow(dim, 19, 13))
    out, rows = dirty[0].cpu()[0], torch.arange(19)
    poisoned = ~out[:19].isfinite().all(-1).all(-1)
    assert torch.equal(poisoned, rows == 4 if name == "query" else rows >= 4)


def test_any_order_and_any_quota_give_the_same_bits(chip):
    """A program that takes at most ``quota`` items of a queue in any order, each item exactly once.

    As many turns as items fill all results: if an item were taken twice, another would be missing.
    """
    from oarlock.attention.backends.triton.launch import Schedule

    mask = random_mask((2, True), 1, 2, 90, 70)
    inputs = [x.to(chip) for x in random_inputs(mask, 1, (2, 1), (16, 16))]
    options, seeds = Options(mask.to(chip), 0.3), None
    expected = run(inputs, options, seeds, tiles=tiles(32, 32))

    def shuffled(order):
        return torch.stack([line[torch.randperm(len(line), device=line.device)] for line in order])

    # 3 row tiles of 2 heads, and 3 key tiles of one head
    for programs, quota in ((6, 1), (2, 3)):
        schedule = Schedule(programs, quota, shuffled)
        assert all(
            torch.equal(a, b)
            for a, b in zip(run(inputs, options, seeds, tiles=tiles(32, 32), schedule=schedule), expected, strict=True)
        )


def test_a_quota_ends_a_program(chip, monkeypatch):
    """Two programs that take two items each leave the other two of six as they were."""
    from oarlock.attention.backends.triton import launch

    mask = ColumnMask.full(96)
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
    inputs = [x.to(chip) for x in random_inputs(mask, 1, (2, 1), (16, 16))]
    schedule = launch.Schedule(programs=2, quota=2)
    _, lse = launch.forward(*inputs, Options(mask.to(chip), 0.3), tiles=tiles(32, 32), schedule=schedule)
    assert ((lse != 0).view(2, 3, 32).all(-1).sum(), (lse == 0).view(2, 3, 32).all(-1).sum()) == (4, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_lists_are_exact(layout, chip):
    """Row and key lists hold the tiles of mask.tile_classes, longest line first."""
    from oarlock.attention.backends.triton.tile_lists import lists_of_keys, lists_of_rows

    mask = random_mask(layout, 2, 2, 130, 170)
    for block_q, block_k in ((16, 64), (64, 32)):
        classes = mask.tile_classes(block_q, block_k).flatten(0, 1)
        classes[..., -1] = classes[..., -1].clamp(max=1)  # the keys beyond the end must be masked
        of_rows = lists_of_rows(mask.to(chip), None, block_q, block_k)
        of_keys = lists_of_keys(mask.to(chip), None, block_q, block_k, 2)
        for lists, wanted in ((of_rows, classes), (of_keys, classes.mT)):
            got = torch.zeros(wanted.shape, dtype=torch.int8)
            for line in range(wanted.shape[0] * wanted.shape[1]):
                entries = lists.lists.flatten(0, 1)[line].tolist()
                partial, full = lists.counts.flatten(0, 1)[line].tolist()
                got.view(-1, wanted.shape[2])[line, entries[:partial]] = 1
                got.view(-1, wanted.shape[2])[line, entries[len(entries) - full :]] = 2
            assert torch.equal(got, wanted)
        work = (5 * (classes == 1) + 4 * (classes == 2)).sum(1).view(2, 2, -1).sum(1)  # two mask heads per key head
        assert (work.gather(1, of_keys.order.cpu().long()).diff() <= 0).all()


def test_strides_of_any_kind(chip):
    """Transposed, sliced, flipped-layout and expanded tensors give what contiguous ones do."""
    mask = random_mask((2, False), 1, 1, 30, 30)
    whole = torch.randn(2, 3, 30, 3 * 32, device=chip)
    q, k, v = (x.transpose(1, 2) for x in whole.chunk(3, dim=-1))
    k, v = k[..., ::2], v.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2)[..., :20]
    inputs = [q[..., 1::2], k[:1].expand(2, -1, -1, -1), v[:, :, :1].expand(-1, -1, 3, -1)]
    options = Options(mask.to(chip), 0.25)
    for ours, wanted in zip(run(inputs, options), run([x.contiguous() for x in inputs], options), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=ROUNDING, atol=ROUNDING)
        assert ours.is_contiguous()


@pytest.mark.parametrize(("rows", "keys", "batch"), [(0, 5, 2), (5, 0, 2), (4, 4, 0)])
def test_sizes_of_zero(rows, keys, batch, chip):
    mask = ColumnMask.full(rows, keys, device=chip)
    inputs = [torch.randn(batch, n, 2, 16, device=chip) for n in (rows, keys, keys)]
    out, lse, *gradients = run(inputs, Options(mask, 0.25))
    assert out.shape == (batch, rows, 2, 16)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()
    assert all((x == 0).all() for x in gradients)


def test_the_public_function_takes_it_by_name(chip):
    """With a sink, through autograd; equal calls give equal bits."""
    mask = ColumnMask.causal_document([20, 30]).to(chip)
    inputs = [x.to(chip).requires_grad_() for x in random_inputs(mask, 1, (2, 1), (16, 16))]
    sink = torch.tensor([0.5, -torch.inf], device=chip, requires_grad=True)
    results = []
    for backend in ("triton", "triton", "reference"):
        out, lse = flashmask_attention(*inputs, mask, learnable_sink=sink, return_softmax_lse=True, backend=backend)
        results.append([out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), [*inputs, sink])])
    for once, again, reference in zip(*results, strict=True):
        assert torch.equal(once, again)
        torch.testing.assert_close(once, reference, rtol=5 * ROUNDING, atol=5 * ROUNDING)


def test_reasons(device):
    def reason(where, dtype, **properties):
        return dict(explain(OP, AttentionRequest(torch.device(where), dtype, **properties)))["triton"]

    assert "float64" in reason("cuda", torch.float64)
    assert "up to 256, got 576 and 512" in reason("cuda", torch.float16, head_dim=576, value_dim=512)
    assert reason("cuda", torch.bfloat16, has_dropout=True, has_block_mask=True, deterministic=True) is None
    assert "mps" in reason("mps", torch.float16)
    if not INTERPRETED:
        assert "TRITON_INTERPRET=1" in reason("cpu", torch.float32)
