// The fused attention: what its parts, compiled for different instruction sets, hand to each other. Plain data only: no
// inline function may be shared between variants.
//
// Work is cut into chunks of 8 keys, blocks of 128 keys, and tiles of rows; a tile is a few panels, whose rows lie in
// the lanes of some vectors. Everything is computed transposed: S^T[key][row] = K Q^T, O^T[channel][row] = V^T P^T.
#pragma once

#include <cstdint>

#include "oarlock.h"

namespace oarlock {

constexpr int64_t kChunk = 8;
constexpr int64_t kKeyBlock = 128;  // the block size of a block mask
constexpr int64_t kChunksPerBlock = kKeyBlock / kChunk;
constexpr int64_t kTilePanels = 4;

struct RowRange {
    int32_t begin;
    int32_t end;
};

// The rows that do not see a key: two half-open ranges, empty ones being {0, 0}.
struct HiddenRows {
    RowRange ranges[2];
};

// One column mask, prepared by MaskClasses.
struct ClassTable {
    const HiddenRows* hidden;  // per key, up to whole chunks
    // The rows that see some key of chunk c: some[some_begin[c]] to some[some_begin[c + 1]], ascending and disjoint.
    const int32_t* some_begin;
    const RowRange* some;
    // Likewise the rows that see all of them.
    const int32_t* all_begin;
    const RowRange* all;
    const RowRange* hull;  // per block: no row outside sees any of its keys
};

struct FlashProblem {
    oarlock_attention call;
    oarlock_vectors query, key, value, out;
    float* lse;  // written by the forward
    // Only for the backward.
    const float* saved_lse;
    oarlock_vectors grad_out, grad_query, grad_key, grad_value;
    const float* grad_lse;    // may be null
    const ClassTable* masks;  // [mask_batch, mask_heads]
};

// Some tiles of all query heads that share a key head. It visits the tiles in order, all heads for each; a block of
// keys is live from the first to the last tile that may see it.
struct FlashItem {
    int64_t batch;
    int64_t key_head;
    int64_t tile_begin;
    int64_t tile_end;
    int64_t block_begin;  // blocks outside of [block_begin, block_end) are never live
    int64_t block_end;
    int64_t span;  // blocks that are live for one tile, or for it and the next, are less than this apart
    int64_t cost;
    // Backward, if several items share a key head: where to leave this one's sums of dK and dV, [block_end -
    // block_begin] [kKeyBlock][row stride]. Null: the item writes the gradients itself.
    float* grad_key_sums;
    float* grad_value_sums;
};

struct FlashKernels {
    int64_t tile_rows;
    int64_t vector_rows;
    // Floats of a row in staged keys and values, and in the sums of their gradients.
    int64_t (*row_stride)(int64_t head_dim);
    // Floats of workspace for an item; the workspace is aligned to 64 bytes.
    int64_t (*forward_workspace)(const FlashProblem& problem, const FlashItem& item);
    void (*forward)(const FlashProblem& problem, const FlashItem& item, float* workspace);
    int64_t (*backward_workspace)(const FlashProblem& problem, const FlashItem& item);
    void (*backward)(const FlashProblem& problem, const FlashItem& item, float* workspace);
    // Writes dK and dV of the keys [key_begin, key_end) as the sums of the items, in their order. The workspace is one
    // row of each.
    void (*add_parts)(const FlashProblem& problem, const FlashItem* items, int64_t num_items, int64_t key_begin,
                      int64_t key_end, float* workspace);
};

// Those of this process's instruction set.
const FlashKernels& flash_kernels() noexcept;

// One variant each; null where the compiler does not target it.
const FlashKernels* flash_kernels_baseline() noexcept;
const FlashKernels* flash_kernels_avx2() noexcept;
const FlashKernels* flash_kernels_avx512() noexcept;

}  // namespace oarlock
