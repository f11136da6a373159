// What the backward keeps of an item, and what it prepares of one tile of rows.
#pragma once

#include "attention/flash_dropout.h"

namespace oarlock {
namespace {

struct BackwardSpace {
    KeyBlocks blocks;
    float* key_sums;     // dK: [span][kKeyBlock][row stride of D], block b at b % span
    float* value_sums;   // dV: likewise
    int64_t* last_tile;  // per block: the last one that may see it; before the first one if none does
    bool* is_summed;     // per block: whether its sums hold something
    // Rows of two tiles in turns.
    float* query_rows[2];  // [kTileRows][row stride of D]
    float* grad_rows[2];   // [kTileRows][row stride of Dv]: dO
    float* rows;           // [kLanes][row stride of D or Dv], for input and output
    float* queries;        // [kTilePanels][padded D][kPanel], times scale * log2(e)
    float* grads;          // [kTilePanels][padded Dv][kPanel], times scale
    float* query_sums;     // [kTilePanels][padded D][kPanel]: dQ^T
    float* weights;        // [kTilePanels][kKeyBlock][kPanel]: P
    float* slopes;         // likewise: dS
};

BackwardSpace backward_space(const FlashProblem& problem, const FlashItem& item, Carver& carver) {
    const int64_t key_stride = row_stride(problem.call.head_dim);
    const int64_t value_stride = row_stride(problem.call.value_dim);
    const int64_t num_keys = item.span * kKeyBlock;
    const int64_t num_blocks = round_up(problem.call.seqlen_k, kKeyBlock) / kKeyBlock;
    BackwardSpace space;
    space.blocks.take(problem, item, carver);
    space.key_sums = carver.take(num_keys * key_stride);
    space.value_sums = carver.take(num_keys * value_stride);
    space.last_tile = reinterpret_cast<int64_t*>(carver.take(2 * num_blocks));
    space.is_summed = reinterpret_cast<bool*>(carver.take(num_blocks));
    for (int i = 0; i < 2; ++i) {
        space.query_rows[i] = carver.take(kTileRows * key_stride);
        space.grad_rows[i] = carver.take(kTileRows * value_stride);
    }
    space.rows = carver.take(kLanes * larger(key_stride, value_stride));
    space.queries = carver.take(kTileRows * padded(problem.call.head_dim));
    space.grads = carver.take(kTileRows * padded(problem.call.value_dim));
    space.query_sums = carver.take(kTileRows * padded(problem.call.head_dim));
    space.weights = carver.take(kTileRows * kKeyBlock);
    space.slopes = carver.take(kTileRows * kKeyBlock);
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
    float* query_rows;
    float* grad_rows;
    Moves& moves;
    int64_t num_panels;
    bool are_rows_finite;                // queries and dO
    alignas(64) float lse[kTileRows];    // in base 2; +infinity for rows without keys and beyond the last row
    alignas(64) float delta[kTileRows];  // times scale
    RowHashes hashes;
};

OARLOCK_INLINE float dot(const float* a, const float* b, int64_t padded_size) {
    Floats sum = {};
    for (int64_t i = 0; i < padded_size; i += kLanes) {
        sum += load(a + i, Whole{}) * load(b + i, Whole{});
    }
    return sum_of_lanes(sum);
}

// Begins to bring what a tile needs; `turn` is 0 and 1 in turns.
void request_tile(const FlashProblem& problem, const FlashItem& item, const Tile& tile, int64_t turn,
                  const BackwardSpace& space, Moves& moves) {
    const oarlock_attention& call = problem.call;
    const HeadRows queries = rows_of(problem, problem.query, tile, call.head_dim);
    const int64_t padded_count = round_up(queries.count, kPanel);
    request(queries, padded_count, space.query_rows[turn], moves);
    request(rows_of(problem, problem.grad_out, tile, call.value_dim), padded_count, space.grad_rows[turn], moves);
    touch(rows_of(problem, problem.out, tile, call.value_dim), moves);
    request_keys(problem, item, tile, space.blocks, moves);
}

void load_tile(BackwardTile& t) {
    const oarlock_attention& call = t.problem.call;
    const Tile& tile = t.tile;
    const int64_t count = tile.end - tile.begin;
    const int64_t padded_count = t.num_panels * kPanel;
    const int64_t key_stride = row_stride(call.head_dim);
    const int64_t value_stride = row_stride(call.value_dim);
    arrive(rows_of(t.problem, t.problem.query, tile, call.head_dim), padded_count, t.query_rows);
    arrive(rows_of(t.problem, t.problem.grad_out, tile, call.value_dim), padded_count, t.grad_rows);
    const bool is_plain_out = is_plain(t.problem.out, call.dtype, call.value_dim);
    const int64_t first = (tile.batch * call.num_heads_q + tile.head) * call.seqlen_q + tile.begin;
    t.are_rows_finite = true;
    for (int64_t i = 0; i < padded_count; ++i) {
        t.lse[i] = kInfinity;
        t.delta[i] = 0.0f;
        if (i >= count) {
            continue;
        }
        const float lse = t.problem.saved_lse[first + i];
        if (lse == -kInfinity) {  // whatever such a row holds, its share of dK and dV is 0
            std::memset(t.query_rows + i * key_stride, 0, static_cast<size_t>(key_stride) * sizeof(float));
            std::memset(t.grad_rows + i * value_stride, 0, static_cast<size_t>(value_stride) * sizeof(float));
            continue;
        }
        const float grad_lse = t.problem.grad_lse == nullptr ? 0.0f : t.problem.grad_lse[first + i];
        const TensorRow out = tensor_row(t.problem.out, call.dtype, tile.batch, tile.begin + i, tile.head);
        const float* out_row = reinterpret_cast<const float*>(out.data);
        if (!is_plain_out) {
            stage_rows(t.problem.out, call.dtype, tile.batch, tile.begin + i, tile.head, 1, 1, call.value_dim,
                       t.space.rows);
            out_row = t.space.rows;
        }
        const float product = dot(out_row, t.grad_rows + i * value_stride, padded(call.value_dim));
        t.lse[i] = lse * kLog2E;
        t.delta[i] = call.scale * (product - grad_lse);
        // A query that is not finite has such an lse, and dO such a product.
        t.are_rows_finite &= t.lse[i] * 0.0f == 0.0f && t.delta[i] * 0.0f == 0.0f;
    }
    for (int64_t panel = 0; panel < t.num_panels; ++panel) {
        const int64_t row = panel * kPanel;
        transpose_to_panel<false>(t.query_rows + row * key_stride, key_stride, padded(call.head_dim),
                                  call.scale * kLog2E, t.space.queries + row * padded(call.head_dim));
        transpose_to_panel<false>(t.grad_rows + row * value_stride, value_stride, padded(call.value_dim), call.scale,
                                  t.space.grads + row * padded(call.value_dim));
    }
    std::memset(t.space.query_sums, 0, static_cast<size_t>(padded_count * padded(call.head_dim)) * sizeof(float));
    if (call.dropout_threshold > 0) {
        t.hashes.fill(call, tile);
    }
}

}  // namespace
}  // namespace oarlock
