// The backward of one work item. With P = exp(S - lse) and Delta = rowsum(dO * O) - dlse:
//     dS = P * (dO V^T - Delta) * scale,  dQ += dS K,  dK += dS^T Q,  dV += P^T dO
// dQ of a tile is complete after its last block of keys; dK and dV are summed over all tiles of the item.
#pragma once

#include "attention/flash_backward_block.h"

namespace oarlock {
namespace {

// A block of keys, ready for use; its sums are 0 when it is used first.
BackwardKeys use_block(const BackwardTile& t, const FlashItem& item, int64_t block) {
    const FlashProblem& problem = t.problem;
    const BackwardSpace& space = t.space;
    const int64_t place = use_keys(problem, item, block, space.blocks, true, t.moves);
    const int64_t key_size = kKeyBlock * row_stride(problem.call.head_dim);
    const int64_t value_size = kKeyBlock * row_stride(problem.call.value_dim);
    const bool is_whole = item.grad_key_sums == nullptr;
    const int64_t part = block - item.block_begin;
    const BackwardKeys keys = {
        block * kKeyBlock,
        space.blocks.keys_at(problem, place),
        space.blocks.values_at(problem, place),
        is_whole ? space.key_sums + place * key_size : item.grad_key_sums + part * key_size,
        is_whole ? space.value_sums + place * value_size : item.grad_value_sums + part * value_size,
        space.blocks.is_finite[place]};
    if (!space.is_summed[block]) {
        std::memset(keys.key_sums, 0, static_cast<size_t>(key_size) * sizeof(float));
        std::memset(keys.value_sums, 0, static_cast<size_t>(value_size) * sizeof(float));
        space.is_summed[block] = true;
    }
    return keys;
}

// What the tile needs has been moved; afterwards so has what the next one needs.
void backward_tile(const FlashProblem& problem, const FlashItem& item, const Tile& tile, int64_t turn,
                   const BackwardSpace& space, Moves& moves) {
    const oarlock_attention& call = problem.call;
    BackwardTile t = {problem,
                      tile,
                      space,
                      space.query_rows[turn],
                      space.grad_rows[turn],
                      moves,
                      (tile.end - tile.begin + kPanel - 1) / kPanel,
                      true,
                      {},
                      {},
                      {}};
    load_tile(t);
    request_tile(problem, item, next_tile(problem, item, tile), 1 - turn, space, moves);
    touch(rows_of(problem, problem.grad_query, tile, call.head_dim), moves);
    BlockClasses classes;
    for (int64_t block = item.block_begin; block < item.block_end; ++block) {
        classify(tile, block, call.seqlen_k, classes);
        if (classes.any != 0) {
            backward_block(t, use_block(t, item, block), classes);
        }
    }
    moves.finish();
    alignas(64) float ones[kPanel];
    for (float& one : ones) {
        one = 1.0f;
    }
    HeadRows rows = rows_of(problem, problem.grad_query, tile, call.head_dim);
    for (int64_t row = 0; row < t.num_panels * kPanel; row += kPanel) {
        rows.token = tile.begin + row;
        rows.count = smaller(kPanel, tile.end - rows.token);
        write_panel(rows, space.query_sums + row * padded(call.head_dim), ones, space.rows);
    }
}

// Writes dK and dV of the blocks whose last live tile this is, during the next tile: only later their places are free.
void finish_blocks(const FlashProblem& problem, const FlashItem& item, const BackwardSpace& space, int64_t tile,
                   Moves& moves) {
    const oarlock_attention& call = problem.call;
    for (int64_t block = 0; block * kKeyBlock < call.seqlen_k; ++block) {
        if (space.last_tile[block] != tile) {
            continue;
        }
        const HeadRows key_rows = rows_of(problem, problem.grad_key, item, block, call.head_dim);
        const HeadRows value_rows = rows_of(problem, problem.grad_value, item, block, call.value_dim);
        if (space.is_summed[block]) {
            const int64_t place = block % item.span;
            send(key_rows, space.key_sums + place * kKeyBlock * row_stride(call.head_dim), moves);
            send(value_rows, space.value_sums + place * kKeyBlock * row_stride(call.value_dim), moves);
        } else {
            write_zeros(key_rows);
            write_zeros(value_rows);
        }
    }
}

void backward(const FlashProblem& problem, const FlashItem& item, float* workspace) {
    const oarlock_attention& call = problem.call;
    const bool is_whole = item.grad_key_sums == nullptr;
    Carver carver = {workspace, 0};
    const BackwardSpace space = backward_space(problem, item, carver);
    space.blocks.clear(item.span);
    for (int64_t block = 0; block * kKeyBlock < call.seqlen_k; ++block) {
        space.last_tile[block] = is_whole ? live_tiles(problem, item, block).last : item.tile_end;
        space.is_summed[block] = false;
    }
    Moves moves;
    const int64_t group = call.num_heads_q / call.num_heads_k;
    request_tile(problem, item, make_tile(problem, item, item.key_head * group, item.tile_begin), 0, space, moves);
    moves.finish();
    finish_blocks(problem, item, space, item.tile_begin - 1, moves);  // those that no row sees
    int64_t turn = 0;
    for (int64_t index = item.tile_begin; index < item.tile_end; ++index) {
        for (int64_t head = item.key_head * group; head < (item.key_head + 1) * group; ++head) {
            backward_tile(problem, item, make_tile(problem, item, head, index), turn, space, moves);
            turn = 1 - turn;
        }
        finish_blocks(problem, item, space, index, moves);
    }
    moves.finish();
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
