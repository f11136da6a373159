"""The forward kernel: online softmax over the key blocks that a row tile sees.

The work items are the row tiles of all heads. Each program takes the next item from a counter in device memory until
none is left, so that programs with short items take more of them; the longest come first. Nothing is accumulated across
programs: the result does not depend on who computes what.

Legend: [M] rows of the tile, [N] keys of a block, D and Dv head dims padded to powers of two.
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
    acc,
    total,
    top,
    poison,
    q,
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
    """Adds the blocks of a list to the running sums; its entries are STEP apart.

    CAREFUL: a NaN in a value must not reach rows that do not see it (0 * NaN is NaN), so such values count as 0, and
    ``poison`` counts them for the rows that see them.
    """
    block = tl.load(blocks_ptr, mask=num_blocks > 0, other=0)
    for i in range(num_blocks):
        keys = block * BLOCK_K + tl.arange(0, BLOCK_K)
        # One block ahead, so that the loads of keys and values need not wait for their index.
        block = tl.load(blocks_ptr + (i + 1) * STEP, mask=i + 1 < num_blocks, other=0)
        k = load_rows(k_ptr, keys, seqlen_k, k_stride_s, k_stride_d, DIM, BLOCK_D, not MASKED)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if MASKED:
            a0, a1, b0, b1 = hidden_rows(columns_ptr, keys, seqlen_q, seqlen_k, CAUSAL, NUM_BOUNDS)
            visible = sees(rows[:, None], a0[None, :], a1[None, :], b0[None, :], b1[None, :])
            scores = tl.where(visible, scores * scale_log2, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
            p = tl.exp2(scores - finite_top[:, None])
            shrink = tl.exp2(top - finite_top)
        else:
            new_top = tl.maximum(top, tl.max(scores, 1) * scale_log2)
            p = tl.exp2(scores * scale_log2 - new_top[:, None])
            shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        top = new_top
        if DROPOUT:
            p = tl.where(keeps(hashes[:, None], keys[None, :], threshold), p, 0.0)
        v = load_rows(v_ptr, keys, seqlen_k, v_stride_s, v_stride_d, VALUE_DIM, BLOCK_DV, not MASKED)
        if CAREFUL:
            v, num_bad = finite_part(v)
            poison += tl.sum(tl.where(visible, num_bad[None, :], 0), 1)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, total, top, poison


@triton.jit(do_not_specialize=GENERAL)
def forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
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
    """out [B, Sq, Hq, Dv] and the natural-log lse [B, Hq, Sq] of all items that this program takes."""
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
        q_head = q_ptr + b64 * q_stride_b + h64 * q_stride_h
        q = load_rows(q_head, rows, seqlen_q, q_stride_s, q_stride_d, DIM, BLOCK_D, False)
        hashes = row_hash(seed_low, seed_high, batch, head, rows) if DROPOUT else rows

        acc = tl.zeros([BLOCK_Q, BLOCK_DV], tl.float32)
        total = tl.zeros([BLOCK_Q], tl.float32)
        top = tl.full([BLOCK_Q], float("-inf"), tl.float32)
        poison = tl.zeros([BLOCK_Q], tl.int32)
        acc, total, top, poison = _visit(
            acc, total, top, poison, q, rows, hashes,
            k_head, v_head, k_stride_s, k_stride_d, v_stride_s, v_stride_d, mask_ptr,
            blocks_ptr, num_partial, seqlen_q, seqlen_k, scale_log2, threshold,
            1, True, REPAIR, CAUSAL, NUM_BOUNDS, DROPOUT, BLOCK_K, DIM, VALUE_DIM, BLOCK_D, BLOCK_DV, PRECISION,
        )  # fmt: skip
        acc, total, top, poison = _visit(
            acc, total, top, poison, q, rows, hashes,
            k_head, v_head, k_stride_s, k_stride_d, v_stride_s, v_stride_d, mask_ptr,
            blocks_ptr + num_blocks - 1, num_full, seqlen_q, seqlen_k, scale_log2, threshold,
            -1, False, False, CAUSAL, NUM_BOUNDS, DROPOUT, BLOCK_K, DIM, VALUE_DIM, BLOCK_D, BLOCK_DV, PRECISION,
        )  # fmt: skip

        divisor = tl.where(total == 0.0, 1.0, total)
        out = acc * (dropout_scale / divisor)[:, None]
        if REPAIR:
            out = tl.where((poison > 0)[:, None], float("nan"), out)
        else:
            report_nan(state_ptr, item, any_nan(acc))
        row_end = seqlen_q * wanted
        out_head = out_ptr + (b64 * seqlen_q * num_heads + h64) * VALUE_DIM
        store_rows(out_head, out, rows, row_end, num_heads * VALUE_DIM, VALUE_DIM, BLOCK_DV)
        lse = top * 0.6931471805599453 + tl.log(divisor)
        tl.store(lse_ptr + (b64 * num_heads + h64) * seqlen_q + rows, lse, mask=rows < row_end)

        taken += 1
        item = end
        if taken < quota:
            item = next_item(state_ptr, REPAIR)
