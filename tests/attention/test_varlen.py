"""Packed documents are what each document is alone."""

import pytest
import torch

from oarlock.attention import flashmask_attention, flashmask_attention_varlen


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("keys", [None, [0, 9, 9, 40, 70]])
def test_each_document_as_if_alone(causal, keys, kernel, device):
    rows = [0, 5, 9, 40, 63]
    kernel.need(63)
    dtype = kernel.dtype
    cu_k = keys or rows
    query = torch.randn(63, 4, 8, device=device, dtype=dtype, requires_grad=True)
    key, value = (torch.randn(cu_k[-1], 2, 8, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
    cu = [x if x is None else torch.tensor(x, dtype=torch.int32, device=device) for x in (rows, keys)]
    out, lse = flashmask_attention_varlen(
        query, key, value, *cu, causal=causal, return_softmax_lse=True, backend=kernel.name
    )
    assert lse.shape == (4, 63)
    parts = []
    for d in range(4):
        q, k, v = (x[None, a[d] : a[d + 1]] for x, a in ((query, rows), (key, cu_k), (value, cu_k)))
        parts.append(flashmask_attention(q, k, v, causal=causal, backend="reference")[0])
    expected = torch.cat(parts)
    torch.testing.assert_close(out, expected, **kernel.tolerance)
    seed = torch.randn_like(out)
    ours, theirs = (torch.autograd.grad(x, (query, key, value), seed) for x in (out, expected))
    for got, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, wanted, **kernel.tolerance)


def test_what_it_refuses(device):
    q = torch.randn(6, 2, 4, device=device)
    with pytest.raises(ValueError, match=r"query must be a tensor \[total, heads, head_dim\], got \[1, 6, 2, 4\]"):
        flashmask_attention_varlen(q[None], q, q, [0, 6])
    with pytest.raises(ValueError, match=r"cu_seqlens_q must end with the 6 tokens of query, got \[0, 5\]"):
        flashmask_attention_varlen(q, q, q, [0, 5])
    with pytest.raises(ValueError, match="cu_seqlens_k must end with the 6"):
        flashmask_attention_varlen(q, q, q, [0, 6], [0, 7])
