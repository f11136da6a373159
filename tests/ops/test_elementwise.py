"""rms_norm, add_rms_norm, swiglu, rope: equal to their formulas, in values and gradients, in every dtype."""

import pytest
import torch
from torch.autograd import gradcheck

from oarlock import ops

# Half results are rounded once at the end: half a unit in the last place of a value below 8, plus the reference's own.
HALF_TOLERANCE = {torch.bfloat16: 2**-5, torch.float16: 2**-8}


def randn(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = True) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


def both(function, reference, *inputs: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs and gradients of both callables for one random upstream gradient."""
    results = []
    for call in (function, reference):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        outputs = call(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        generator = torch.Generator().manual_seed(1)
        upstream = [torch.randn(y.shape, generator=generator).to(y) for y in outputs]
        results.append([*outputs, *torch.autograd.grad(outputs, leaves, upstream)])
    return results[0], results[1]


def add_then_norm(x, update, weight):
    total = x + update
    return total, ops.rms_norm_reference(total, weight, 1e-5)


CASES = {
    "rms_norm": (
        lambda x, w: ops.rms_norm(x, w, 1e-5),
        lambda x, w: ops.rms_norm_reference(x, w, 1e-5),
        [(3, 5, 16), (16,)],
    ),
    "add_rms_norm": (lambda x, u, w: ops.add_rms_norm(x, u, w, 1e-5), add_then_norm, [(3, 5, 16), (3, 5, 16), (16,)]),
    "swiglu": (ops.swiglu, ops.swiglu_reference, [(3, 5, 16), (3, 5, 16)]),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_match_finite_differences(name):
    function, _, shapes = CASES[name]
    assert gradcheck(function, [randn(*shape) for shape in shapes])


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_match_the_formula(name):
    function, reference, shapes = CASES[name]
    ours, theirs = both(function, reference, *[randn(*shape, dtype=torch.float32) for shape in shapes])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)  # float32 sums of 16 to 15 terms in another order


@pytest.mark.parametrize("dtype", HALF_TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_half_types_are_computed_in_float32(name, dtype):
    function, reference, shapes = CASES[name]
    ours, theirs = both(function, reference, *[randn(*shape, dtype=dtype) for shape in shapes])
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b, rtol=HALF_TOLERANCE[dtype], atol=HALF_TOLERANCE[dtype])


def test_rms_norm_agrees_with_torch():
    x, weight = randn(7, 32, dtype=torch.float32), randn(32, dtype=torch.float32)
    ours, theirs = both(
        lambda x, w: ops.rms_norm(x, w, 1e-6), lambda x, w: torch.nn.functional.rms_norm(x, (32,), w, 1e-6), x, weight
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_rms_norm_of_zero_rows_and_strided_input():
    weight = randn(8)
    assert torch.equal(ops.rms_norm(torch.zeros(2, 8, dtype=torch.float64), weight), torch.zeros(2, 8).double())
    strided = randn(8, 6).t()
    torch.testing.assert_close(ops.rms_norm(strided, weight), ops.rms_norm_reference(strided, weight))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_matches_its_formula_and_finite_differences(interleaved):
    cos, sin = ops.rope_tables(torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]]), 8, 10_000.0)
    x = randn(2, 5, 3, 8)
    expected = ops.rope_reference(x, cos, sin, interleaved=interleaved)
    torch.testing.assert_close(ops.rope(x, cos, sin, interleaved=interleaved), expected)
    assert gradcheck(lambda x: ops.rope(x, cos, sin, interleaved=interleaved), [x])
    assert gradcheck(lambda x: ops.rope(x, cos, sin, interleaved=interleaved), [randn(3, 5, 2, 8).transpose(0, 2)])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_scores_depend_on_distance_only(interleaved):
    """The defining property: <rope(q, m), rope(k, n)> is a function of m - n."""
    q, k = randn(1, 1, 1, 16, grad=False), randn(1, 1, 1, 16, grad=False)

    def score(m: int, n: int) -> torch.Tensor:
        turned = [
            ops.rope(x, *ops.rope_tables(torch.tensor([[p]]), 16, 100.0), interleaved=interleaved)
            for x, p in ((q, m), (k, n))
        ]
        return (turned[0] * turned[1]).sum()

    # The tables are float32: angles of up to 30 rad carry 1e-6.
    torch.testing.assert_close(score(3, 1), score(30, 28), rtol=1e-5, atol=1e-5)
    assert not torch.isclose(score(3, 1), score(3, 2), rtol=1e-3)


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256},
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1,
            "mscale_all_dim": 1,
        },
        {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
            "mscale": 0.7,
            "mscale_all_dim": 1.2,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "attention_factor": 0.9},
    ],
)
def test_frequencies_match_transformers(scaling):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=2048,
        rope_parameters={"rope_theta": 500_000.0, **(scaling or {"rope_type": "default"})},
    )
    theirs = LlamaRotaryEmbedding(config)
    torch.testing.assert_close(ops.rope_frequencies(64, 500_000.0, scaling), theirs.inv_freq, rtol=1e-6, atol=0)
    assert ops.rope_magnitude(scaling) == pytest.approx(theirs.attention_scaling)
    cos, _ = ops.rope_tables(torch.zeros(1, 1, dtype=torch.int64), 64, 500_000.0, scaling)
    torch.testing.assert_close(cos, torch.full((1, 1, 32), theirs.attention_scaling))


def test_unknown_rope_type_and_odd_head_dim_are_refused():
    with pytest.raises(ValueError, match="rope_type 'longrope' is not supported; supported: default, linear, llama3"):
        ops.rope_frequencies(8, 10_000.0, {"rope_type": "longrope", "factor": 2.0})
    with pytest.raises(ValueError, match="even; got 7"):
        ops.rope_frequencies(7, 10_000.0)


def test_clamped_swiglu_and_its_gradient():
    gate_up = (3 * torch.randn(7, 12, dtype=torch.float64)).requires_grad_()  # every fourth number beyond the limit
    ours, theirs = (f(gate_up, 1.702, 2.5) for f in (ops.clamped_swiglu, ops.clamped_swiglu_reference))
    assert torch.equal(ours, theirs)
    assert torch.autograd.gradcheck(lambda x: ops.clamped_swiglu(x, 1.702, 2.5), [gate_up])
    upstream = torch.randn_like(ours)
    grads = [torch.autograd.grad(y, gate_up, upstream)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*grads)
    at_limit = torch.tensor([2.5, -2.5], dtype=torch.float64, requires_grad=True)  # a clamp passes its limits through
    grads = [torch.autograd.grad(f(at_limit, 1.702, 2.5), at_limit)[0] for f in (ops.clamped_swiglu, _clamped)]
    torch.testing.assert_close(*grads)
    half = gate_up.detach().bfloat16()
    torch.testing.assert_close(ops.clamped_swiglu(half, 1.702, 2.5), _clamped(half.float(), 1.702, 2.5).bfloat16())


def _clamped(gate_up, alpha, limit):
    """As transformers' GptOssExperts computes it."""
    gate, up = gate_up[..., ::2].clamp(max=limit), gate_up[..., 1::2].clamp(min=-limit, max=limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha))
