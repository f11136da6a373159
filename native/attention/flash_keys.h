// The blocks of keys and values that an item has at hand, as floats in buffers of its own.
#pragma once

#include "attention/flash_tile.h"

namespace oarlock {
namespace {

// Block b is at place b % span.
struct KeyBlocks {
    float* keys;      // [span][kKeyBlock][row stride of D]
    float* values;    // [span][kKeyBlock][row stride of Dv]
    int64_t* blocks;  // [span]: which block is there
    bool* is_new;     // [span]: whether it has not been used yet
    bool* is_finite;  // [span]: of a used block, whether what a hidden pair multiplies by 0 is finite

    void take(const FlashProblem& problem, const FlashItem& item, Carver& carver) {
        keys = carver.take(item.span * kKeyBlock * row_stride(problem.call.head_dim));
        values = carver.take(item.span * kKeyBlock * row_stride(problem.call.value_dim));
        blocks = reinterpret_cast<int64_t*>(carver.take(2 * item.span));
        is_new = reinterpret_cast<bool*>(carver.take(item.span));
        is_finite = reinterpret_cast<bool*>(carver.take(item.span));
    }

    void clear(int64_t span) const {
        for (int64_t i = 0; i < span; ++i) {
            blocks[i] = -1;
        }
    }

    float* keys_at(const FlashProblem& problem, int64_t place) const {
        return keys + place * kKeyBlock * row_stride(problem.call.head_dim);
    }

    float* values_at(const FlashProblem& problem, int64_t place) const {
        return values + place * kKeyBlock * row_stride(problem.call.value_dim);
    }
};

// Begins to bring the blocks that a tile may see and that are not at hand, as far as there is room in the moves. All
// blocks that are live for this tile or the one before have places of their own.
void request_keys(const FlashProblem& problem, const FlashItem& item, const Tile& tile, const KeyBlocks& at_hand,
                  Moves& moves) {
    for (int64_t block = item.block_begin; block < item.block_end; ++block) {
        const RowRange hull = tile.mask->hull[block];
        const int64_t place = block % item.span;
        if (hull.begin >= tile.end || hull.end <= tile.begin || at_hand.blocks[place] == block) {
            continue;
        }
        const HeadRows keys = rows_of(problem, problem.key, item, block, problem.call.head_dim);
        const HeadRows values = rows_of(problem, problem.value, item, block, problem.call.value_dim);
        const int64_t pieces = num_pieces(keys) + num_pieces(values);
        if (pieces > moves.room()) {
            return;  // it comes when it is used
        }
        const int64_t padded_count = round_up(keys.count, kChunk);
        request(keys, padded_count, at_hand.keys_at(problem, place), moves);
        request(values, padded_count, at_hand.values_at(problem, place), moves);
        at_hand.blocks[place] = block;
        at_hand.is_new[place] = true;
    }
}

// Makes a block ready for use; returns its place. check_keys: whether its keys or its values must be finite.
int64_t use_keys(const FlashProblem& problem, const FlashItem& item, int64_t block, const KeyBlocks& at_hand,
                 bool check_keys, Moves& moves) {
    const int64_t place = block % item.span;
    const HeadRows keys = rows_of(problem, problem.key, item, block, problem.call.head_dim);
    const HeadRows values = rows_of(problem, problem.value, item, block, problem.call.value_dim);
    const int64_t padded_count = round_up(keys.count, kChunk);
    float* const key_rows = at_hand.keys_at(problem, place);
    float* const value_rows = at_hand.values_at(problem, place);
    if (at_hand.blocks[place] != block) {
        moves.finish();
        request(keys, padded_count, key_rows, moves);
        request(values, padded_count, value_rows, moves);
        moves.finish();
        at_hand.blocks[place] = block;
        at_hand.is_new[place] = true;
    }
    if (at_hand.is_new[place]) {
        arrive(keys, padded_count, key_rows);
        arrive(values, padded_count, value_rows);
        at_hand.is_new[place] = false;
        at_hand.is_finite[place] = check_keys ? are_finite(key_rows, padded_count, keys.size)
                                              : are_finite(value_rows, padded_count, values.size);
    }
    return place;
}

}  // namespace
}  // namespace oarlock
