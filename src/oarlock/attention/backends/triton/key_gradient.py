"""The kernel of dK and dV: each key tile visits the row blocks that see it, over all query heads of its group.

dV = P^T dO and dK = scale * dS^T Q, with P and dS as in the kernel of dQ. A key tile belongs to one program, so nothing
is added up across programs.

Legend: [N] keys of the tile, [M] rows of a block; P and dS are computed transposed, [N, M].
"""

# Triton's language only looks like Python; type checkers know neither its tensors nor calls of kernels.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from oarlock.attention.backends.triton.mask import (
    GENERAL,
    any_nan,
    finite_part,
    hidden_rows,
    is_wanted,
    keeps,
    load_rows,
    next_item,
    num_wanted,
    place_of,
    report_nan,
    row_hash,
    sees,
    store_rows,
)


@triton.jit
def _visit(
    dk,
    dv,
    poison,
    k,
    v,
    keys,
    tile,
    wanted,
    batch,
    key_head,
    q_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    columns_ptr,
    lists_ptr,
    counts_ptr,
    q_stride_b,
    q_stride_s,
    q_stride_h,
    q_stride_d,
    do_stride_b,
    do_stride_s,
    do_stride_h,
    do_stride_d,
    num_key_heads,
    group,
    num_tiles,
    num_blocks,
    columns_per_batch,
    lists_per_batch,
    heads_per_mask,
    seqlen_q,
    seqlen_k,
    scale_log2,
    seed_low,
    seed_high,
    threshold,
    dropout_scale,
    MASKED: tl.constexpr,
    CAREFUL: tl.constexpr,
    CAUSAL: tl.constexpr,
    NUM_BOUNDS: tl.constexpr,
    DROPOUT: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Adds P^T dO and dS^T Q of the partial (MASKED) or full row blocks of the tile, over the heads of the group.

    CAREFUL: a NaN in Q or dO counts as 0 in these products; keys that its row sees have it in dS, and ``poison`` counts
    those of dO.
    """
    for member in range(group):
        head = key_head * group + member
        plane = batch * lists_per_batch + head // heads_per_mask
        line = (plane * num_tiles + tile).to(tl.int64)
        if MASKED:
            num_listed = tl.load(counts_ptr + 2 * line) * wanted
            next_ptr, step = lists_ptr + line * num_blocks, 1
            mask = (batch * columns_per_batch + head // heads_per_mask).to(tl.int64)
            mask_ptr = columns_ptr + mask * NUM_BOUNDS * seqlen_k
            a0, a1, b0, b1 = hidden_rows(mask_ptr, keys, seqlen_q, seqlen_k, CAUSAL, NUM_BOUNDS)
        else:
            num_listed = tl.load(counts_ptr + 2 * line + 1) * wanted
            next_ptr, step = lists_ptr + line * num_blocks + (num_blocks - 1), -1
        b64, h64 = batch.to(tl.int64), head.to(tl.int64)
        q_head, do_head = q_ptr + b64 * q_stride_b + h64 * q_stride_h, do_ptr + b64 * do_stride_b + h64 * do_stride_h
        first_place = (b64 * num_key_heads * group + h64) * seqlen_q

        block = tl.load(next_ptr, mask=num_listed > 0, other=0)
        for i in range(num_listed):
            rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
            # One block ahead, so that the loads of rows need not wait for their index.
            block = tl.load(next_ptr + (i + 1) * step, mask=i + 1 < num_listed, other=0)
            inside = rows < seqlen_q
            q = load_rows(q_head, rows, seqlen_q, q_stride_s, q_stride_d, DIM, BLOCK_D, False)
            do = load_rows(do_head, rows, seqlen_q, do_stride_s, do_stride_d, VALUE_DIM, BLOCK_DV, False)
            lse_log2 = tl.load(lse_ptr + first_place + rows, mask=inside, other=float("inf")) * 1.4426950408889634
            delta = tl.load(delta_ptr + first_place + rows, mask=inside, other=0.0)
            scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale_log2 - lse_log2[None, :]
            if MASKED:
                visible = sees(rows[None, :], a0[:, None], a1[:, None], b0[:, None], b1[:, None])
                scores = tl.where(visible, scores, float("-inf"))
            p = tl.exp2(scores)
            dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
            kept = p
            if DROPOUT:
                hashes = row_hash(seed_low, seed_high, batch, head, rows)
                factor = tl.where(keeps(hashes[None, :], keys[:, None], threshold), dropout_scale, 0.0)
                kept, dp = p * factor, dp * factor
            ds = p * (dp - delta[None, :])
            if MASKED:
                ds = tl.where(visible, ds, 0.0)
            if CAREFUL:
                q, _ = finite_part(q)
                do, num_bad = finite_part(do)
                poison += tl.sum(tl.where(visible, num_bad[None, :], 0), 1)
            dv = tl.dot(kept.to(do.dtype), do, dv, input_precision=PRECISION)
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv, poison


@triton.jit(do_not_specialize=GENERAL)
def dkv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    columns_ptr,
    lists_ptr,
    counts_ptr,
    order_ptr,
    state_ptr,
    q_stride_b,
    q_stride_s,
    q_stride_h,
    q_stride_d,
    k_stride_b,
    k_stride_s,
    k_stride_h,
    k_stride_d,
    v_stride_b,
    v_stride_s,
    v_stride_h,
    v_stride_d,
    do_stride_b,
    do_stride_s,
    do_stride_h,
    do_stride_d,
    num_items,
    num_key_heads,
    group,
    section,
    num_tiles,
    num_blocks,
    columns_per_batch,
    lists_per_batch,
    heads_per_mask,
    orders_per_batch,
    key_heads_per_order,
    seqlen_q,
    seqlen_k,
    scale,
    scale_log2,
    seed_low,
    seed_high,
    threshold,
    dropout_scale,
    quota,
    CAUSAL: tl.constexpr,
    NUM_BOUNDS: tl.constexpr,
    DROPOUT: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr,
    REPAIR: tl.constexpr,
):
    """dK [B, Sk, Hk, D] and dV [B, Sk, Hk, Dv] of all items that this program takes."""
    taken = 0
    end = num_wanted(state_ptr, num_items, REPAIR)
    item = next_item(state_ptr, REPAIR)
    while item < end:
        wanted = is_wanted(state_ptr, item, REPAIR)
        batch, key_head, rank = place_of(item, section, num_tiles, num_key_heads)
        order = batch * orders_per_batch + key_head // key_heads_per_order
        tile = tl.load(order_ptr + order * num_tiles + rank)
        keys = tile * BLOCK_K + tl.arange(0, BLOCK_K)
        b64, hk64 = batch.to(tl.int64), key_head.to(tl.int64)
        k_head, v_head = k_ptr + b64 * k_stride_b + hk64 * k_stride_h, v_ptr + b64 * v_stride_b + hk64 * v_stride_h
        k = load_rows(k_head, keys, seqlen_k, k_stride_s, k_stride_d, DIM, BLOCK_D, False)
        v = load_rows(v_head, keys, seqlen_k, v_stride_s, v_stride_d, VALUE_DIM, BLOCK_DV, False)

        dk = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
        dv = tl.zeros([BLOCK_K, BLOCK_DV], tl.float32)
        poison = tl.zeros([BLOCK_K], tl.int32)
        dk, dv, poison = _visit(
            dk, dv, poison, k, v, keys, tile, wanted, batch, key_head, q_ptr, do_ptr, lse_ptr, delta_ptr,
            columns_ptr, lists_ptr, counts_ptr, q_stride_b, q_stride_s, q_stride_h, q_stride_d,
            do_stride_b, do_stride_s, do_stride_h, do_stride_d,
            num_key_heads, group, num_tiles, num_blocks, columns_per_batch, lists_per_batch, heads_per_mask,
            seqlen_q, seqlen_k, scale_log2, seed_low, seed_high, threshold, dropout_scale,
            True, REPAIR, CAUSAL, NUM_BOUNDS, DROPOUT, BLOCK_Q, DIM, VALUE_DIM, BLOCK_D, BLOCK_DV, PRECISION,
        )  # fmt: skip
        dk, dv, poison = _visit(
            dk, dv, poison, k, v, keys, tile, wanted, batch, key_head, q_ptr, do_ptr, lse_ptr, delta_ptr,
            columns_ptr, lists_ptr, counts_ptr, q_stride_b, q_stride_s, q_stride_h, q_stride_d,
            do_stride_b, do_stride_s, do_stride_h, do_stride_d,
            num_key_heads, group, num_tiles, num_blocks, columns_per_batch, lists_per_batch, heads_per_mask,
            seqlen_q, seqlen_k, scale_log2, seed_low, seed_high, threshold, dropout_scale,
            False, False, CAUSAL, NUM_BOUNDS, DROPOUT, BLOCK_Q, DIM, VALUE_DIM, BLOCK_D, BLOCK_DV, PRECISION,
        )  # fmt: skip
        if REPAIR:
            dv = tl.where((poison > 0)[:, None], float("nan"), dv)
        else:
            report_nan(state_ptr, item, any_nan(dk) | any_nan(dv))
        key_end = seqlen_k * wanted
        dk_head = dk_ptr + (b64 * seqlen_k * num_key_heads + hk64) * DIM
        dv_head = dv_ptr + (b64 * seqlen_k * num_key_heads + hk64) * VALUE_DIM
        store_rows(dk_head, dk * scale, keys, key_end, num_key_heads * DIM, DIM, BLOCK_D)
        store_rows(dv_head, dv, keys, key_end, num_key_heads * VALUE_DIM, VALUE_DIM, BLOCK_DV)

        taken += 1
        item = end
        if taken < quota:
            item = next_item(state_ptr, REPAIR)
