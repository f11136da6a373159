"""Operations that Paddle has on GPUs only, against formulas in float64 written out number by number.

Every check registers the API that it covers: the coverage page reads the names from the decorators.
"""

from collections.abc import Callable
from math import erf, exp, pi, sqrt, tanh
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import oarlock.paddle as paddle
import oarlock.paddle.incubate.nn.functional as F

FORMULAS: dict[str, Callable[[], None]] = {}


def formula(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a check of the API `name`."""

    def register(check: Callable[[], None]) -> Callable[[], None]:
        FORMULAS[name] = check
        return check

    return register


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def make(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def agree(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Equal numbers; float64 sums of a few dozen terms differ by some units in the last place."""
    found = found.detach().double().numpy() if isinstance(found, Tensor) else found
    np.testing.assert_allclose(found, np.asarray(expected, dtype=float), rtol=tolerance, atol=tolerance)


def check_gradient(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """The gradient against central differences of the function itself, whose values are checked elsewhere."""
    assert torch.autograd.gradcheck(function, inputs, eps=1e-6, atol=1e-7)


def array(x: Tensor) -> np.ndarray:
    return x.detach().numpy()


# Rotary embeddings


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, adjacent: bool) -> np.ndarray:
    """One vector rotated: partner, sign and table of each feature written out."""
    width, out = len(x), np.empty(len(x))
    for i in range(width):
        if adjacent:
            partner, sign = (i + 1, -1.0) if i % 2 == 0 else (i - 1, 1.0)
        else:
            partner, sign = (i + width // 2, -1.0) if i < width // 2 else (i - width // 2, 1.0)
        out[i] = x[i] * cos[i] + sign * x[partner] * sin[i]
    return out


@formula("paddle.incubate.nn.functional.fused_rotary_position_embedding")
def check_rotary() -> None:
    batch, length, heads, width = 2, 3, 2, 4
    q, k, v = make(batch, length, heads, width), make(batch, length, 1, width), make(batch, length, heads, width)
    sin, cos = torch.randn(5, width, dtype=torch.float64), torch.randn(5, width, dtype=torch.float64)
    positions = torch.tensor([[4, 0, 2], [1, 1, 3]])
    for adjacent in (True, False):
        for ids in (None, positions):
            tables = sin[None, :, None], cos[None, :, None]
            made = F.fused_rotary_position_embedding(q, k, v, *tables, ids, adjacent)
            flat = F.fused_rotary_position_embedding(q, k, v, sin, cos, ids, adjacent)
            swapped = [x.transpose(0, 1) for x in (q, k, v)]
            timed = F.fused_rotary_position_embedding(*swapped, sin, cos, ids, adjacent, time_major=True)
            for x, found, same, turned in zip((q, k, v), made, flat, timed, strict=True):
                expected = np.empty(x.shape)
                for b, s, h in np.ndindex(*x.shape[:3]):
                    at = s if ids is None else int(ids[b, s])
                    expected[b, s, h] = rotate(array(x)[b, s, h], cos[at].numpy(), sin[at].numpy(), adjacent)
                agree(found, expected)
                agree(same, expected)
                agree(turned.transpose(0, 1), expected)
    out, none_k, none_v = F.fused_rotary_position_embedding(q)
    assert none_k is None
    assert none_v is None
    expected = np.empty(q.shape)
    for b, s, h in np.ndindex(*q.shape[:3]):
        angles = np.array([s / 10000 ** ((i // 2 * 2) / width) for i in range(width)])
        expected[b, s, h] = rotate(array(q)[b, s, h], np.cos(angles), np.sin(angles), True)
    agree(out, expected, 1e-6)  # these tables are made in float32
    slow, *_ = F.fused_rotary_position_embedding(q, rotary_emb_base=2.0)
    assert not torch.allclose(slow, out)
    check_gradient(lambda x: F.fused_rotary_position_embedding(x, None, None, sin, cos, positions)[0], q)
    check_gradient(lambda x: F.fused_rotary_position_embedding(x, sin=sin, cos=cos, use_neox_rotary_style=False)[0], q)
    with pytest.raises(ValueError, match="without sin and cos"):
        F.fused_rotary_position_embedding(q, position_ids=positions)


@formula("paddle.incubate.nn.functional.fused_partial_rope")
def check_partial_rope() -> None:
    x = make(2, 3, 2, 6)
    cos, sin = torch.randn(1, 3, 1, 4, dtype=torch.float64), torch.randn(1, 3, 1, 4, dtype=torch.float64)
    expected = array(x).copy()
    for b, s, h in np.ndindex(2, 3, 2):
        pe = array(x)[b, s, h, 2:]
        apart = np.array([pe[0], pe[2], pe[1], pe[3]])
        expected[b, s, h, 2:] = rotate(apart, cos[0, s, 0].numpy(), sin[0, s, 0].numpy(), False)
    agree(F.fused_partial_rope(x, cos, sin), expected)
    check_gradient(lambda x: F.fused_partial_rope(x, cos, sin), x)
    half = F.fused_partial_rope(x.bfloat16(), cos.bfloat16(), sin.bfloat16())
    assert half.dtype == torch.bfloat16
    agree(half, expected, 0.05)  # bfloat16 has 8 bits
    with pytest.raises(ValueError, match="even"):
        F.fused_partial_rope(x, cos[..., :3], sin[..., :3])


# Mixtures of experts


def route(gates: np.ndarray, bias: np.ndarray, k: int) -> list[list[int]]:
    """The experts of each token by repeated search for the largest."""
    chosen = []
    for row in gates + bias:
        left, mine = list(range(len(row))), []
        for _ in range(k):
            best = max(left, key=lambda e: row[e])
            mine.append(best)
            left.remove(best)
        chosen.append(mine)
    return chosen


def fill(chosen: list[list[int]], num_experts: int, capacity: int, padded: bool) -> dict[tuple[int, int], int]:
    """The slot of each (token, choice) that has one."""
    tokens, k = len(chosen), len(chosen[0])
    order = (
        [(t, c) for c in range(k) for t in range(tokens)]
        if padded
        else [(t, c) for t in range(tokens) for c in range(k)]
    )
    slots, before = {}, 0
    for expert in range(num_experts):
        mine = [(t, c) for t, c in order if chosen[t][c] == expert]
        for place, who in enumerate(mine[:capacity]):
            slots[who] = (expert * capacity if padded else before) + place
        before += len(mine)
    return slots


@formula("paddle.incubate.nn.functional.moe_gate_dispatch")
def check_dispatch() -> None:
    tokens, experts, k, width = 6, 4, 2, 3
    gates = torch.rand(tokens, experts, dtype=torch.float64).requires_grad_()
    x = make(tokens, width)
    for bias in (None, torch.tensor([0.0, 0.5, -0.5, 0.0], dtype=torch.float64)):
        chosen = route(array(gates), np.zeros(4) if bias is None else bias.numpy(), k)
        for capacity in (1, 2, 6):
            for padded in (True, False):
                y, weights, index, ends, ids = F.moe_gate_dispatch(x, gates, bias, k, capacity, padded)
                slots = fill(chosen, experts, capacity, padded)
                rows = np.zeros((experts * capacity if padded else tokens * k, width))
                shares = np.zeros((tokens, k))
                for (t, c), slot in slots.items():
                    rows[slot], shares[t, c] = array(x)[t], array(gates)[t, chosen[t][c]]
                agree(y, rows)
                agree(weights, shares)
                assert ids.tolist() == chosen
                assert index.dtype == ids.dtype == torch.int32
                assert ends.tolist() == [sum(e <= last for row in chosen for e in row) for last in range(experts)]
                assert index.tolist() == [[slots.get((t, c), 0) for t in range(tokens)] for c in range(k)]
    check_gradient(
        lambda x, g: torch.cat([o.flatten() for o in F.moe_gate_dispatch(x, g, None, 2, 2, True)[:2]]), x, gates
    )


@formula("paddle.incubate.nn.functional.moe_gate_dispatch_permute")
def check_dispatch_permute() -> None:
    tokens, experts, k, width, world, capacity = 6, 4, 2, 3, 2, 3
    x, gates = make(tokens, width), torch.rand(tokens, experts, dtype=torch.float64)
    y, weights, index, ends, ids = F.moe_gate_dispatch_permute(x, gates, None, k, capacity, world)
    plain = F.moe_gate_dispatch(x, gates, None, k, capacity, True)
    for found, expected in zip((weights, index, ends, ids), plain[1:], strict=True):
        assert torch.equal(found, expected)
    expected = np.zeros((experts // world, world * capacity, width))
    for expert in range(experts):
        rank, local = divmod(expert, experts // world)
        block = array(plain[0])[expert * capacity : (expert + 1) * capacity]
        expected[local, rank * capacity : (rank + 1) * capacity] = block
    agree(y, expected)
    check_gradient(lambda x: F.moe_gate_dispatch_permute(x, gates, None, k, capacity, world)[0], x)


@formula("paddle.incubate.nn.functional.moe_combine")
def check_combine() -> None:
    x, weights = make(7, 3), make(4, 2)
    index = torch.tensor([[0, 6], [5, 5], [1, 2], [3, 0]], dtype=torch.int32)
    expected = np.zeros((4, 3))
    for s, i in np.ndindex(4, 2):
        expected[s] += array(weights)[s, i] * array(x)[int(index[s, i])]
    agree(F.moe_combine(x, weights, index), expected)
    agree(F.moe_combine(x, weights, index.T.contiguous()), expected)
    check_gradient(lambda x, w: F.moe_combine(x, w, index), x, weights)
    tokens = make(5, 3)
    gates = torch.rand(5, 4, dtype=torch.float64)
    y, share, slots, *_ = F.moe_gate_dispatch(tokens, gates, None, 2, 5, True)
    agree(F.moe_combine(y, share, slots), array(tokens) * array(share).sum(1, keepdims=True))


def permuted(routes: list[list[int]], num_experts: int, alignment: int) -> tuple[list[tuple[int, int]], int]:
    """(token, expert) of each row in order, (-1, -1) for filled ones; and how many rows there are."""
    rows: list[tuple[int, int]] = []
    for expert in range(num_experts):
        rows += [(t, expert) for t, mine in enumerate(routes) if expert in mine]
        rows += [(-1, -1)] * (-len(rows) % alignment)
    return rows, len(rows)


@formula("paddle.nn.functional.moe_permute")
def check_permute() -> None:
    x, routes = make(4, 3), [[0, 2], [1, -1], [-1, 0], [2, 0]]
    shares = torch.rand(4, 2, dtype=torch.float64)
    scale = torch.rand(4, 2)
    rows, total = permuted(routes, 3, 2)
    made, rowmap, chances, scales, experts = paddle.nn.functional.moe_permute(
        x, scale, torch.tensor(routes, dtype=torch.int32), shares, 3, [3, 1, 2], 2, return_expert_indices=True
    )
    assert rowmap.dtype == torch.int32
    assert experts.tolist() == [e for _, e in rows]
    expected = np.zeros((total, 3))
    for r, (t, e) in enumerate(rows):
        if t >= 0:
            expected[r] = array(x)[t]
            assert float(chances[r]) == float(shares[t, routes[t].index(e)])
            assert int(rowmap[t, e]) == r
            assert torch.equal(scales[r], scale[t])
    assert int((rowmap >= 0).sum()) == sum(t >= 0 for t, _ in rows)
    agree(made, expected)
    where = torch.tensor(routes, dtype=torch.int32)
    check_gradient(lambda x: paddle.nn.functional.moe_permute(x, None, where, shares, 3, [3, 1, 2], 2)[0], x)
    with pytest.raises(ValueError, match="do_gather"):
        paddle.nn.functional.moe_permute(x, None, where, shares, 3, [3, 1, 2], 2, False)


@formula("paddle.nn.functional.moe_unpermute")
def check_unpermute() -> None:
    x, routes = make(4, 3), [[0, 2], [1, -1], [-1, 0], [2, 0]]
    where, shares = torch.tensor(routes, dtype=torch.int32), torch.rand(4, 2, dtype=torch.float64)
    made, rowmap, chances, _ = paddle.nn.functional.moe_permute(x, None, where, shares, 3, [3, 1, 2], 2)
    tokens, found = paddle.nn.functional.moe_unpermute(made, rowmap, where, chances, 4, 3)
    there = (where >= 0).numpy()
    agree(tokens, array(x) * there.sum(1, keepdims=True))
    agree(found, shares.numpy() * there)
    weighted, _ = paddle.nn.functional.moe_unpermute(
        made, rowmap, where, chances[:, None], 4, 3, using_weighted_combine=True
    )
    agree(weighted, array(x) * (shares.numpy() * there).sum(1, keepdims=True))
    check_gradient(lambda rows: paddle.nn.functional.moe_unpermute(rows, rowmap, where, chances, 4, 3)[0], made)


@formula("paddle.incubate.nn.functional.int_bincount")
def check_bincount() -> None:
    x = torch.tensor([3, 1, 5, 3, 0, -2])
    assert F.int_bincount(x, 1, 5).tolist() == [1, 0, 2, 0]
    assert F.int_bincount(x.int(), 0, 4, "int64").dtype == torch.int64


@formula("paddle.incubate.nn.functional.cal_aux_loss")
def check_balance() -> None:
    probability = torch.rand(5, 4, dtype=torch.float64).requires_grad_()
    sent = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]])
    own, everyone = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]), torch.tensor([True] * 6 + [False])
    for mask, others, length, correction in (
        (None, None, 5 / 8 * 4, 1.0),
        (own, None, 4.0, 1.0),
        (own, everyone, 6.0, 6 / 4),
        (None, everyone, 6.0, 1.0),
    ):
        for group in (True, False):
            loss, count, share = F.cal_aux_loss(probability, sent, mask, others, 8, group, 2, 1e-6)
            total = sum(float(sent[:, e].sum()) / length * array(probability)[:, e].sum() / length for e in range(4))
            agree(loss, total * 8 / (2 if group else 1) * correction)
            agree(count, length)
            agree(share, sent.sum(0).numpy() / length)
    agree(
        F.cal_aux_loss(probability, sent.sum(0), None, None, 8, False, 2, 1e-6)[0],
        array(F.cal_aux_loss(probability, sent, None, None, 8, False, 2, 1e-6)[0]),
    )
    check_gradient(lambda p: F.cal_aux_loss(p, sent, own, None, 8, True, 2, 1e-6)[0], probability)
    (found,) = torch.autograd.grad(F.cal_aux_loss(probability, sent, own, everyone, 8, True, 2, 1e-6)[0], probability)
    agree(found, np.tile(sent.sum(0).numpy() / 6 / 6 * 8 / 2, (5, 1)))  # per token of all ranks


@formula("paddle.incubate.nn.functional.build_src_rank_and_local_expert_id")
def check_ranks_of_rows() -> None:
    counts = [2, 0, 1, 3]
    ranks, places = F.build_src_rank_and_local_expert_id(torch.tensor(counts), counts, 2)
    experts = [e for e, n in enumerate(counts) for _ in range(n)]
    assert ranks.dtype == places.dtype == torch.int32
    assert ranks.tolist() == [e // 2 for e in experts]
    assert places.tolist() == [e % 2 for e in experts]


@formula("paddle.incubate.nn.functional.expand_modality_expert_id")
def check_modalities() -> None:
    chosen = torch.tensor([[0, 1], [3, 2], [1, 0]], dtype=torch.int32)
    for grouped in (False, True):
        for offset in (0, 1):
            made = F.expand_modality_expert_id(chosen, 2, 4, offset, grouped)
            for s, i in np.ndindex(3, 2):
                expert = int(chosen[s, i]) + (4 * i if grouped else 0)
                assert int(made[s, i]) == expert // 2 * 4 + expert % 2 + offset * 2
    assert torch.equal(F.expand_modality_expert_id(chosen, 0, 4, 1, False), chosen)


@formula("paddle.incubate.nn.functional.cross_entropy_with_softmax_bwd_w_downcast")
def check_entropy_backward() -> None:
    logits, label, grad = make(3, 4), torch.tensor([[1], [3], [0]]), torch.randn(3, 1)
    made = F.cross_entropy_with_softmax_bwd_w_downcast(label, logits.detach().softmax(-1).float(), grad)
    losses = torch.nn.functional.cross_entropy(logits, label[:, 0], reduction="none")
    (losses * grad[:, 0]).sum().backward()
    assert made.dtype == torch.bfloat16
    assert logits.grad is not None
    agree(made, logits.grad.numpy(), 0.01)  # bfloat16


@formula("paddle.incubate.nn.functional.embedding_grad_add_to_")
def check_embedding_gradient() -> None:
    total, grad, index = torch.ones(5, 3), torch.randn(2, 2, 3), torch.tensor([[1, 4], [1, 0]])
    expected = np.ones((5, 3))
    for b, s in np.ndindex(2, 2):
        expected[int(index[b, s])] += grad[b, s].numpy()
    assert F.embedding_grad_add_to_(index, total, grad) is total
    agree(total, expected, 1e-6)  # float32


# Linear maps with activations


def gelu(x: float) -> float:
    return x * 0.5 * (1 + erf(x / sqrt(2)))


def silu(x: float) -> float:
    return x / (1 + exp(-x))


@formula("paddle.incubate.nn.functional.fused_linear_activation")
def check_linear_activation() -> None:
    x, y, bias = make(2, 3), make(3, 4), make(4)
    plain = np.array([[sum(array(x)[i, m] * array(y)[m, j] for m in range(3)) for j in range(4)] for i in range(2)])
    plain = plain + array(bias)
    agree(F.fused_linear_activation(x, y, bias), plain)
    agree(F.fused_linear_activation(x.T, y.T, bias, True, True), plain)
    agree(F.fused_linear_activation(x, y, bias, activation="relu"), plain.clip(0))
    bent = np.vectorize(lambda z: 0.5 * z * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 * z**3))))(plain)
    agree(F.fused_linear_activation(x, y, bias, activation="gelu"), bent)
    check_gradient(lambda x, y, b: F.fused_linear_activation(x, y, b, activation="gelu"), x, y, bias)
    with pytest.raises(ValueError, match="sine"):
        F.fused_linear_activation(x, y, bias, activation="sine")


@formula("paddle.incubate.nn.functional.fused_matmul_bias")
def check_matmul_bias() -> None:
    x, y, bias = make(2, 3), make(3, 4), make(4)
    expected = np.einsum("im,mj->ij", array(x), array(y)) + array(bias)
    agree(F.fused_matmul_bias(x, y, bias), expected)
    agree(F.fused_matmul_bias(x.T, y.T, bias, transpose_x=True, transpose_y=True), expected)
    check_gradient(F.fused_matmul_bias, x, y, bias)


@formula("paddle.incubate.nn.functional.fused_linear")
def check_linear() -> None:
    x, weight, bias = make(2, 5, 3), make(3, 4), make(4)
    expected = np.einsum("bim,mj->bij", array(x), array(weight)) + array(bias)
    agree(F.fused_linear(x, weight, bias), expected)
    agree(F.fused_linear(x, weight.T, bias, True), expected)
    check_gradient(F.fused_linear, x, weight, bias)


@formula("paddle.incubate.nn.functional.fused_bias_act")
def check_bias_act() -> None:
    x, bias, shift, smooth = make(3, 4), make(4), make(4), make(4)
    moved = array(x) + array(bias)
    agree(F.fused_bias_act(x, bias), np.vectorize(gelu)(moved))
    agree(F.fused_bias_act(x, bias, act_method="relu"), moved.clip(0))
    agree(F.fused_bias_act(x, act_method="swiglu"), np.vectorize(silu)(array(x)[:, :2]) * array(x)[:, 2:])
    agree(F.fused_bias_act(x, bias, act_method="geglu"), np.vectorize(gelu)(moved[:, :2]) * moved[:, 2:])
    smoothed = (np.vectorize(gelu)(moved) + array(shift)) * array(smooth)
    agree(F.fused_bias_act(x, bias, None, shift, smooth), smoothed)
    scales = torch.rand(4, dtype=torch.float64)
    whole = torch.randint(-9, 9, (3, 4), dtype=torch.int32)
    made = F.fused_bias_act(whole, None, scales, compute_dtype="fp32")
    assert made.dtype == torch.float32
    agree(made, np.vectorize(gelu)(whole.numpy() * scales.numpy()), 1e-5)  # float32
    small = F.fused_bias_act(x, bias, quant_scale=0.3, quant_max_bound=127, quant_min_bound=-127)
    assert small.dtype == torch.int8
    agree(small, np.rint(np.vectorize(gelu)(moved) * 127 * 0.3).clip(-127, 127))
    check_gradient(F.fused_bias_act, x, bias)


@formula("paddle.incubate.nn.functional.swiglu")
def check_swiglu() -> None:
    x, y = make(3, 4), make(3, 4)
    agree(F.swiglu(x, y), np.vectorize(silu)(array(x)) * array(y))
    agree(F.swiglu(x), np.vectorize(silu)(array(x)[:, :2]) * array(x)[:, 2:])
    check_gradient(F.swiglu, x, y)


# Norms


def normal(row: np.ndarray, epsilon: float) -> np.ndarray:
    return (row - row.mean()) / sqrt(((row - row.mean()) ** 2).mean() + epsilon)


@formula("paddle.incubate.nn.functional.fused_rms_norm")
def check_rms_norm() -> None:
    x, weight, offset, bias, residual = make(2, 3, 4), make(4), make(4), make(4), make(2, 3, 4)
    total = array(x) + array(bias) + array(residual)
    expected = np.empty(total.shape)
    for place in np.ndindex(2, 3):
        row = total[place]
        expected[place] = row / sqrt((row**2).mean() + 1e-5) * array(weight) + array(offset)
    made, summed = F.fused_rms_norm(x, weight, offset, 1e-5, 2, bias, residual)
    agree(made, expected)
    agree(summed, total)
    agree(F.fused_rms_norm(x, weight, offset, 1e-5, -1, bias, residual)[0], expected)
    wide, none = F.fused_rms_norm(x, make(12).detach().fill_(2.0), None, 0.0, 1)
    agree(wide, np.stack([2 * r / sqrt((r**2).mean()) for r in array(x)]))
    assert none.numel() == 0
    check_gradient(lambda x, w, b, r: F.fused_rms_norm(x, w, b, 1e-5, 2, None, r)[0], x, weight, offset, residual)
    small, _ = F.fused_rms_norm(x, weight, offset, 1e-5, 2, bias, residual, 0.2, 1, 127, -127)
    scaled = expected * 127 * 0.2
    agree(small, (np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).clip(-127, 127))
    with pytest.raises(ValueError, match="begin_norm_axis"):
        F.fused_rms_norm(x, weight, None, 1e-5, 3)


@formula("paddle.incubate.nn.functional.fast_rms_norm")
def check_fast_rms_norm() -> None:
    x, scale = make(2, 3, 4), make(4)
    made, inverse = F.fast_rms_norm(x, scale, 1e-3)
    rms = np.sqrt((array(x) ** 2).mean(-1) + 1e-3)
    agree(made, array(x) / rms[..., None] * array(scale))
    agree(inverse, 1 / rms, 1e-6)  # float32
    check_gradient(lambda x, s: F.fast_rms_norm(x, s)[0], x, scale)


@formula("paddle.incubate.nn.functional.fast_ln")
def check_fast_ln() -> None:
    x, scale, bias = make(3, 4), make(4), make(4)
    made, mean, inverse = F.fast_ln(x, scale, bias, 1e-3)
    agree(made, np.stack([normal(row, 1e-3) for row in array(x)]) * array(scale) + array(bias))
    agree(mean, array(x).mean(-1), 1e-6)  # float32, as the next
    agree(inverse, 1 / np.sqrt(array(x).var(-1) + 1e-3), 1e-6)
    check_gradient(lambda *parts: F.fast_ln(*parts)[0], x, scale, bias)


@formula("paddle.incubate.nn.functional.fused_bias_dropout_residual_layer_norm")
def check_bias_dropout_norm() -> None:
    x, residual, bias, scale, offset = make(2, 3, 4), make(2, 3, 4), make(4), make(4), make(4)
    total = array(residual) + array(x) + array(bias)
    expected = np.apply_along_axis(normal, -1, total, 1e-5) * array(scale) + array(offset)
    agree(F.fused_bias_dropout_residual_layer_norm(x, residual, bias, scale, offset, 0.0), expected)
    agree(F.fused_bias_dropout_residual_layer_norm(x, residual, bias, scale, offset, training=False), expected)
    less = array(residual) + 0.7 * (array(x) + array(bias))
    made = F.fused_bias_dropout_residual_layer_norm(
        x, residual, bias, None, None, 0.3, training=False, mode="downscale_in_infer"
    )
    agree(made, np.apply_along_axis(normal, -1, less, 1e-5))
    check_gradient(
        lambda *parts: F.fused_bias_dropout_residual_layer_norm(*parts, dropout_rate=0.0),
        x,
        residual,
        bias,
        scale,
        offset,
    )


@formula("paddle.incubate.nn.functional.fused_feedforward")
def check_feedforward() -> None:
    x, first, second = make(2, 3, 4), make(4, 5), make(5, 4)
    b1, b2, scale, offset = make(5), make(4), make(4), make(4)
    norms = (scale, offset, scale, offset)
    inner = (array(x) @ array(first) + array(b1)).clip(0) @ array(second) + array(b2)
    after = np.apply_along_axis(normal, -1, array(x) + inner, 1e-5) * array(scale) + array(offset)
    agree(F.fused_feedforward(x, first, second, b1, b2, *norms, 0.0, 0.0), after)
    start = np.apply_along_axis(normal, -1, array(x), 1e-5) * array(scale) + array(offset)
    inner = np.vectorize(gelu)(start @ array(first) + array(b1)) @ array(second) + array(b2)
    before = F.fused_feedforward(
        x, first, second, b1, b2, *norms, activation="gelu", pre_layer_norm=True, training=False, add_residual=False
    )
    agree(before, inner)
    check_gradient(lambda x, a, b: F.fused_feedforward(x, a, b, dropout1_rate=0.0, dropout2_rate=0.0), x, first, second)


# Eight-bit floats


def blocks(x: np.ndarray, high: int, power_of_two: bool) -> np.ndarray:
    """The scale of every element, block by block."""
    scales = np.empty(x.shape)
    for i in range(0, x.shape[0], high):
        for j in range(0, x.shape[1], 128):
            part = np.s_[i : i + high, j : j + 128]
            factor = 448 / np.abs(x[part]).max()
            scales[part] = 1 / (2 ** np.floor(np.log2(factor)) if power_of_two else factor)
    return scales


@formula("paddle.incubate.nn.functional.fp8.fp8_quant_blockwise")
def check_fp8_quantisation() -> None:
    x = torch.randn(130, 200)
    for method, high in (("1x128", 1), ("128x128", 128)):
        for power_of_two in (True, False):
            small, scale, turned, turned_scale = F.fp8.fp8_quant_blockwise(
                x, quant_method=method, using_pow2_scale=power_of_two, input_transpose=True
            )
            for q, s, plain in ((small, scale, x), (turned, turned_scale, x.T)):
                scales = blocks(plain.numpy(), high, power_of_two)
                assert q.dtype == torch.float8_e4m3fn
                agree(s.T, scales[::high, ::128], 1e-6)  # float32
                # Three bits after the point: half a step of a sixteenth, or of the smallest step.
                assert np.all(
                    np.abs(q.float().numpy() * scales - plain.numpy()) <= np.abs(plain.numpy()) / 16 + scales * 2**-9
                )
    only = F.fp8_quant_blockwise(x, input_transpose=True, return_transpose_only=True, output_scale_transpose=False)
    assert [tuple(part.shape) for part in only] == [(200, 130), (200, 2)]
    zeros, ones = F.fp8_quant_blockwise(torch.zeros(2, 3))
    assert zeros.float().abs().max() == 0
    assert ones.tolist() == [[1.0, 1.0]]


@formula("paddle.incubate.nn.functional.fp8.fp8_gemm_blockwise")
def check_fp8_product() -> None:
    a, b = torch.randn(3, 256), torch.randn(128, 256)
    small_a, scale_a = F.fp8_quant_blockwise(a, using_pow2_scale=False)
    small_b, scale_b = F.fp8_quant_blockwise(
        b, quant_method="128x128", output_scale_transpose=False, using_pow2_scale=False
    )
    wide_a = small_a.float().numpy() * np.repeat(scale_a.numpy().T, 128, 1)
    wide_b = small_b.float().numpy() * np.repeat(np.repeat(scale_b.numpy(), 128, 0), 128, 1)
    expected = wide_a.astype(float) @ wide_b.T.astype(float)
    made = F.fp8_gemm_blockwise(small_a, scale_a, small_b, scale_b, "float32", is_b_1d_scaled=False)
    agree(made, expected, 1e-4)  # float32 sums of 256 terms
    start = torch.ones(3, 128)
    F.fp8.fp8_gemm_blockwise(
        small_a, scale_a, small_b, scale_b, paddle.float32, start, accumulate=True, is_b_1d_scaled=False
    )
    agree(start, expected + 1, 1e-4)
    with pytest.raises(ValueError, match="bias"):
        F.fp8_gemm_blockwise(small_a, scale_a, small_b, scale_b, "float32", bias=torch.ones(128))


@formula("paddle.incubate.nn.functional.fused_act_dequant")
def check_fp8_decoding() -> None:
    small, scale = F.fp8_quant_blockwise(torch.randn(3, 200), output_scale_transpose=False)
    made = F.fused_act_dequant(small, scale)
    assert made.dtype == torch.bfloat16
    agree(made, small.float().numpy() * np.repeat(scale.numpy(), 128, 1)[:, :200])


@formula("paddle.incubate.nn.functional.fused_swiglu_weighted_bwd")
def check_swiglu_backward() -> None:
    x, grad, chance = torch.randn(2, 3, 8), torch.randn(2, 3, 4), torch.rand(2, 3, 1)
    dx, dchance, out = F.fused_swiglu_weighted_bwd(x, grad, chance)
    step = 1e-6

    def total(x: np.ndarray, chance: np.ndarray) -> np.ndarray:
        return np.vectorize(silu)(x[..., :4]) * x[..., 4:] * chance

    base, share = x.double().numpy(), chance.double().numpy()
    agree(out, total(base, share), 1e-5)  # float32, as the next
    agree(dchance, (total(base, np.ones_like(share)) * grad.numpy()).sum(-1, keepdims=True), 1e-5)
    for i in range(8):
        moved = base.copy()
        moved[..., i] += step
        agree(dx[..., i], ((total(moved, share) - total(base, share)) * grad.numpy()).sum(-1) / step, 1e-4)


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name: str) -> None:
    found: Any = paddle
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    assert callable(found)
    FORMULAS[name]()
