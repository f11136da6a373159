"""torch.compile sees one operation, with the same results; gradients of gradients are refused in words."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from oarlock.attention import ColumnMask, flashmask_attention, flashmask_attention_varlen
from oarlock.attention.graph import attend_in_graph
from oarlock.attention.mask_cache import mask_of
from oarlock.attention.plan import tile_plan

DOCUMENTS = ColumnMask.causal_document([40, 24])


@pytest.fixture(autouse=True)
def _compile_anew():
    yield
    torch._dynamo.reset()


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


PACKINGS = [[40, 24], [30, 34], [10, 20, 33], [60, 40], [7, 3, 1, 90], [128]]


def packed_calls():
    """Functions of q, k, v and something that says how they are packed, and what makes it from the lengths."""

    def layers(q, k, v, mask):
        for _ in range(2):
            q = flashmask_attention(q, k, v, mask).tanh()
        return q

    def checkpointed(q, k, v, mask):
        return checkpoint(lambda q, k, v: flashmask_attention(q, k, v, mask).tanh(), q, k, v, use_reentrant=False)

    def varlen(q, k, v, cu):
        return flashmask_attention_varlen(q[0], k[0], v[0], cu, causal=True, window=20)

    return {
        "bounds": (
            lambda q, k, v, bounds: flashmask_attention(q, k, v, bounds, causal=True),
            lambda lengths: ColumnMask.causal_document(lengths).bounds,
        ),
        "a mask": (layers, ColumnMask.causal_document),
        "a checkpoint": (checkpointed, ColumnMask.causal_document),
        "cumulative lengths": (varlen, lambda lengths: torch.tensor([0, *lengths]).cumsum(0)),
        "no mask": (lambda q, k, v, _: flashmask_attention(q, k, v, causal=True), lambda lengths: None),
    }


def check_packed(name, backend):
    """Values and gradients for several packings and lengths, from one static and one dynamic compilation."""
    function, make = packed_calls()[name]
    count = CompileCounterWithBackend(backend)
    compiled = torch.compile(function, fullgraph=True, backend=count)
    for lengths in PACKINGS:
        tensors = inputs(sum(lengths))
        got, expected = (f(*tensors, make(lengths)) for f in (compiled, function))
        torch.testing.assert_close(got, expected)
        seed = torch.randn_like(expected)
        ours, theirs = (torch.autograd.grad(x, tensors, seed, allow_unused=True) for x in (got, expected))
        for gradient, wanted in zip(ours, theirs, strict=True):
            torch.testing.assert_close(gradient, wanted)
    assert count.frame_count <= 2


@pytest.mark.parametrize("name", packed_calls())
def test_other_lengths_and_documents_do_not_compile_again(name):
    check_packed(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", packed_calls())
def test_inductor_with_other_lengths(name):
    check_packed(name, "inductor")


def test_lengths_are_checked_inside_a_graph():
    function, _ = packed_calls()["cumulative lengths"]
    with pytest.raises(ValueError, match="cu_seqlens_q must end with the 64 tokens of query"):
        torch.compile(function, fullgraph=True, backend="aot_eager")(*inputs(), torch.tensor([0, 10, 60]))


@pytest.mark.parametrize("strict", [False, True])
def test_export_keeps_lengths_dynamic(strict, tmp_path):
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.sink = torch.nn.Parameter(torch.randn(4))

        def forward(self, q, k, v, bounds):
            return flashmask_attention(q, k, v, bounds, causal=True, learnable_sink=self.sink)

    module, length = Module(), torch.export.Dim("length", min=2, max=4096)
    axes = ({1: length}, {1: length}, {1: length}, {2: length})
    program = torch.export.export(module, (*inputs(), DOCUMENTS.bounds), dynamic_shapes=axes, strict=strict)
    torch.export.save(program, tmp_path / "attention.pt2")
    loaded = torch.export.load(tmp_path / "attention.pt2").module()
    arguments = (*inputs(41), ColumnMask.causal_document([30, 11]).bounds)
    torch.testing.assert_close(loaded(*arguments), module(*arguments))


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


def operator_arguments():
    """(sink, bounds, [causal, left, right], scale, block mask, dropout, seed and offset, deterministic, backend)"""
    bounds = ColumnMask.causal_document([9, 11]).bounds
    per_head = ColumnMask.global_window(20, num_global=2, left=3, right=3).bounds.repeat(2, 4, 1, 1)
    keep = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    seed_offset = torch.tensor([5, 7])
    return {
        "no mask": (None, None, [1, -1, -1], 0.35, None, 0.0, None, False, "auto"),
        "a window": (None, None, [0, 5, 2], 0.35, None, 0.0, None, False, "auto"),
        "documents": (None, bounds, [1, -1, -1], 0.35, None, 0.0, None, True, "auto"),
        "heads and a sink": (
            torch.randn(4, requires_grad=True),
            per_head,
            [0, -1, -1],
            0.35,
            None,
            0.0,
            None,
            False,
            "auto",
        ),
        "blocks and dropout": (None, bounds, [1, -1, -1], 0.35, keep, 0.3, seed_offset, False, "auto"),
    }


@pytest.mark.parametrize("name", operator_arguments())
def test_the_operator_keeps_torchs_rules(name):
    """Schema, fake results, autograd registration and dynamic shapes, by torch's own checks."""
    torch.library.opcheck(torch.ops.oarlock.flashmask_attention, (*inputs(20), *operator_arguments()[name]))


@pytest.mark.parametrize("window", [None, 4])
def test_the_bounds_of_packed_lengths_keep_torchs_rules(window):
    lengths = torch.tensor([0, 3, 20])
    arguments = (lengths, lengths, 20, 20, True, window, torch.device("cpu"))
    torch.library.opcheck(torch.ops.oarlock.document_bounds, arguments)


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


@pytest.mark.parametrize("compiler", ["aot_eager", "aot_eager_decomp_partition"])
def test_dropout_is_the_same_when_a_compiled_checkpoint_computes_again(compiler):
    """out is linear in v for given weights, so <gradient of v, v> = <what arrives, out> if both dropped the same."""
    q, k, v = inputs()

    def layer(q, k, v):
        return 2 * flashmask_attention(q.sin(), k, 3 * v, DOCUMENTS, dropout=0.4)

    compiled = torch.compile(
        lambda *tensors: checkpoint(layer, *tensors, use_reentrant=False), fullgraph=True, backend=compiler
    )
    for _ in range(2):
        out = compiled(q, k, v)
        seed = torch.randn_like(out)
        (gradient,) = torch.autograd.grad(out, v, seed)
        torch.testing.assert_close((gradient * v).sum(), (seed * out).sum(), rtol=1e-4, atol=1e-3)


def test_autocast_takes_its_dtype():
    q, k, v = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = flashmask_attention(q, k.bfloat16(), v, DOCUMENTS)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, flashmask_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), DOCUMENTS))
