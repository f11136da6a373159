"""The C++ kernels of a decoder layer against float64 autograd: odd sizes, views, NaN, magnitudes, threads."""

import math

import pytest
import torch
from torch import Tensor

from oarlock import ops
from oarlock.ops import fused

# A float32 sum of n terms in vector lanes, and a few roundings: 2e-6 of the terms' size covers widths up to a thousand.
RTOL, ATOL = 2e-6, 4e-6
EPS = 1e-5
SIZES = [1, 7, 16, 255, 256, 257]


def close(actual: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=RTOL, atol=ATOL * scale, equal_nan=True)


def float64_gradients(function, inputs: list[Tensor], *upstream: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and gradients of the definition, in float64."""
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    gradients = torch.autograd.grad(outputs, leaves, [u.double() for u in upstream])
    return [y.detach() for y in outputs], list(gradients)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


# ---- RMS-norm --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 130])
@pytest.mark.parametrize("width", SIZES)
def test_rms_norm(rows, width):
    x, dy = torch.randn(rows, width), torch.randn(rows, width)
    weight = torch.randn(width)
    (y,), (dx, dweight) = float64_gradients(norm, [x, weight], dy)
    total, ours, inverse_rms = fused.rms_norm(x, weight, EPS)
    assert total is x
    close(ours, y)
    close(inverse_rms, 1 / (x.double().square().mean(-1) + EPS).sqrt())
    our_dx, our_dweight = fused.rms_norm_backward(dy, x, weight, inverse_rms)
    size = float(inverse_rms.max())  # of one column: x can be anything, so can 1 / rms
    close(our_dx, dx, size)
    close(our_dweight, dweight, math.sqrt(rows))


@pytest.mark.parametrize("width", SIZES)
def test_add_rms_norm_adds_both_gradients_of_the_stream(width):
    x, update, dtotal, dy = (torch.randn(2, 5, width) for _ in range(4))
    weight = torch.randn(width)

    def step(x: Tensor, update: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return x + update, norm(x + update, weight)

    (_, y), (dx, dupdate, dweight) = float64_gradients(step, [x, update, weight], dtotal, dy)
    our_total, ours, inverse_rms = fused.rms_norm(x, weight, EPS, update)
    assert torch.equal(our_total, x + update)
    close(ours, y, float(inverse_rms.max()))  # x + update is rounded to float32, then divided by the rms
    our_dx, our_dweight = fused.rms_norm_backward(dy, our_total, weight, inverse_rms, dtotal)
    size = float(inverse_rms.square().max())
    close(our_dx, dx, size)
    close(our_dx, dupdate, size)
    close(our_dweight, dweight, 10 * float(inverse_rms.max()))


@pytest.mark.parametrize("magnitude", [1e-15, 1e-6, 1e6, 1e15])
def test_rms_norm_of_very_small_and_large_values(magnitude):
    x, weight, dy = torch.randn(5, 100) * magnitude, torch.randn(100), torch.randn(5, 100)
    (y,), (dx, dweight) = float64_gradients(norm, [x, weight], dy)
    _, ours, inverse_rms = fused.rms_norm(x, weight, EPS)
    our_dx, our_dweight = fused.rms_norm_backward(dy, x, weight, inverse_rms)
    for actual, expected in ((ours, y), (our_dx, dx), (our_dweight, dweight)):
        close(actual, expected, float(expected.abs().max()))


def test_rms_norm_weight_gradient_of_many_rows():
    """The parts in which rows are summed cover each row once, whatever their number."""
    weight = torch.ones(3)
    for rows in (63, 64, 65, 127, 128, 1000, 20_000):
        x = torch.ones(rows, 3)
        _, _, inverse_rms = fused.rms_norm(x, weight, 0.0)
        _, dweight = fused.rms_norm_backward(x, x, weight, inverse_rms)
        assert dweight.tolist() == [rows] * 3


# ---- SwiGLU ----------------------------------------------------------------------------------------------------------


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return gate / (1 + torch.exp(-gate)) * up


@pytest.mark.parametrize("width", SIZES)
def test_swiglu(width):
    gate, up, dy = (torch.randn(3, 2, width) * 4 for _ in range(3))
    (y,), (dgate, dup) = float64_gradients(gated, [gate, up], dy)
    close(fused.swiglu(gate, up), y)
    our_dgate, our_dup = fused.swiglu_backward(dy, gate, up)
    close(our_dgate, dgate, 16)  # dy and up of size 4 each
    close(our_dup, dup, 4)


def test_swiglu_reads_column_ranges_in_place():
    packed, dy = torch.randn(5, 2, 66), torch.randn(5, 2, 99)[..., ::3]
    gate, up = packed.chunk(2, dim=-1)
    assert not gate.is_contiguous()
    assert torch.equal(fused.swiglu(gate, up), fused.swiglu(gate.contiguous(), up.contiguous()))
    for view, dense in zip(
        fused.swiglu_backward(dy, gate, up),
        fused.swiglu_backward(dy.contiguous(), gate.contiguous(), up.contiguous()),
        strict=True,
    ):
        assert torch.equal(view, dense)
    transposed = torch.randn(33, 7).t()
    assert torch.equal(fused.swiglu(transposed, transposed), fused.swiglu(*[transposed.contiguous()] * 2))


def test_a_stride_of_a_dim_of_size_one_means_nothing():
    odd = torch.randn(4, 8).as_strided((4, 1, 8), (8, 999, 1))
    assert odd.is_contiguous()
    assert torch.equal(fused.swiglu(odd, odd), fused.swiglu(odd.clone(), odd.clone()))
    odd = torch.randn(4, 8).as_strided((4, 1, 1, 8), (8, 999, 777, 1))
    cos, sin = torch.randn(2, 4, 1, 4)
    assert torch.equal(fused.rope(odd, cos, sin), fused.rope(odd.clone(), cos, sin))


def test_silu_is_exact_to_two_units_in_the_last_place_over_its_whole_range():
    # Down to -87, where exp(-gate) is still finite: relative, not absolute.
    gate = torch.cat([torch.linspace(-87, 88, 200_001), torch.logspace(-30, 1, 5001)])
    one = torch.ones_like(gate)
    expected = torch.nn.functional.silu(gate.double())
    torch.testing.assert_close(fused.swiglu(gate, one).double(), expected, rtol=4e-7, atol=0)
    sigmoid = torch.sigmoid(gate.double())
    derivative = sigmoid * (1 + gate * (1 - sigmoid))
    dgate, _ = fused.swiglu_backward(one, gate, one)
    # The derivative crosses zero at -1.278, so there the error is relative to its terms.
    assert ((dgate - derivative).abs() <= 6e-7 * sigmoid * (1 + gate.abs().double())).all()


def test_swiglu_of_huge_infinite_and_nan_values():
    gate = torch.tensor([-3e38, -1e30, -104.0, -89.0, 89.0, 1e30, math.inf, math.nan, 1.0])
    up = torch.tensor([1.0] * 8 + [math.nan])
    y = fused.swiglu(gate, up)
    assert y[:4].abs().max() < 1e-36
    assert y[4:7].tolist() == gate[4:7].tolist()
    assert y[7:].isnan().all()
    dgate, dup = fused.swiglu_backward(torch.ones(9), gate, up)
    assert dgate[:3].abs().max() < 1e-36
    assert dgate[4:6].tolist() == [1, 1]
    assert dgate[7:].isnan().all()
    assert dup[7].isnan()
    assert not dup[8].isnan()  # it does not depend on `up`


# ---- softmax cross-entropy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [*SIZES, 4099])
@pytest.mark.parametrize("shift", [0.0, -1e4, 1e4])
def test_softmax_cross_entropy(vocabulary, shift):
    # Logits of 1e4 have a spacing of 1e-3: they are rounded first, so that both sides see the same numbers.
    logits = torch.randn(9, vocabulary) * 5 + shift
    targets = torch.randint(0, vocabulary, (9,))
    targets[4] = -100
    expected, (gradient,) = float64_gradients(
        lambda z: torch.nn.functional.cross_entropy(z, targets, reduction="none"), [logits], torch.full((9,), 3.0)
    )
    before = logits.clone()
    losses = fused.softmax_cross_entropy_(logits, targets, with_gradient=False)
    assert torch.equal(logits, before)
    close(losses, expected[0], 4)
    assert losses[4] == 0
    again = fused.softmax_cross_entropy_(logits, targets, scale=3.0)
    assert torch.equal(again, losses)
    close(logits, gradient)
    assert not logits[4].any()


def test_softmax_cross_entropy_scales_each_row():
    logits, targets = torch.randn(6, 50), torch.randint(0, 50, (6,))
    scale = torch.tensor([0.0, -1.0, 2.0, 1.0, 0.5, -3.0])
    plain, scaled = logits.clone(), logits.clone()
    fused.softmax_cross_entropy_(plain, targets)
    fused.softmax_cross_entropy_(scaled, targets, scale=scale)
    close(scaled, plain * scale[:, None])


def test_softmax_cross_entropy_with_nan_and_infinite_logits():
    logits = torch.zeros(5, 70)
    logits[0, 69] = math.nan
    logits[1, 3] = math.inf
    logits[2, :69] = -math.inf
    logits[3] = -math.inf
    targets = torch.tensor([0, 0, 69, 0, 1])
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    losses = fused.softmax_cross_entropy_(logits, targets)
    close(losses, expected)
    assert losses[:2].isnan().all()
    assert losses[3].isnan()
    assert logits[:2].isnan().any(dim=-1).all()
    assert not logits[2].any()  # certain of the target: no gradient


def test_softmax_cross_entropy_leaves_no_denormals():
    """Matmuls with denormals run several times slower; unlikely tokens of a certain model would produce many."""
    logits = -torch.linspace(0, 200, 2001).expand(2, -1).clone()
    fused.softmax_cross_entropy_(logits, torch.tensor([0, 2000]))
    smallest_normal = torch.finfo(torch.float32).tiny
    assert ((logits == 0) | (logits.abs() >= smallest_normal)).all()
    assert logits[0, 650] > 0  # e^-65 is kept


def test_a_target_outside_of_the_vocabulary_is_refused():
    for target in (-1, 5, 2**40):
        with pytest.raises(RuntimeError, match="invalid argument"):
            fused.softmax_cross_entropy_(torch.zeros(1, 5), torch.tensor([target]))


# ---- rotary embedding ------------------------------------------------------------------------------------------------


def rotation(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """The definition, as multiplication by a complex number."""
    pairs = x.unflatten(-1, (-1, 2)) if interleaved else x.unflatten(-1, (2, -1)).transpose(-1, -2)
    turned = torch.view_as_complex(pairs.double().contiguous()) * torch.complex(cos.double(), sin.double())[:, :, None]
    y = torch.view_as_real(turned)
    return y.flatten(-2) if interleaved else y.transpose(-1, -2).flatten(-2)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("head_dim", [2, 14, 32, 64, 66, 128])
@pytest.mark.parametrize("num_tables", [1, 3])
def test_rope(head_dim, interleaved, num_tables):
    packed = torch.randn(3, 5, 3 * 2 * head_dim)
    x = packed[..., 2 * head_dim : 4 * head_dim].unflatten(-1, (2, head_dim))  # the keys of a packed projection
    cos, sin = ops.rope_tables(torch.randint(0, 100, (num_tables, 5)), head_dim, 10_000.0)
    y = fused.rope(x, cos, sin, interleaved=interleaved)
    close(y, rotation(x, cos, sin, interleaved))
    close(fused.rope(y, cos, sin, interleaved=interleaved, inverse=True), x)
    by_head = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(fused.rope(by_head, cos, sin, interleaved=interleaved), y)
    uneven = torch.randn(3, 7, 2, head_dim)[:, :5]
    close(fused.rope(uneven, cos, sin, interleaved=interleaved), rotation(uneven, cos, sin, interleaved))


@pytest.mark.parametrize("head_dim", [2, 14, 32, 64, 66, 128])
def test_rope_after_norm(head_dim):
    packed, dy = torch.randn(2, 70, 3 * 2 * head_dim), torch.randn(2, 70, 2, head_dim)
    x = packed[..., : 2 * head_dim].unflatten(-1, (2, head_dim))
    weight = torch.randn(head_dim)
    cos, sin = ops.rope_tables(torch.randint(0, 100, (1, 70)), head_dim, 10_000.0)
    (y,), (dx, dweight) = float64_gradients(lambda x, w: rotation(norm(x, w), cos, sin), [x, weight], dy)
    ours, inverse_rms = fused.norm_rope(x, weight, EPS, cos, sin)
    close(ours, y, 4)
    our_dx, our_dweight = fused.norm_rope_backward(dy, x, weight, inverse_rms, cos, sin)
    close(our_dx, dx, float(inverse_rms.square().max()) + 4)
    close(our_dweight, dweight, 20)
    close(fused.norm_rope_backward(dy.expand(2, 70, 2, head_dim), x, weight, inverse_rms, cos, sin)[0], dx, 1e3)


def test_tables_that_do_not_fit_are_refused():
    x = torch.randn(2, 3, 1, 8)
    for shape in [(2, 3, 8), (2, 4, 4), (3, 3, 4)]:
        with pytest.raises(ValueError, match=r"cannot rotate|cos must have shape"):
            fused.rope(x, torch.ones(shape), torch.ones(shape))


# ---- all kernels -----------------------------------------------------------------------------------------------------


def everything() -> list[Tensor]:
    """Results of every kernel on inputs large enough for two threads, with tails."""
    generator = torch.Generator().manual_seed(3)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x, update, dy, dtotal, weight = randn(700, 77), randn(700, 77), randn(700, 77), randn(700, 77), randn(77)
    total, y, inverse_rms = fused.rms_norm(x, weight, EPS, update)
    heads, dheads, head_weight = randn(2, 200, 3, 70), randn(2, 200, 3, 70), randn(70)
    cos, sin = ops.rope_tables(torch.arange(200)[None], 70, 10_000.0)
    turned, head_inverse_rms = fused.norm_rope(heads, head_weight, EPS, cos, sin)
    logits, targets = randn(90, 777), torch.randint(0, 777, (90,), generator=generator)
    losses = fused.softmax_cross_entropy_(logits, targets)
    return [
        *(total, y, inverse_rms, *fused.rms_norm_backward(dy, total, weight, inverse_rms, dtotal)),
        *(fused.swiglu(x, update), *fused.swiglu_backward(dy, x, update)),
        *(logits, losses, fused.rope(heads, cos, sin), fused.rope(heads, cos, sin, interleaved=True)),
        *(turned, *fused.norm_rope_backward(dheads, heads, head_weight, head_inverse_rms, cos, sin)),
    ]


def test_results_are_bitwise_the_same_each_time_and_for_any_number_of_threads():
    expected, num_threads = everything(), torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for ours, reference in zip(everything(), expected, strict=True):
                assert torch.equal(ours, reference)
    finally:
        torch.set_num_threads(num_threads)


def test_empty_tensors():
    x, weight = torch.randn(0, 8), torch.randn(8)
    assert fused.rms_norm(x, weight, EPS)[1].shape == (0, 8)
    dx, dweight = fused.rms_norm_backward(x, x, weight, torch.empty(0))
    assert dx.shape == (0, 8)
    assert not dweight.any()
    assert fused.swiglu(x, x).shape == (0, 8)
    assert fused.softmax_cross_entropy_(x, torch.empty(0, dtype=torch.int64)).shape == (0,)
    assert fused.rope(torch.randn(0, 3, 2, 8), torch.ones(1, 3, 4), torch.ones(1, 3, 4)).shape == (0, 3, 2, 8)


def test_what_the_kernels_cannot_take():
    x = torch.randn(3, 8)
    assert fused.applies(x, torch.nn.Parameter(x))
    assert not fused.applies(x, x.double())
    assert not fused.applies(x.to("meta"))
    assert not fused.applies(x.to_sparse())
    assert not fused.applies(torch.randn(3, dtype=torch.complex64).conj().imag)
    with pytest.raises(TypeError, match="weight must be a float32 tensor"):
        fused.rms_norm(x, torch.randn(8).double(), EPS)
    with pytest.raises(ValueError, match=r"weight must have shape \[8\]"):
        fused.rms_norm(x, torch.randn(7), EPS)
    with pytest.raises(ValueError, match="up must have shape"):
        fused.swiglu(x, x[:2])
