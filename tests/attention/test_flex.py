"""The FlexAttention backend: its block lists on the CPU (forward, not compiled), all of it on a GPU."""

import pytest
import torch

from attention.oracle import LAYOUTS, dense_attention
from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.backends.flex import attend
from oarlock.attention.request import OP, AttentionRequest, Options
from oarlock.providers import explain, providers

# Rounding of float32 dot products of some tens of terms; on a GPU torch's kernel multiplies in TF32.
TOLERANCE = {"cpu": 4e-6, "cuda": 5e-3}


def random_mask(layout, batch, heads, rows, keys):
    num_bounds, causal = layout
    bounds = torch.randint(-3, rows + 4, (batch, heads, keys, num_bounds))
    return ColumnMask(bounds[:, :, torch.arange(keys) // 40 * 40].int(), causal, rows)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_forward_without_compiling(layout):
    """Exact block lists for mask heads that query heads share; rows that see nothing have out 0 and lse -inf."""
    mask = random_mask(layout, 2, 2, 200, 150)
    query, key, value = torch.randn(2, 200, 4, 16), torch.randn(2, 150, 2, 16), torch.randn(2, 150, 2, 24)
    out, lse = attend(query, key, value, Options(mask, 0.25), compiled=False)
    expected, expected_lse = dense_attention(query, key, value, mask.to_dense(), 0.25)
    assert out.shape == expected.shape
    torch.testing.assert_close(out, expected.float(), rtol=0, atol=TOLERANCE["cpu"])
    torch.testing.assert_close(lse, expected_lse.float(), rtol=0, atol=TOLERANCE["cpu"])
    value[:, 40, 0] = torch.nan  # reaches the rows that see it, and no other
    dirty, _ = attend(query, key, value, Options(mask, 0.25), compiled=False)
    sees = mask.to_dense()[..., 40].repeat_interleave(2, 1).mT & (torch.arange(4) < 2)
    assert torch.equal(dirty.isnan().any(-1), sees)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [LAYOUTS[1], LAYOUTS[3]])
def test_values_and_gradients_on_a_gpu(layout, dtype, device):
    mask = random_mask(layout, 1, 2, 300, 260)
    shapes = ((2, 300, 4, 64), (2, 260, 2, 64), (2, 260, 2, 64))
    inputs = [torch.randn(shape).to(dtype).double().requires_grad_() for shape in shapes]
    expected = dense_attention(*inputs, mask.to_dense(), 0.125)
    leaves = [x.detach().to(device, dtype).requires_grad_() for x in inputs]
    got = flashmask_attention(*leaves, mask.to(device), return_softmax_lse=True, backend="flex")
    seeds = [torch.randn_like(x) for x in expected]
    wanted = torch.autograd.grad(expected, inputs, seeds)
    ours = torch.autograd.grad(got, leaves, [seed.to(x) for seed, x in zip(seeds, got, strict=True)])
    tolerance = TOLERANCE["cuda"] if dtype == torch.float32 else 5e-2
    for x, y in zip((*got, *ours), (*expected, *wanted), strict=True):
        torch.testing.assert_close(
            x.double().cpu(), y, rtol=tolerance, atol=tolerance * max(1, y[y.isfinite()].abs().max())
        )


@pytest.mark.gpu
def test_a_sink_on_a_gpu(device):
    mask = ColumnMask.causal_document([100, 156]).to(device)
    inputs = [torch.randn(1, 256, 2, 64, device=device).requires_grad_() for _ in range(3)]
    logits = torch.tensor([0.5, -1.0], device=device, requires_grad=True)
    results = []
    for backend in ("flex", "reference"):
        out, lse = flashmask_attention(*inputs, mask, learnable_sink=logits, return_softmax_lse=True, backend=backend)
        results.append([out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), [*inputs, logits])])
    for ours, wanted in zip(*results, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=TOLERANCE["cuda"], atol=2e-2)


def test_auto_takes_it_last_and_the_reasons():
    assert [p.name for p in providers(OP)][-2:] == ["reference", "flex"]

    def reason(where, **properties):
        return dict(explain(OP, AttentionRequest(torch.device(where), torch.float32, **properties)))["flex"]

    assert "no backward on the CPU" in reason("cpu")
    assert reason("cuda") is None
    assert "block_mask" in reason("cuda", has_block_mask=True)
    assert "drop" in reason("cuda", has_dropout=True)
    assert "from 16 on, got 8 and 64" in reason("cuda", head_dim=8)
    with pytest.raises(ValueError, match="no backward on the CPU"):
        flashmask_attention(*torch.randn(3, 1, 4, 1, 16).unbind(), causal=True, backend="flex")
