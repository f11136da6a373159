"""Attention that Paddle has on GPUs only, against sums over pairs in float64.

Every check registers the API that it covers: the coverage page reads the names from the decorators.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import oarlock.paddle as paddle
import oarlock.paddle.incubate.nn.functional as I
import oarlock.paddle.nn.functional as F

FORMULAS: dict[str, Callable[[], None]] = {}


def formula(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a check of the API `name`."""

    def register(check: Callable[[], None]) -> Callable[[], None]:
        FORMULAS[name] = check
        return check

    return register


def make(*shape: int) -> Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def agree(found: Tensor, expected: Any, tolerance: float = 1e-10) -> None:
    """Equal numbers; the blocked softmax sums in another order."""
    np.testing.assert_allclose(found.detach().double().numpy(), np.asarray(expected), rtol=tolerance, atol=tolerance)


def attend(
    q: Tensor, k: Tensor, v: Tensor, sees: Callable[..., bool], scale: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(out [B, S, H, D], weights [B, H, S, Sk], log-sum-exp [B, H, S]) row by row; `sees(b, h, row, key)`."""
    query, key, value = (x.detach().numpy() for x in (q, k, v))
    batch, length, heads, width = query.shape
    keys, group = key.shape[1], heads // key.shape[2]
    scale = width**-0.5 if scale is None else scale
    out, weights = np.zeros((batch, length, heads, value.shape[3])), np.zeros((batch, heads, length, keys))
    lse = np.full((batch, heads, length), -np.inf)
    for b, h, i in np.ndindex(batch, heads, length):
        seen = [j for j in range(keys) if sees(b, h, i, j)]
        if not seen:
            continue
        scores = np.array([query[b, i, h] @ key[b, j, h // group] * scale for j in seen])
        lse[b, h, i] = np.log(np.exp(scores).sum())
        weights[b, h, i, seen] = np.exp(scores - lse[b, h, i])
        out[b, i, h] = weights[b, h, i] @ value[b, :, h // group]
    return out, weights, lse


def same_gradient(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    assert torch.autograd.gradcheck(function, inputs, eps=1e-6, atol=1e-6)


@formula("paddle.nn.functional.flash_attention.flash_attention")
def check_flash() -> None:
    q, k, v = make(2, 3, 4, 2), make(2, 5, 2, 2), make(2, 5, 2, 2)
    for causal in (False, True):
        out, weights, _ = attend(q, k, v, lambda b, h, i, j, c=causal: not c or j <= i + 2)
        found, softmax = F.flash_attention.flash_attention(q, k, v, causal=causal, return_softmax=True)
        agree(found, out)
        agree(softmax, weights)
        agree(F.flash_attention.flash_attention(q, k, v, 0.5, causal, training=False)[0], out)
    out, *_ = attend(q, k, v, lambda *_: True, 0.3)
    agree(F.flash_attention.flash_attention(q, k, v, softmax_scale=0.3)[0], out)
    same_gradient(lambda *parts: F.flash_attention.flash_attention(*parts, causal=True)[0], q, k, v)


@formula("paddle.nn.functional.flash_attn_qkvpacked")
def check_packed() -> None:
    qkv = make(2, 3, 4, 2, 2)  # two groups of queries, two heads of keys
    q = qkv[:, :, :2].reshape(2, 3, 4, 2)
    out, *_ = attend(q, qkv[:, :, 2], qkv[:, :, 3], lambda b, h, i, j: j <= i)
    agree(F.flash_attn_qkvpacked(qkv, causal=True)[0], out)
    same_gradient(lambda x: F.flash_attn_qkvpacked(x)[0], qkv)


def documents(q: Tensor, k: Tensor, v: Tensor, cu_q: list[int], cu_k: list[int], causal: bool, scale: float) -> Any:
    parts = []
    for n in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
        shift = (cu_k[n + 1] - cu_k[n]) - (cu_q[n + 1] - cu_q[n])
        sees = lambda b, h, i, j, s=shift: not causal or j <= i + s  # noqa: E731
        parts.append(attend(q[None, rows], k[None, keys], v[None, keys], sees, scale))
    return np.concatenate([p[0][0] for p in parts]), np.concatenate([p[2][0] for p in parts], 1)


@formula("paddle.nn.functional.flash_attention.flash_attn_unpadded")
def check_unpadded() -> None:
    q, k, v = make(5, 2, 2), make(7, 2, 2), make(7, 2, 2)
    cu_q, cu_k = [0, 2, 5], [0, 4, 7]
    for causal in (False, True):
        out, _ = documents(q, k, v, cu_q, cu_k, causal, 0.4)
        bounds = torch.tensor(cu_q, dtype=torch.int32), torch.tensor(cu_k, dtype=torch.int32)
        found, none = F.flash_attention.flash_attn_unpadded(q, k, v, *bounds, 3, 4, 0.4, causal=causal)
        agree(found, out)
        assert none is None
    same_gradient(lambda *p: F.flash_attention.flash_attn_unpadded(*p, *bounds, 3, 4, 0.4)[0], q, k, v)
    with pytest.raises(ValueError, match="return_softmax"):
        F.flash_attention.flash_attn_unpadded(q, k, v, *bounds, 3, 4, 0.4, return_softmax=True)


@formula("paddle.nn.functional.flash_attention_v3_varlen")
def check_varlen() -> None:
    q, k, v = make(5, 2, 2), make(5, 1, 2), make(5, 1, 2)
    cu = torch.tensor([0, 2, 5], dtype=torch.int32)
    out, lse = documents(q, k, v, [0, 2, 5], [0, 2, 5], True, 2**-0.5)
    found, found_lse = F.flash_attention.flash_attn_varlen_func(q, k, v, cu, cu, 3, 3, causal=True)
    agree(found, out)
    agree(found_lse, lse)
    narrow, _ = F.flash_attention_v3_varlen(q, k, v, cu, cu, 3, 3, causal=True, window_size=(0, 0))
    agree(narrow, v.detach().expand(5, 2, 2).numpy())  # each row sees itself only
    with pytest.raises(ValueError, match="softcap"):
        F.flash_attention_v3_varlen(q, k, v, cu, cu, 3, 3, softcap=1.0)


@formula("paddle.nn.functional.flash_attn_varlen_qkvpacked")
def check_varlen_packed() -> None:
    cu = torch.tensor([0, 2, 5], dtype=torch.int32)
    padded = make(6, 3, 2, 2)  # two documents of up to 3 rows
    rows = [0, 1, 3, 4, 5]
    q, k, v = (padded[rows][:, i] for i in range(3))
    out, _ = documents(q, k, v, [0, 2, 5], [0, 2, 5], True, 0.5)
    found, _ = F.flash_attn_varlen_qkvpacked(padded, cu, cu, 3, 3, 0.5, causal=True)
    agree(found[rows], out)
    agree(found[2], np.zeros((2, 2)))
    tight, _ = F.flash_attn_varlen_qkvpacked(padded[rows], cu, cu, 3, 3, 0.5, causal=True, varlen_padded=False)
    agree(tight, out)
    same_gradient(lambda x: F.flash_attn_varlen_qkvpacked(x, cu, cu, 3, 3, 0.5)[0], padded)


@formula("paddle.nn.functional.flashmask_attention")
def check_flashmask() -> None:
    q, k, v = make(2, 6, 2, 2), make(2, 6, 1, 2), make(2, 6, 1, 2)
    start = torch.tensor([[2, 6, 5, 6, 6, 6], [6, 3, 4, 6, 5, 6]], dtype=torch.int32)[:, None, :, None]
    end = torch.tensor([[4, 6, 6, 6, 6, 6], [6, 5, 6, 6, 6, 6]], dtype=torch.int32)[:, None, :, None]
    upper = torch.tensor([[0, 0, 1, 2, 3, 4], [0, 1, 2, 0, 4, 5]], dtype=torch.int32)[:, None, :, None]
    zero = torch.zeros_like(upper)

    def hidden(b: int, i: int, j: int) -> dict[str, bool]:
        s, e, u = (int(t[b, 0, j, 0]) for t in (start, end, upper))
        return {"from": i >= s, "band": s <= i < e, "above": i < u}

    cases: list[tuple[bool, list[Tensor], Callable[..., bool]]] = [
        (True, [start], lambda b, h, i, j: j <= i and not hidden(b, i, j)["from"]),
        (True, [start, end], lambda b, h, i, j: j <= i and not hidden(b, i, j)["band"]),
        (False, [start, upper], lambda b, h, i, j: not hidden(b, i, j)["from"] and not hidden(b, i, j)["above"]),
        (
            False,
            [start, end, zero, upper],
            lambda b, h, i, j: not hidden(b, i, j)["band"] and not hidden(b, i, j)["above"],
        ),
    ]
    for causal, columns, sees in cases:
        rows = torch.cat(columns, -1)
        out, _, lse = attend(q, k, v, sees)
        found, found_lse = F.flashmask_attention(q, k, v, rows, causal=causal, return_softmax_lse=True)
        agree(found, out)
        agree(found_lse, lse)
        per_head = rows.expand(-1, 2, -1, -1).contiguous()
        agree(F.flashmask_attention(q, k, v, startend_row_indices=per_head, causal=causal), out)
        same_gradient(lambda *p, r=rows, c=causal: F.flashmask_attention(*p, r, causal=c), q, k, v)
    out, *_ = attend(q, k, v, lambda b, h, i, j: i - 2 <= j <= i + 1)
    agree(F.flashmask_attention(q, k, v, window_size=(2, 1)), out)
    out, *_ = attend(q, k, v, lambda b, h, i, j: i - 2 <= j <= i)
    agree(F.flashmask_attention(q, k, v, causal=True, window_size=2), out)
    agree(F.flashmask_attention(q, k, v, causal=True), attend(q, k, v, lambda b, h, i, j: j <= i)[0])


@formula("paddle.nn.functional.flash_attention.calc_reduced_attention_scores")
def check_reduced_scores() -> None:
    q, k = make(2, 3, 4, 2).detach(), make(2, 5, 2, 2).detach()
    _, weights, lse = attend(q, k, k, lambda *_: True)
    padded = torch.from_numpy(np.pad(lse, ((0, 0), (0, 0), (0, 5))))
    found = F.flash_attention.calc_reduced_attention_scores(q, k, padded)
    assert found.dtype == torch.float32
    agree(found, weights.sum(2, keepdims=True), 1e-6)


@formula("paddle.nn.functional.sparse_attention")
def check_sparse() -> None:
    q, k, v = make(1, 2, 4, 3), make(1, 2, 4, 3), make(1, 2, 4, 3)
    pairs = [[[0, 1], [2], [], [1, 3]], [[0], [0, 1], [1, 2], [2, 3]]]
    offset = torch.tensor([[np.cumsum([0, *map(len, head)]).tolist() for head in pairs]], dtype=torch.int32)
    longest = max(sum(map(len, head)) for head in pairs)
    flat = [[j for row in head for j in row] for head in pairs]
    columns = torch.tensor([[row + [0] * (longest - len(row)) for row in flat]], dtype=torch.int32)
    padding, mask = torch.tensor([[1.0, 1.0, 1.0, 0.0]]), torch.ones(4, 4)
    mask[3, 1] = 0
    swapped = [x.transpose(1, 2) for x in (q, k, v)]
    out, *_ = attend(*swapped, lambda b, h, i, j: j in pairs[h][i])
    agree(F.sparse_attention(q, k, v, offset, columns).transpose(1, 2), out)
    out, *_ = attend(*swapped, lambda b, h, i, j: j in pairs[h][i] and j != 3 and (i, j) != (3, 1))
    agree(F.sparse_attention(q, k, v, offset, columns, padding, mask).transpose(1, 2), out)
    same_gradient(lambda *p: F.sparse_attention(*p, offset, columns), q, k, v)


@formula("paddle.incubate.nn.functional.variable_length_memory_efficient_attention")
def check_variable_length() -> None:
    q, k, v = make(2, 2, 3, 2), make(2, 1, 5, 2), make(2, 1, 5, 2)
    rows, keys = torch.tensor([[3], [2]], dtype=torch.int32), torch.tensor([[4], [2]], dtype=torch.int32)
    swapped = [x.transpose(1, 2) for x in (q, k, v)]
    limits, lengths = [4, 2], [3, 2]
    out, *_ = attend(*swapped, lambda b, h, i, j: i < lengths[b] and j < limits[b])
    agree(I.variable_length_memory_efficient_attention(q, k, v, rows, keys).transpose(1, 2), out)
    out, *_ = attend(*swapped, lambda b, h, i, j: i < lengths[b] and j < limits[b] and j <= i, 0.7)
    found = I.variable_length_memory_efficient_attention(q, k, v, rows, keys, scale=0.7, causal=True)
    agree(found.transpose(1, 2), out)
    same_gradient(lambda *p: I.variable_length_memory_efficient_attention(*p, rows, keys), q, k, v)


@formula("paddle.incubate.nn.memory_efficient_attention.memory_efficient_attention")
def check_memory_efficient() -> None:
    function = paddle.incubate.nn.memory_efficient_attention.memory_efficient_attention
    q, k, v = make(2, 3, 2, 2), make(2, 4, 2, 2), make(2, 4, 2, 2)
    agree(function(q, k, v), attend(q, k, v, lambda *_: True)[0])
    seen = torch.tensor([[True, False, True, True]] * 3)
    agree(function(q, k, v, seen, scale=0.2), attend(q, k, v, lambda b, h, i, j: j != 1, 0.2)[0])
    same_gradient(function, q, k, v)


@formula("paddle.incubate.nn.functional.fused_multi_head_attention")
def check_layer() -> None:
    x, qkv, out = make(2, 3, 4), make(3, 2, 2, 4), make(4, 4)
    qkv_bias, bias = make(3, 2, 2), make(4)
    array = [t.detach().numpy() for t in (x, qkv, out, qkv_bias, bias)]
    packed = np.einsum("bse,thde->tbshd", array[0], array[1]) + array[3][:, None, None]
    q, k, v = (torch.from_numpy(part) for part in packed)
    seen, *_ = attend(q, k, v, lambda b, h, i, j: j <= i)
    total = array[0] + seen.reshape(2, 3, 4) @ array[2] + array[4]
    centred = total - total.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    found = I.fused_multi_head_attention(
        x, qkv, out, qkv_bias=qkv_bias, linear_bias=bias, attn_mask=mask, dropout_rate=0.0, attn_dropout_rate=0.0
    )
    agree(found, expected)
    flat = qkv.permute(3, 0, 1, 2).reshape(4, 12)
    again = I.fused_multi_head_attention(
        x,
        flat,
        out,
        qkv_bias=qkv_bias.reshape(12),
        linear_bias=bias,
        attn_mask=mask,
        training=False,
        num_heads=2,
        transpose_qkv_wb=True,
    )
    agree(again, expected)
    cache = torch.zeros(2, 2, 2, 0, 2, dtype=torch.float64)
    _, grown = I.fused_multi_head_attention(x, qkv, out, qkv_bias=qkv_bias, cache_kv=cache, training=False)
    agree(grown, packed[1:].transpose(0, 1, 3, 2, 4))


@formula("paddle.incubate.nn.functional.masked_multihead_attention")
def check_decoding() -> None:
    heads, key_heads, width, longest = 4, 2, 3, 6
    x, cache = make(2, (heads + 2 * key_heads) * width).detach(), make(2, 2, key_heads, longest, width).detach()
    bias, mask = make(heads + 2 * key_heads, width).detach(), make(2, 1, 1, 4).detach()
    parts = (x.reshape(2, -1, width) + bias).numpy()
    for lengths in (None, [1, 4]):
        grown = cache.clone()
        options: dict[str, Any] = {"src_mask": mask} if lengths is None else {}
        if lengths is not None:
            options = {"sequence_lengths": torch.tensor(lengths, dtype=torch.int32)[:, None]}
        found, same = I.masked_multihead_attention(x, grown, bias, **options)
        assert same is grown
        for b in range(2):
            at = 3 if lengths is None else lengths[b]
            for h in range(heads):
                g = h // (heads // key_heads)
                keys = [*cache[0, b, g, :at].numpy(), parts[b, heads + g]]
                values = [*cache[1, b, g, :at].numpy(), parts[b, heads + key_heads + g]]
                scores = np.array([parts[b, h] @ key for key in keys]) / np.sqrt(width)
                scores = scores + mask[b, 0, 0].numpy() if lengths is None else scores
                powers = np.exp(scores)
                agree(found[b, h * width : (h + 1) * width], powers @ np.array(values) / powers.sum())
                agree(grown[0, b, g, at], keys[-1])
                agree(grown[1, b, g, at], values[-1])
    small, _ = I.masked_multihead_attention(x, cache.clone(), bias, mask, out_scale=0.3, quant_round_type=0)
    wide, _ = I.masked_multihead_attention(x, cache.clone(), bias, mask)
    assert small.dtype == torch.int8
    agree(small, np.rint(wide.numpy() * 127 * 0.3).clip(-127, 127))
    with pytest.raises(ValueError, match="rotary_tensor"):
        I.masked_multihead_attention(x, cache, rotary_tensor=x)


@formula("paddle.incubate.nn.functional.blha_get_max_len")
def check_longest() -> None:
    encoder, decoder = torch.tensor([3, 8, 5], dtype=torch.int32), torch.tensor([1, 0, 9], dtype=torch.int32)
    assert [int(n) for n in I.blha_get_max_len(encoder, decoder, torch.ones(2))] == [8, 1]


@formula("paddle.incubate.softmax_mask_fuse_upper_triangle")
def check_triangle() -> None:
    x = make(1, 2, 4, 4)
    expected = np.zeros(x.shape)
    for b, h, i in np.ndindex(1, 2, 4):
        powers = np.exp(x.detach().numpy()[b, h, i, : i + 1])
        expected[b, h, i, : i + 1] = powers / powers.sum()
    agree(paddle.incubate.softmax_mask_fuse_upper_triangle(x), expected)
    same_gradient(paddle.incubate.softmax_mask_fuse_upper_triangle, x)


@formula("paddle.nn.functional.margin_cross_entropy")
def check_margin() -> None:
    logits = torch.tanh(make(3, 4)).detach().requires_grad_()
    label = torch.tensor([0, 3, 1])
    moved = logits.detach().numpy().copy()
    for n, y in enumerate(label.tolist()):
        moved[n, y] = np.cos(1.2 * np.arccos(moved[n, y]) + 0.3) - 0.1
    powers = np.exp(moved * 8.0)
    softmax = powers / powers.sum(1, keepdims=True)
    losses = -np.log(softmax[np.arange(3), label.numpy()])[:, None]
    found, found_softmax = F.margin_cross_entropy(
        logits, label, 1.2, 0.3, 0.1, 8.0, return_softmax=True, reduction=None
    )
    agree(found, losses)
    agree(found_softmax, softmax)
    agree(F.margin_cross_entropy(logits, label[:, None], 1.2, 0.3, 0.1, 8.0), losses.mean())
    agree(F.margin_cross_entropy(logits, label, 1.2, 0.3, 0.1, 8.0, reduction="sum"), losses.sum())
    same_gradient(lambda x: F.margin_cross_entropy(x, label, 1.2, 0.3, 0.1, 8.0), logits)


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name: str) -> None:
    found: Any = paddle
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    assert callable(found)
    FORMULAS[name]()
