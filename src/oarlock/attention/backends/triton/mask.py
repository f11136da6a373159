"""Device functions of the Triton kernels: rows of tensors, the column mask, and the bits of dropout.

Legend: rows and keys are absolute indices; [M] rows of a tile, [N] keys of a tile; intervals are half-open.
"""

# Triton's language only looks like Python; type checkers know neither its tensors nor calls of kernels.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

GENERAL = [
    *("num_items", "num_heads", "num_key_heads", "group", "section", "num_tiles", "num_blocks", "num_lines"),
    *("columns_per_batch", "lists_per_batch", "heads_per_mask", "orders_per_batch", "key_heads_per_order"),
    *("seqlen_q", "seqlen_k", "num_rows", "num_keys", "stride_b", "stride_h", "stride_line", "stride_block"),
    *("seed_low", "seed_high", "threshold", "quota"),
]
"""Integers that kernels are not compiled anew for when they happen to be 1 or a multiple of 16."""


@triton.jit
def load_rows(
    ptr,
    rows,
    num_rows,
    row_stride,
    dim_stride,
    DIMS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALL_ROWS: tl.constexpr,
):
    """x[rows, :DIMS], with zeros beyond the ends: [rows, BLOCK]. Offsets have 64 bits."""
    dims = tl.arange(0, BLOCK)
    pointers = ptr + rows.to(tl.int64)[:, None] * row_stride + dims.to(tl.int64)[None, :] * dim_stride
    if ALL_ROWS and DIMS == BLOCK:
        x = tl.load(pointers)
    elif ALL_ROWS:
        x = tl.load(pointers, mask=(dims < DIMS)[None, :], other=0.0)
    elif DIMS == BLOCK:
        x = tl.load(pointers, mask=(rows < num_rows)[:, None], other=0.0)
    else:
        x = tl.load(pointers, mask=(rows < num_rows)[:, None] & (dims < DIMS)[None, :], other=0.0)
    return x


@triton.jit
def store_rows(ptr, x, rows, num_rows, row_stride, DIMS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes [rows, BLOCK] to contiguous rows of DIMS, without what is beyond the ends."""
    dims = tl.arange(0, BLOCK)
    pointers = ptr + rows.to(tl.int64)[:, None] * row_stride + dims[None, :]
    tl.store(pointers, x.to(ptr.dtype.element_ty), mask=(rows < num_rows)[:, None] & (dims < DIMS)[None, :])


@triton.jit
def hidden_rows(columns_ptr, keys, seqlen_q, seqlen_k, CAUSAL: tl.constexpr, NUM_BOUNDS: tl.constexpr):
    """The rows [a0, a1) and [b0, b1) that do not see each key: int32 [N] each. Keys beyond the end hide all rows.

    ``columns_ptr`` points to the bounds of one mask: int32 [n, Sk].
    """
    inside = keys < seqlen_k
    a0 = tl.load(columns_ptr + keys, mask=inside, other=0)
    no_end = tl.zeros_like(a0) + 2147483647
    if NUM_BOUNDS == 4:
        a1 = tl.load(columns_ptr + seqlen_k + keys, mask=inside, other=2147483647)
        b0 = tl.load(columns_ptr + 2 * seqlen_k + keys, mask=inside, other=0)
        b1 = tl.load(columns_ptr + 3 * seqlen_k + keys, mask=inside, other=0)
    elif CAUSAL:
        if NUM_BOUNDS == 2:
            a1 = tl.load(columns_ptr + seqlen_k + keys, mask=inside, other=2147483647)
        else:
            a1 = no_end
        b0 = tl.zeros_like(a0)
        b1 = keys - (seqlen_k - seqlen_q)
    else:
        a1 = no_end
        b0 = tl.zeros_like(a0)
        b1 = tl.load(columns_ptr + seqlen_k + keys, mask=inside, other=0)
    return a0, a1, b0, b1


@triton.jit
def sees(rows, a0, a1, b0, b1):
    """Whether a row lies outside both intervals; all arguments broadcast."""
    return ((rows < a0) | (rows >= a1)) & ((rows < b0) | (rows >= b1))


@triton.jit
def finite_part(x):
    """x with zeros in place of NaN and infinities, and the number of those in each row: [rows, dims], int32 [rows]."""
    is_finite = tl.abs(x.to(tl.float32)) < float("inf")
    return tl.where(is_finite, x, 0.0).to(x.dtype), tl.sum(tl.where(is_finite, 0, 1), 1)


@triton.jit
def any_nan(x):
    """Whether a tile [rows, dims] holds a NaN."""
    return tl.max(tl.max(tl.where(x != x, 1, 0), 1), 0) > 0


# ---- the queue of work items -----------------------------------------------------------------------------------------
#
# Its state, int32 [3 + items], starts with zeros: the next item, the next item of the repair, whether anything is to be
# repaired, and which items are. A kernel that finds a NaN in a result asks for a repair: 0 * NaN may have brought it to
# rows that do not see it. The repair is a second launch of the same kernel, which takes more care and is slower.


@triton.jit
def place_of(item, section, num_tiles, num_heads):
    """Batch row, head and rank of a work item among the tiles of its head.

    The heads (of all batch rows) are cut into sections that share the cache; in a section come the longest tiles of all
    its heads, then the second ones, and so on.
    """
    in_section = item % (section * num_tiles)
    head = item // (section * num_tiles) * section + in_section % section
    return head // num_heads, head % num_heads, in_section // section


@triton.jit
def next_item(state_ptr, REPAIR: tl.constexpr):
    """The next work item, for one program."""
    return tl.atomic_add(state_ptr + REPAIR, 1)


@triton.jit
def num_wanted(state_ptr, num_items, REPAIR: tl.constexpr):
    """How many items there are; none if nothing is to be repaired."""
    wanted = num_items
    if REPAIR:
        wanted = num_items * tl.minimum(tl.load(state_ptr + 2), 1)
    return wanted


@triton.jit
def is_wanted(state_ptr, item, REPAIR: tl.constexpr):
    """1 or 0: whether to compute an item."""
    wanted = 1
    if REPAIR:
        wanted = tl.load(state_ptr + 3 + item)
    return wanted


@triton.jit
def report_nan(state_ptr, item, found):
    """Asks for the repair of an item."""
    if found:
        tl.store(state_ptr + 3 + item, 1)
        tl.store(state_ptr + 2, 1)


# ---- dropout: the hash of oarlock.attention.dropout ------------------------------------------------------------------


@triton.jit
def mix64(z):
    """The 64-bit mixer of the hash."""
    z = z + 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def row_hash(seed_low, seed_high, batch, head, rows):
    """64 bits per row; the two words are those of mix64(mix64(seed) ^ offset)."""
    seed = (seed_high.to(tl.uint32).to(tl.uint64) << 32) | seed_low.to(tl.uint32).to(tl.uint64)
    seed = mix64(seed ^ ((batch.to(tl.uint64) << 32) | head.to(tl.uint64)))
    return mix64(rows.to(tl.uint64) ^ seed)


@triton.jit
def keeps(hashes, keys, threshold):
    """Whether pairs are kept: ``hashes`` [M, 1] or [1, M] of the rows, ``keys`` [1, N] or [N, 1]."""
    low, high = hashes.to(tl.uint32), (hashes >> 32).to(tl.uint32)
    x = keys.to(tl.uint32) * 0x9E3779B1 + low
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15) ^ high) * 0x846CA68B
    x = x ^ (x >> 16)
    return x >= threshold.to(tl.uint32)
