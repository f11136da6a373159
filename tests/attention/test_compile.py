"""torch.compile sees one operation, with the same results; gradients of gradients are refused in words."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.graph import attend_in_graph
from oarlock.attention.mask_cache import mask_of
from oarlock.attention.plan import tile_plan

DOCUMENTS = ColumnMask.causal_document([40, 24])


def inputs(seqlen=64, dtype=torch.float32):
    return [torch.randn(2, seqlen, heads, 8, dtype=dtype, requires_grad=True) for heads in (4, 2, 2)]


def calls():
    bounds = ColumnMask.causal_document([30, 34]).bounds
    keep = torch.ones(2, 1, 1, 1, dtype=torch.int32)
    sink = torch.randn(4, requires_grad=True)
    return {
        "a mask": lambda q, k, v: flashmask_attention(q, k, v, DOCUMENTS),
        "bounds": lambda q, k, v: flashmask_attention(q, k, v, bounds, causal=True),
        "no mask": lambda q, k, v: flashmask_attention(q, k, v, causal=True, window_size=9),
        "lse": lambda q, k, v: sum(x.sum() for x in flashmask_attention(q, k, v, DOCUMENTS, return_softmax_lse=True)),
        "blocks and a sink": lambda q, k, v: flashmask_attention(
            q, k, v, DOCUMENTS, block_mask=keep, learnable_sink=sink
        ),
        "bounds made inside": lambda q, k, v: flashmask_attention(
            q, k, v, (torch.arange(64, dtype=torch.int32) // 16 * 16 + 16).view(1, 1, 64, 1), causal=True
        ),
    }


@pytest.mark.parametrize("name", calls())
def test_one_node_and_the_same_results(name):
    function = calls()[name]
    nodes = []

    def backend(graph, example_inputs):
        nodes.extend(n for n in graph.graph.nodes if "flashmask" in str(n.target))
        return graph.forward

    tensors = inputs()
    torch.compile(function, fullgraph=True, backend=backend)(*tensors)
    assert len(nodes) == 1
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    got, expected = compiled(*tensors), function(*tensors)
    torch.testing.assert_close(got, expected)
    seed = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(x, tensors, seed) for x in (got, expected))
    for gradient, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gradient, wanted)
    torch._dynamo.reset()


def test_dynamic_lengths_compile_once():
    count = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(
        lambda q, k, v: flashmask_attention(q, k, v, causal=True), fullgraph=True, backend=count, dynamic=True
    )
    for seqlen in (40, 72, 100):
        tensors = [x.detach() for x in inputs(seqlen)]
        torch.testing.assert_close(compiled(*tensors), flashmask_attention(*tensors, causal=True))
    assert count.frame_count == 1
    torch._dynamo.reset()


def test_dropout_inside_a_graph_uses_torchs_generator():
    compiled = torch.compile(
        lambda q, k, v: flashmask_attention(q, k, v, DOCUMENTS, dropout=0.5), fullgraph=True, backend="aot_eager"
    )
    tensors = inputs()
    torch.manual_seed(3)
    got = compiled(*tensors)
    torch.manual_seed(3)
    torch.testing.assert_close(got, flashmask_attention(*tensors, DOCUMENTS, dropout=0.5))
    assert not torch.equal(got, compiled(*tensors))
    torch._dynamo.reset()


@pytest.mark.slow
def test_inductor():
    function = calls()["lse"]
    tensors = inputs()
    got, expected = torch.compile(function, fullgraph=True)(*tensors), function(*tensors)
    torch.testing.assert_close(got, expected)
    for gradient, wanted in zip(*(torch.autograd.grad(x, tensors) for x in (got, expected)), strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_the_operator_keeps_torchs_rules():
    """Schema, fake results, autograd registration and dynamic shapes, by torch's own checks."""
    arguments = (None, None, [1, -1, -1], 0.35, None, 0.0, None, False, "auto")
    torch.library.opcheck(torch.ops.oarlock.flashmask_attention, (*inputs(20), *arguments))


def test_flop_counters_and_other_modes_see_the_operation():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Listens(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Listens():
        flashmask_attention(*inputs(), DOCUMENTS)
    assert "oarlock.flashmask_attention.default" in seen


@pytest.mark.parametrize("in_graph", [False, True])
def test_gradients_of_gradients_are_refused(in_graph):
    q, k, v = inputs()
    if in_graph:
        out, _ = attend_in_graph(q, k, v, None, None, True, None, 0.3, None, 0.0, None, False, "auto")
    else:
        out = flashmask_attention(q, k, v, causal=True)
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="cannot be differentiated twice"):
        dq.sum().backward()


def test_equal_bounds_are_planned_once_and_written_bounds_again():
    bounds = ColumnMask.causal_document([300, 212]).bounds
    q, k, v = inputs(512)
    flashmask_attention(q, k, v, bounds, causal=True, backend="aten")
    first = mask_of(bounds, True, 512)
    assert mask_of(bounds.clone(), True, 512) is first
    assert "tile_plan" in first._memo
    plan = tile_plan(first)
    bounds[..., :300, :] = 200  # the owner may write
    again = mask_of(bounds, True, 512)
    assert again is not first
    assert tile_plan(again) is not plan
    assert mask_of(ColumnMask.causal_document([300, 212]).bounds, True, 512) is first


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_dropout_is_the_same_when_a_checkpoint_computes_again(use_reentrant):
    q, k, v = inputs()

    def layer(q, k, v):
        return flashmask_attention(q, k, v, DOCUMENTS, dropout=0.4)

    torch.manual_seed(5)
    plain = layer(q, k, v)
    wanted = torch.autograd.grad(plain.square().sum(), (q, k, v))
    torch.manual_seed(5)
    out = checkpoint(layer, q, k, v, use_reentrant=use_reentrant)
    assert torch.equal(out, plain)
    out.square().sum().backward()
    for x, gradient in zip((q, k, v), wanted, strict=True):
        torch.testing.assert_close(x.grad, gradient)


def test_autocast_takes_its_dtype():
    q, k, v = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = flashmask_attention(q, k.bfloat16(), v, DOCUMENTS)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, flashmask_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), DOCUMENTS))
