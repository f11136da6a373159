"""The kernels of rowsum(dO * O) and of dQ: each row tile visits the key blocks that it sees, as in the forward.

P = exp(scale * Q K^T - lse), dS = P * (dO V^T - delta) and dQ = scale * dS K, with delta = rowsum(dO * O) - dlse.

Legend: [M] rows of the tile, [N] keys of a block.
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


@triton.jit(do_not_specialize=GENERAL)
def delta_kernel(
    out_ptr,
    do_ptr,
    grad_lse_ptr,
    delta_ptr,
    out_stride_b,
    out_stride_s,
    out_stride_h,
    out_stride_d,
    do_stride_b,
    do_stride_s,
    do_stride_h,
    do_stride_d,
    seqlen_q,
    num_heads,
    num_tiles,
    HAS_GRAD_LSE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """delta [B, Hq, Sq]; one program per row tile and head."""
    tile, head_of_all = tl.program_id(0) % num_tiles, tl.program_id(0) // num_tiles
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    batch, head = (head_of_all // num_heads).to(tl.int64), (head_of_all % num_heads).to(tl.int64)
    out_head = out_ptr + batch * out_stride_b + head * out_stride_h
    do_head = do_ptr + batch * do_stride_b + head * do_stride_h
    out = load_rows(out_head, rows, seqlen_q, out_stride_s, out_stride_d, VALUE_DIM, BLOCK_DV, False)
    do = load_rows(do_head, rows, seqlen_q, do_stride_s, do_stride_d, VALUE_DIM, BLOCK_DV, False)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    places, inside = head_of_all.to(tl.int64) * seqlen_q + rows, rows < seqlen_q
    if HAS_GRAD_LSE:
        delta -= tl.load(grad_lse_ptr + places, mask=inside, other=0.0)
    tl.store(delta_ptr + places, delta, mask=inside)


@triton.jit
def _visit(
    dq,
    q,
    do,
    lse_log2,
    delta,
    rows,
    hashes,
    k_ptr,
    v_ptr,
    k_stride_s,
    k_stride_d,
    v_stride_s,
    v_stride_d,
    columns_ptr,
    blocks_ptr,
    num_blocks,
    seqlen_q,
    seqlen_k,
    scale_log2,
    threshold,
    dropout_scale,
    STEP: tl.constexpr,
    MASKED: tl.constexpr,
    CAREFUL: tl.constexpr,
    CAUSAL: tl.constexpr,
    NUM_BOUNDS: tl.constexpr,
    DROPOUT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Adds dS K of the blocks of a list; its entries are STEP apart.

    CAREFUL: a NaN in a key counts as 0 in dS K; the rows that see it have it in dS.
    """
    block = tl.load(blocks_ptr, mask=num_blocks > 0, other=0)
    for i in range(num_blocks):
        keys = block * BLOCK_K + tl.arange(0, BLOCK_K)
        block = tl.load(blocks_ptr + (i + 1) * STEP, mask=i + 1 < num_blocks, other=0)
        k = load_rows(k_ptr, keys, seqlen_k, k_stride_s, k_stride_d, DIM, BLOCK_D, not MASKED)
        v = load_rows(v_ptr, keys, seqlen_k, v_stride_s, v_stride_d, VALUE_DIM, BLOCK_DV, not MASKED)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2 - lse_log2[:, None]
        if MASKED:
            a0, a1, b0, b1 = hidden_rows(columns_ptr, keys, seqlen_q, seqlen_k, CAUSAL, NUM_BOUNDS)
            visible = sees(rows[:, None], a0[None, :], a1[None, :], b0[None, :], b1[None, :])
            scores = tl.where(visible, scores, float("-inf"))
        p = tl.exp2(scores)
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        if DROPOUT:
            dp = tl.where(keeps(hashes[:, None], keys[None, :], threshold), dp * dropout_scale, 0.0)
        ds = p * (dp - delta[:, None])
        if MASKED:
            ds = tl.where(visible, ds, 0.0)
        if CAREFUL:
            k, _ = finite_part(k)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=GENERAL)
def dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
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
    num_heads,
    group,
    section,
    num_tiles,
    num_blocks,
    columns_per_batch,
    lists_per_batch,
    heads_per_mask,
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
    """dQ [B, Sq, Hq, D] of all items that this program takes; the queue is that of the forward."""
    taken = 0
    end = num_wanted(state_ptr, num_items, REPAIR)
    item = next_item(state_ptr, REPAIR)
    while item < end:
        wanted = is_wanted(state_ptr, item, REPAIR)
        batch, head, rank = place_of(item, section, num_tiles, num_heads)
        plane = batch * lists_per_batch + head // heads_per_mask
        tile = tl.load(order_ptr + plane * num_tiles + rank)
        line = (plane * num_tiles + tile).to(tl.int64)
        num_partial, num_full = tl.load(counts_ptr + 2 * line) * wanted, tl.load(counts_ptr + 2 * line + 1) * wanted
        blocks_ptr = lists_ptr + line * num_blocks
        mask = (batch * columns_per_batch + head // heads_per_mask).to(tl.int64)
        mask_ptr = columns_ptr + mask * NUM_BOUNDS * seqlen_k

        rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
        b64, h64, hk64 = batch.to(tl.int64), head.to(tl.int64), (head // group).to(tl.int64)
        k_head, v_head = k_ptr + b64 * k_stride_b + hk64 * k_stride_h, v_ptr + b64 * v_stride_b + hk64 * v_stride_h
        q_head, do_head = q_ptr + b64 * q_stride_b + h64 * q_stride_h, do_ptr + b64 * do_stride_b + h64 * do_stride_h
        q = load_rows(q_head, rows, seqlen_q, q_stride_s, q_stride_d, DIM, BLOCK_D, False)
        do = load_rows(do_head, rows, seqlen_q, do_stride_s, do_stride_d, VALUE_DIM, BLOCK_DV, False)
        places, inside = (b64 * num_heads + h64) * seqlen_q + rows, rows < seqlen_q
        lse_log2 = tl.load(lse_ptr + places, mask=inside, other=float("inf")) * 1.4426950408889634
        delta = tl.load(delta_ptr + places, mask=inside, other=0.0)
        hashes = row_hash(seed_low, seed_high, batch, head, rows) if DROPOUT else rows

        dq = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
        dq = _visit(
            dq, q, do, lse_log2, delta, rows, hashes,
            k_head, v_head, k_stride_s, k_stride_d, v_stride_s, v_stride_d, mask_ptr,
            blocks_ptr, num_partial, seqlen_q, seqlen_k, scale_log2, threshold, dropout_scale,
            1, True, REPAIR, CAUSAL, NUM_BOUNDS, DROPOUT, BLOCK_K, DIM, VALUE_DIM, BLOCK_D, BLOCK_DV, PRECISION,
        )  # fmt: skip
        dq = _visit(
            dq, q, do, lse_log2, delta, rows, hashes,
            k_head, v_head, k_stride_s, k_stride_d, v_stride_s, v_stride_d, mask_ptr,
            blocks_ptr + num_blocks - 1, num_full, seqlen_q, seqlen_k, scale_log2, threshold, dropout_scale,
            -1, False, False, CAUSAL, NUM_BOUNDS, DROPOUT, BLOCK_K, DIM, VALUE_DIM, BLOCK_D, BLOCK_DV, PRECISION,
        )  # fmt: skip
        dq_head = dq_ptr + (b64 * seqlen_q * num_heads + h64) * DIM
        if not REPAIR:
            report_nan(state_ptr, item, any_nan(dq))
        store_rows(dq_head, dq * scale, rows, seqlen_q * wanted, num_heads * DIM, DIM, BLOCK_D)

        taken += 1
        item = end
        if taken < quota:
            item = next_item(state_ptr, REPAIR)
