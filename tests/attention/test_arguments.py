"""Paddle's other arguments: block masks, sinks, and clear errors for what does not fit or is not there."""

import inspect
import warnings

import pytest
import torch

from attention.oracle import dense_attention
from oarlock.attention import ColumnMask, flashmask_attention, flashmask_attention_varlen, operator
from oarlock.attention.context_parallel import plan_context_parallel
from oarlock.attention.keywords import CommonKeywords, Keywords
from oarlock.attention.request import OP, AttentionRequest
from oarlock.providers import explain


def inputs(device, seqlen=8, heads=(2, 2), dtype=torch.float64):
    return [
        torch.randn(1, seqlen, h, 4, dtype=dtype, device=device, requires_grad=True)
        for h in (heads[0], heads[1], heads[1])
    ]


@pytest.mark.parametrize("sink", [[0.3, -1.0], [-torch.inf, 2.0]])
def test_a_sink_is_one_more_key_without_value(sink, device, backend):
    """Against a dense softmax over one more logit; a row without keys has out 0 and lse = sink."""
    q, k, v = inputs(device)
    sink_H = torch.tensor(sink, dtype=torch.float64, device=device, requires_grad=True)
    bounds = torch.tensor([5], dtype=torch.int32, device=device).expand(1, 1, 8, 1)  # rows 5..7 see nothing
    mask = ColumnMask(bounds, True, 8)
    out, lse = flashmask_attention(q, k, v, mask, learnable_sink=sink_H, return_softmax_lse=True, backend=backend)

    # An extra key whose score is the sink: one more dimension carries it.
    one = torch.ones(1, 8, 2, 1, dtype=torch.float64, device=device)
    sink_column = sink_H.clamp(min=-1e300).view(1, 1, 2, 1)
    q_extra = torch.cat([q * 0.5, one], dim=-1)
    k_extra = torch.cat([torch.cat([k, 0 * one], dim=-1), torch.cat([0 * k[:, :1], sink_column], dim=-1)], dim=1)
    v_extra = torch.cat([v, 0 * v[:, :1]], dim=1)
    visible = torch.cat([mask.to_dense(), torch.ones(1, 1, 8, 1, dtype=torch.bool, device=device)], dim=-1)
    expected = dense_attention(q_extra, k_extra, v_extra, visible, 1.0)
    torch.testing.assert_close(out, expected[0])
    torch.testing.assert_close(lse.clamp(min=-1e300), expected[1])
    assert (out[:, 5:] == 0).all()

    finite = torch.isfinite(sink_H)[None, :, None]
    seeds = [torch.randn_like(out), torch.randn_like(lse) * finite]
    ours = torch.autograd.grad((out, lse), (q, k, v, sink_H), seeds)
    theirs = torch.autograd.grad(expected, (q, k, v, sink_H), seeds)
    for gradient, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_auto_names_the_slower_path_once(device):
    operator._choose.cache_clear()
    q, k, v = inputs(device)
    mask = ColumnMask.full(8, device=device)
    with pytest.warns(UserWarning, match="dense reference .* with dropout"):
        flashmask_attention(q, k, v, mask, dropout=0.1, backend="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flashmask_attention(q, k, v, mask, dropout=0.1)


def test_a_named_backend_says_why_it_does_not_apply(device):
    q, k, v = inputs(device)
    with pytest.raises(ValueError, match="'aten' of flashmask_attention does not apply"):
        flashmask_attention(q, k, v, ColumnMask.full(8, device=device), dropout=0.1, backend="aten")
    with pytest.raises(ValueError, match="has no provider 'fast'"):
        flashmask_attention(q, k, v, backend="fast")
    reasons = dict(explain(OP, AttentionRequest(torch.device("cuda"), torch.float32)))
    assert reasons["aten"] == "runs on the CPU, the tensors are on cuda"
    assert reasons["reference"] is None


def test_accepted_without_effect(device):
    q, k, v = inputs(device)
    plain = flashmask_attention(q, k, v, backend="reference")
    same = flashmask_attention(
        q, k, v, backend="reference", dropout=0.5, training=False, name="attention", deterministic=True
    )
    assert torch.equal(plain, same)


def test_a_mask_in_paddles_format(device):
    q, k, v = inputs(device)
    mask = ColumnMask.causal_document([3, 5], device=device)
    expected = flashmask_attention(q, k, v, mask, backend="reference")
    assert torch.equal(flashmask_attention(q, k, v, mask.bounds, causal=True, backend="reference"), expected)
    with pytest.raises(ValueError, match=r"1 columns with causal=False: .* LTE with causal and UTE without"):
        flashmask_attention(q, k, v, mask.bounds)


def test_arguments_that_do_not_fit(device):
    q, k, v = inputs(device)
    mask = ColumnMask.document([8], device=device)

    def refuses(error, message, *tensors, **arguments):
        with pytest.raises(error, match=message):
            flashmask_attention(*tensors, **arguments)

    refuses(ValueError, "causal=True contradicts", q, k, v, mask, causal=True)
    refuses(ValueError, "exclude each other", q, k, v, mask, window_size=2)
    refuses(ValueError, "the mask is for 9 rows and 9 keys", q, k, v, ColumnMask.full(9, device=device))
    refuses(ValueError, "the mask has batch size 3", q, k, v, ColumnMask.full(8, batch=3, device=device))
    three_heads = ColumnMask(torch.zeros(1, 3, 8, 2, dtype=torch.int32, device=device), False, 8)
    refuses(ValueError, r"has 3 heads; allowed are 1, 2 \(key\) and 2 \(query\)", q, k, v, three_heads)
    refuses(ValueError, "the mask is on meta", q, k, v, mask.to("meta"))
    refuses(ValueError, r"\[batch, sequence, heads, head_dim\]", q[0], k, v)
    refuses(ValueError, "key and value differ", q, k, v[:, :4])
    refuses(ValueError, "differ in head_dim", q, k[..., :3], v)
    refuses(ValueError, "batch sizes differ", q, k.repeat(2, 1, 1, 1), v.repeat(2, 1, 1, 1))
    refuses(ValueError, "2 query heads must be a multiple of the 4 key heads", q, *inputs(device, heads=(1, 4))[1:])
    refuses(TypeError, "key is torch.float32", q, k.float(), v)
    refuses(TypeError, "query must be a torch.Tensor", None, k, v)
    refuses(ValueError, "block_mask needs", q, k, v, block_mask=torch.ones(1, 1, 1, 1))
    refuses(ValueError, r"block_mask must have shape \[1, 1, 1, 1\]", q, k, v, mask, block_mask=torch.ones(1, 1, 2, 1))
    refuses(TypeError, "must hold ints or bools", q, k, v, mask, block_mask=torch.ones(1, 1, 1, 1, device=device))
    refuses(ValueError, r"learnable_sink must have shape \[2\]", q, k, v, learnable_sink=torch.zeros(3))
    refuses(TypeError, "learnable_sink must have a floating-point dtype", q, k, v, learnable_sink=torch.ones(2).long())
    refuses(ValueError, r"dropout must be in \[0, 1\), got 1.0", q, k, v, dropout=1.0)
    refuses(ValueError, "fixed_seed_offset must be an int64", q, k, v, fixed_seed_offset=torch.zeros(2))
    refuses(ValueError, "rng_name 'local' is unknown", q, k, v, dropout=0.5, rng_name="local")
    refuses(TypeError, "floating-point dtype, got torch.int64", *(x.detach().long() for x in (q, k, v)))
    refuses(ValueError, "one column per key; query has 8 rows and key 8", q, k, v, mask.bounds[:, :, :7])
    refuses(TypeError, "int32 .*row indices, got torch.float64: .*LTS", q, k, v, mask.bounds.double())
    refuses(TypeError, "got torch.bool; a dense mask becomes one with ColumnMask.from_dense", q, k, v, mask.to_dense())
    refuses(ValueError, r"shape \[batch, heads, seqlen_k, n\], got \[8, 2\]: .*LTS", q, k, v, mask.bounds[0, 0])
    refuses(ValueError, "head_dim must be at least 1", *(x[..., :0] for x in (q, k, v)))
    refuses(ValueError, "left and right not negative: -1", q, k, v, window_size=-1)


def test_the_keywords_for_type_checkers_are_those_of_the_functions():
    for function, keywords in ((flashmask_attention, Keywords), (flashmask_attention_varlen, CommonKeywords)):
        named = {
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        returns = {"return_softmax_lse", "return_seed_offset"}
        if function is flashmask_attention:
            assert named - returns == set(keywords.__annotations__) | set(CommonKeywords.__annotations__)
        else:
            assert named == returns | {"causal", "window"}


def test_another_default_device_changes_nothing():
    """Whose tensors are on the CPU need not know of ``torch.set_default_device``."""
    q, k, v = inputs(torch.device("cpu"), dtype=torch.float32)
    mask = ColumnMask.causal_document([3, 5], device="cpu")
    few, short = [x.detach()[:, :2] for x in (q, k, v)], ColumnMask.document([1, 1], device="cpu")
    calls = [{"dropout": 0.3, "return_seed_offset": True}, {"backend": "aten"}, {"causal": True}, {}]
    with torch.device("meta"):
        for options in calls:
            out = flashmask_attention(q, k, v, None if "causal" in options else mask, **options)
            out = out[0] if isinstance(out, list) else out
            out.sum().backward()
        flashmask_attention_varlen(q[0], k[0], v[0], [0, 3, 8], [0, 4, 8], causal=True)
        flashmask_attention(*few, short)
    assert q.grad is not None
    assert q.grad.isfinite().all()


def test_a_plan_takes_the_mask_of_the_whole_sequence(device, backend):
    """For one rank that is the attention itself; on several, test_context_parallel.py."""
    q, k, v = inputs(device)
    mask = ColumnMask.causal_document([3, 5], device=device)
    plan = plan_context_parallel(mask)
    sink = torch.randn(2, dtype=torch.float64, device=device)
    calls = [
        ((mask,), {"learnable_sink": sink, "return_softmax_lse": True}),
        ((mask.bounds,), {"causal": True, "softmax_scale": 0.3}),
        ((), {"causal": True, "window_size": 2, "return_seed_offset": True}),
    ]
    for given, options in calls:
        got = flashmask_attention(q, k, v, *given, plan=plan, backend=backend, **options)
        torch.testing.assert_close(got, flashmask_attention(q, k, v, *given, backend=backend, **options))
    for message, options in [
        ("plan needs the mask of the whole sequence", {}),
        ("neither block_mask nor dropout", {"causal": True, "dropout": 0.5}),
        ("the plan is for a whole sequence of 8", {"startend_row_indices": ColumnMask.full(4, device=device)}),
    ]:
        with pytest.raises(ValueError, match=message):
            flashmask_attention(q, k, v, plan=plan, **options)
