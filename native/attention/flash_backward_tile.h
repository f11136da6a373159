// What the backward keeps of an item, and what it prepares of one tile of rows.
#pragma once

#include "attention/flash_dropout.h"

namespace oarlock {
namespace {

struct BackwardSpace {
    // [span][kKeyBlock][row stride of D or Dv], block b at b % span
    float* keys;
    float* values;
    float* key_sums;     // dK
    float* value_sums;   // dV
    int64_t* blocks;     // [span]: which block is there
    bool* finite;        // [span]: whether its keys are
    int64_t* last_tile;  // per block: the last one that may see it; before the first one if none does
    bool* is_summed;     // per block: whether its sums hold something
    // The tile.
    float* query_rows;  // [kTileRows][row stride of D]
    float* grad_rows;   // [kTileRows][row stride of Dv]: dO
    float* queries;     // [kTilePanels][padded D][kPanel], times scale * log2(e)
    float* grads;       // [kTilePanels][padded Dv][kPanel], times scale
    float* query_sums;  // [kTilePanels][padded D][kPanel]: dQ^T
    float* weights;     // [kTilePanels][kKeyBlock][kPanel]: P
    float* slopes;      // likewise: dS
    float* rows;        // 4 rows, for input and output
};

BackwardSpace backward_space(const FlashProblem& problem, const FlashItem& item, Carver& carver) {
    const int64_t key_stride = row_stride(problem.call.head_dim);
    const int64_t value_stride = row_stride(problem.call.value_dim);
    const int64_t num_keys = item.span * kKeyBlock;
    BackwardSpace space;
    space.keys = carver.take(num_keys * key_stride);
    space.values = carver.take(num_keys * value_stride);
    space.key_sums = carver.take(num_keys * key_stride);
    space.value_sums = carver.take(num_keys * value_stride);
    space.blocks = reinterpret_cast<int64_t*>(carver.take(2 * item.span));
    space.finite = reinterpret_cast<bool*>(carver.take(item.span));
    space.last_tile =
        reinterpret_cast<int64_t*>(carver.take(2 * (round_up(problem.call.seqlen_k, kKeyBlock) / kKeyBlock)));
    space.is_summed = reinterpret_cast<bool*>(carver.take(round_up(problem.call.seqlen_k, kKeyBlock) / kKeyBlock));
    space.query_rows = carver.take(kTileRows * key_stride);
    space.grad_rows = carver.take(kTileRows * value_stride);
    space.queries = carver.take(kTileRows * padded(problem.call.head_dim));
    space.grads = carver.take(kTileRows * padded(problem.call.value_dim));
    space.query_sums = carver.take(kTileRows * padded(problem.call.head_dim));
    space.weights = carver.take(kTileRows * kKeyBlock);
    space.slopes = carver.take(kTileRows * kKeyBlock);
    space.rows = carver.take(4 * larger(key_stride, value_stride));
    return space;
}

int64_t backward_workspace(const FlashProblem& problem, const FlashItem& item) {
    Carver carver = {nullptr, 0};
    backward_space(problem, item, carver);
    return carver.used;
}

// The tile's rows, of which each thread has one at a time.
struct BackwardTile {
    const FlashProblem& problem;
    const Tile& tile;
    const BackwardSpace& space;
    int64_t num_panels;
    alignas(64) float lse[kTileRows];    // in base 2; +infinity for rows without keys and beyond the last row
    alignas(64) float delta[kTileRows];  // times scale
    bool are_rows_finite;                // queries and dO
    RowHashes hashes;
    Prefetch prefetch;
};

OARLOCK_INLINE float dot(const float* a, const float* b, int64_t padded_size) {
    Floats sum = {};
    for (int64_t i = 0; i < padded_size; i += kLanes) {
        sum += load(a + i, Whole{}) * load(b + i, Whole{});
    }
    return sum_of_lanes(sum);
}

bool are_finite(const float* rows, int64_t count, int64_t stride, int64_t size) {
    bool finite = true;
    for (int64_t row = 0; row < count; ++row) {
        for (int64_t i = 0; i < size; ++i) {
            finite &= rows[row * stride + i] * 0.0f == 0.0f;
        }
    }
    return finite;
}

void load_tile(BackwardTile& t) {
    const oarlock_attention& call = t.problem.call;
    const Tile& tile = t.tile;
    const int64_t count = tile.end - tile.begin;
    const int64_t padded_count = t.num_panels * kPanel;
    const int64_t key_stride = row_stride(call.head_dim);
    const int64_t value_stride = row_stride(call.value_dim);
    t.are_rows_finite = stage_rows(t.problem.query, call.dtype, tile.batch, tile.begin, tile.head, count, padded_count,
                                   call.head_dim, t.space.query_rows);
    t.are_rows_finite &= stage_rows(t.problem.grad_out, call.dtype, tile.batch, tile.begin, tile.head, count,
                                    padded_count, call.value_dim, t.space.grad_rows);
    const int64_t first = (tile.batch * call.num_heads_q + tile.head) * call.seqlen_q + tile.begin;
    for (int64_t i = 0; i < padded_count; ++i) {
        t.lse[i] = kInfinity;
        t.delta[i] = 0.0f;
        if (i >= count) {
            continue;
        }
        const float lse = t.problem.saved_lse[first + i];
        if (lse == -kInfinity) {  // whatever such a row holds, its share of dK and dV is 0
            std::memset(t.space.query_rows + i * key_stride, 0, static_cast<size_t>(key_stride) * sizeof(float));
            std::memset(t.space.grad_rows + i * value_stride, 0, static_cast<size_t>(value_stride) * sizeof(float));
            continue;
        }
        stage_rows(t.problem.out, call.dtype, tile.batch, tile.begin + i, tile.head, 1, 1, call.value_dim,
                   t.space.rows);
        const float grad_lse = t.problem.grad_lse == nullptr ? 0.0f : t.problem.grad_lse[first + i];
        const float product = dot(t.space.rows, t.space.grad_rows + i * value_stride, padded(call.value_dim));
        t.lse[i] = lse * kLog2E;
        t.delta[i] = call.scale * (product - grad_lse);
    }
    if (!t.are_rows_finite) {  // perhaps only rows that see nothing were not
        t.are_rows_finite = are_finite(t.space.query_rows, count, key_stride, call.head_dim) &&
                            are_finite(t.space.grad_rows, count, value_stride, call.value_dim);
    }
    for (int64_t panel = 0; panel < t.num_panels; ++panel) {
        const int64_t row = panel * kPanel;
        transpose_to_panel(t.space.query_rows + row * key_stride, key_stride, padded(call.head_dim),
                           call.scale * kLog2E, t.space.queries + row * padded(call.head_dim));
        transpose_to_panel(t.space.grad_rows + row * value_stride, value_stride, padded(call.value_dim), call.scale,
                           t.space.grads + row * padded(call.value_dim));
    }
    std::memset(t.space.query_sums, 0, static_cast<size_t>(padded_count * padded(call.head_dim)) * sizeof(float));
    if (call.dropout_threshold > 0) {
        t.hashes.fill(call, tile);
    }
}

}  // namespace
}  // namespace oarlock
