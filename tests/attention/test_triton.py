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
from oarlock.attention import ColumnMask
from oarlock.attention.request import Options

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# Rounding of float32 dot products of some tens of terms, and of results and weights in half dtypes.
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 4e-2, torch.float16: 6e-3}


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
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=220)
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
    [(LAYOUTS[0], 4, 1), (LAYOUTS[1], 2, 2), (LAYOUTS[2], 1, 2), (LAYOUTS[3], 4, 2), (LAYOUTS[3], 1, 1)],
)
def test_every_layout_and_number_of_mask_heads(layout, mask_heads, mask_batch, chip):
    """Grouped heads, D other than Dv and no powers of two, lengths that fill no tile, one mask for all batch rows."""
    mask = random_mask(layout, mask_batch, mask_heads, 70, 45)
    compare(chip, random_inputs(mask, 2, (4, 2), (20, 33)), mask, tiles=tiles(32, 32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_dtypes_and_other_tiles(dtype, chip):
    mask = random_mask((2, False), 1, 1, 50, 70)
    compare(chip, random_inputs(mask, 1, (2, 2), (16, 24), dtype), mask, tiles=tiles(16, 64))
