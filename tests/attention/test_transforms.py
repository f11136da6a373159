"""Function transforms: reverse mode works; what has no rule is refused in words, and drops no derivative unseen."""

import pytest
import torch
from torch.autograd import forward_ad

from oarlock.attention import ColumnMask, flashmask_attention

MASK = ColumnMask.causal_document([5, 7])
NO_FORWARD_MODE = "no forward-mode derivative"
NO_VMAP = "cannot run under torch.vmap"


def inputs():
    return [torch.randn(1, 12, heads, 4, dtype=torch.float64) for heads in (4, 2, 2)]


def loss(q, k, v, sink=None):
    out, lse = flashmask_attention(q, k, v, MASK, learnable_sink=sink, return_softmax_lse=True)
    return out.square().sum() + lse.sum()


def test_reverse_mode_transforms_agree_with_autograd():
    leaves = [x.requires_grad_() for x in (*inputs(), torch.randn(4, dtype=torch.float64))]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    detached = [x.detach() for x in leaves]
    ours = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*detached)
    value, pull = torch.func.vjp(loss, *detached)
    torch.testing.assert_close(value, loss(*detached))
    for got, pulled, wanted in zip(ours, pull(torch.ones_like(value)), expected, strict=True):
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(pulled, wanted)


def test_a_second_derivative_is_refused():
    q, k, v = inputs()
    with pytest.raises(NotImplementedError, match="cannot be differentiated twice"):
        torch.func.grad(lambda x: torch.func.grad(loss)(x, k, v).sum())(q)


def test_forward_mode_is_refused():
    tensors = q, k, v, sink = *inputs(), torch.randn(4, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match=NO_FORWARD_MODE):
        torch.func.jvp(lambda x: loss(x, k, v, sink), (q,), (torch.ones_like(q),))
    with forward_ad.dual_level():
        plain = loss(*tensors)  # no tangent among the inputs
        assert forward_ad.unpack_dual(plain).tangent is None
        for place in range(4):
            duals = [forward_ad.make_dual(x, x) if n == place else x for n, x in enumerate(tensors)]
            with pytest.raises(NotImplementedError, match=NO_FORWARD_MODE):
                loss(*duals)


def test_vmap_is_refused():
    q, k, v = inputs()
    with pytest.raises(NotImplementedError, match=NO_VMAP):
        torch.func.vmap(lambda x: loss(x, k, v))(torch.stack([q, q]))
    with pytest.raises(NotImplementedError, match=NO_VMAP):
        torch.func.jacrev(lambda x: flashmask_attention(x, k, v, MASK).sum((0, 1, 2)))(q)
    q.requires_grad_()
    out = flashmask_attention(q, k, v, MASK)
    with pytest.raises(NotImplementedError, match=NO_VMAP):
        torch.autograd.grad(out, q, torch.ones(3, *out.shape, dtype=out.dtype), is_grads_batched=True)
