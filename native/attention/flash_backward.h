// The backward of one work item. With P = exp(S - lse) and Delta = rowsum(dO * O) - dlse:
//     dS = P * (dO V^T - Delta) * scale,  dQ += dS K,  dK += dS^T Q,  dV += P^T dO
// dQ of a tile is complete after its last block of keys; dK and dV are summed over all tiles of the item.
#pragma once

#include "attention/flash_backward_block.h"

namespace oarlock {
namespace {

// Brings a block of keys and values into its place, with sums of 0 if it is new there.
BackwardKeys stage_keys(const FlashProblem& problem, const FlashItem& item, const BackwardSpace& space, int64_t block) {
    const oarlock_attention& call = problem.call;
    const int64_t place = block % item.span;
    const int64_t key_size = kKeyBlock * row_stride(call.head_dim);
    const int64_t value_size = kKeyBlock * row_stride(call.value_dim);
    float* const keys = space.keys + place * key_size;
    float* const values = space.values + place * value_size;
    BackwardKeys staged = {block * kKeyBlock,
                           keys,
                           values,
                           space.key_sums + place * key_size,
                           space.value_sums + place * value_size,
                           true};
    if (item.grad_key_sums != nullptr) {
        staged.key_sums = item.grad_key_sums + (block - item.block_begin) * key_size;
        staged.value_sums = item.grad_value_sums + (block - item.block_begin) * value_size;
    }
    if (space.blocks[place] != block) {
        const int64_t count = smaller(kKeyBlock, call.seqlen_k - staged.first_key);
        const int64_t padded_count = round_up(count, kChunk);
        space.blocks[place] = block;
        space.finite[place] = stage_rows(problem.key, call.dtype, item.batch, staged.first_key, item.key_head, count,
                                         padded_count, call.head_dim, keys);
        stage_rows(problem.value, call.dtype, item.batch, staged.first_key, item.key_head, count, padded_count,
                   call.value_dim, values);
        std::memset(staged.key_sums, 0, static_cast<size_t>(key_size) * sizeof(float));
        std::memset(staged.value_sums, 0, static_cast<size_t>(value_size) * sizeof(float));
        space.is_summed[block] = true;
    }
    staged.are_keys_finite = space.finite[place];
    return staged;
}

void backward_tile(const FlashProblem& problem, const FlashItem& item, const Tile& tile, const BackwardSpace& space) {
    const oarlock_attention& call = problem.call;
    BackwardTile t = {problem, tile, space, (tile.end - tile.begin + kPanel - 1) / kPanel, {}, {}, true, {}, {}};
    load_tile(t);
    const Tile next = next_tile(problem, item, tile);
    prefetch_rows(problem, problem.query, next, call.head_dim, t.prefetch);
    prefetch_rows(problem, problem.grad_out, next, call.value_dim, t.prefetch);
    prefetch_rows(problem, problem.out, next, call.value_dim, t.prefetch);
    prefetch_keys(problem, item, tile, next, t.prefetch);
    prefetch_rows(problem, problem.grad_query, tile, call.head_dim, t.prefetch);
    BlockClasses classes;
    for (int64_t block = item.block_begin; block < item.block_end; ++block) {
        classify(tile, block, call.seqlen_k, classes);
        if (classes.any != 0) {
            backward_block(t, stage_keys(problem, item, space, block), classes);
        }
    }
    t.prefetch.finish();
    alignas(64) float ones[kPanel];
    for (float& one : ones) {
        one = 1.0f;
    }
    for (int64_t panel = 0; panel < t.num_panels; ++panel) {
        const int64_t row = tile.begin + panel * kPanel;
        write_panel(space.query_sums + panel * kPanel * padded(call.head_dim), ones, smaller(kPanel, tile.end - row),
                    problem.grad_query, call.dtype, tile.batch, row, tile.head, call.head_dim, space.rows);
    }
}

// Writes dK and dV of the blocks whose last live tile this is.
void finish_blocks(const FlashProblem& problem, const FlashItem& item, const BackwardSpace& space, int64_t tile) {
    const oarlock_attention& call = problem.call;
    const int64_t key_stride = row_stride(call.head_dim);
    const int64_t value_stride = row_stride(call.value_dim);
    for (int64_t block = 0; block * kKeyBlock < call.seqlen_k; ++block) {
        if (space.last_tile[block] != tile) {
            continue;
        }
        const int64_t place = item.span == 0 ? 0 : block % item.span;
        const bool has_sums = space.is_summed[block];
        const float* key_sums = has_sums ? space.key_sums + place * kKeyBlock * key_stride : space.rows;
        const float* value_sums = has_sums ? space.value_sums + place * kKeyBlock * value_stride : space.rows;
        if (!has_sums) {
            std::memset(space.rows, 0, static_cast<size_t>(larger(key_stride, value_stride)) * sizeof(float));
        }
        const int64_t end = smaller((block + 1) * kKeyBlock, call.seqlen_k);
        for (int64_t key = block * kKeyBlock; key < end; ++key) {
            write_row(tensor_row(problem.grad_key, call.dtype, item.batch, key, item.key_head), call.head_dim,
                      key_sums);
            write_row(tensor_row(problem.grad_value, call.dtype, item.batch, key, item.key_head), call.value_dim,
                      value_sums);
            key_sums += has_sums ? key_stride : 0;
            value_sums += has_sums ? value_stride : 0;
        }
    }
}

void backward(const FlashProblem& problem, const FlashItem& item, float* workspace) {
    const oarlock_attention& call = problem.call;
    const bool is_whole = item.grad_key_sums == nullptr;
    Carver carver = {workspace, 0};
    const BackwardSpace space = backward_space(problem, item, carver);
    for (int64_t i = 0; i < item.span; ++i) {
        space.blocks[i] = -1;
    }
    for (int64_t block = 0; block * kKeyBlock < call.seqlen_k; ++block) {
        space.last_tile[block] = is_whole ? live_tiles(problem, item, block).last : item.tile_end;
        space.is_summed[block] = false;
    }
    finish_blocks(problem, item, space, item.tile_begin - 1);  // those that no row sees
    const int64_t group = call.num_heads_q / call.num_heads_k;
    for (int64_t index = item.tile_begin; index < item.tile_end; ++index) {
        for (int64_t head = item.key_head * group; head < (item.key_head + 1) * group; ++head) {
            backward_tile(problem, item, make_tile(problem, item, head, index), space);
        }
        finish_blocks(problem, item, space, index);
    }
    const int64_t key_size = kKeyBlock * row_stride(call.head_dim);
    const int64_t value_size = kKeyBlock * row_stride(call.value_dim);
    for (int64_t block = item.block_begin; block < item.block_end && !is_whole; ++block) {
        if (!space.is_summed[block]) {
            std::memset(item.grad_key_sums + (block - item.block_begin) * key_size, 0,
                        static_cast<size_t>(key_size) * sizeof(float));
            std::memset(item.grad_value_sums + (block - item.block_begin) * value_size, 0,
                        static_cast<size_t>(value_size) * sizeof(float));
        }
    }
}

void add_parts(const FlashProblem& problem, const FlashItem* items, int64_t num_items, int64_t key_begin,
               int64_t key_end, float* workspace) {
    const oarlock_attention& call = problem.call;
    const auto add = [&](const oarlock_vectors& target, int64_t channels, float* FlashItem::*part, int64_t key) {
        const int64_t stride = row_stride(channels);
        std::memset(workspace, 0, static_cast<size_t>(stride) * sizeof(float));
        for (int64_t i = 0; i < num_items; ++i) {
            const FlashItem& item = items[i];
            if (key < item.block_begin * kKeyBlock || key >= item.block_end * kKeyBlock) {
                continue;
            }
            const float* const row = item.*part + (key - item.block_begin * kKeyBlock) * stride;
            for (int64_t d = 0; d < padded(channels); d += kLanes) {
                store(workspace + d, load(workspace + d, Whole{}) + load(row + d, Whole{}), Whole{});
            }
        }
        write_row(tensor_row(target, call.dtype, items[0].batch, key, items[0].key_head), channels, workspace);
    };
    for (int64_t key = key_begin; key < key_end; ++key) {
        add(problem.grad_key, call.head_dim, &FlashItem::grad_key_sums, key);
        add(problem.grad_value, call.value_dim, &FlashItem::grad_value_sums, key);
    }
}

}  // namespace
}  // namespace oarlock
