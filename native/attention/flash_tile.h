// What of a tile of rows and a block of keys is visible: bits per vector of rows, for each chunk of keys.
#pragma once

#include "attention/flash_softmax.h"

namespace oarlock {
namespace {

constexpr int64_t kTileRows = kTilePanels * kPanel;
constexpr int64_t kTileVectors = kTilePanels * kPanelVectors;

// One tile: rows [begin, end) of one query head.
struct Tile {
    int64_t batch;
    int64_t head;
    int64_t key_head;
    int64_t begin;
    int64_t end;
    const ClassTable* mask;
    const uint8_t* block_mask;  // [row blocks, key blocks], null: keep all
};

OARLOCK_INLINE Tile make_tile(const FlashProblem& problem, const FlashItem& item, int64_t head, int64_t index) {
    const oarlock_attention& call = problem.call;
    const int64_t mask_head = head * call.mask_heads / call.num_heads_q;
    const int64_t mask_batch = call.mask_batch == 1 ? 0 : item.batch;
    const int64_t begin = index * kTileRows;
    const uint8_t* block_mask = nullptr;
    if (call.block_mask != nullptr) {
        const int64_t num_blocks =
            round_up(call.seqlen_q, kKeyBlock) / kKeyBlock * (round_up(call.seqlen_k, kKeyBlock) / kKeyBlock);
        const int64_t block_batch = call.block_mask_batch == 1 ? 0 : item.batch;
        block_mask = call.block_mask + (block_batch * call.mask_heads + mask_head) * num_blocks;
    }
    return {item.batch,
            head,
            item.key_head,
            begin,
            smaller(begin + kTileRows, call.seqlen_q),
            problem.masks + mask_batch * call.mask_heads + mask_head,
            block_mask};
}

// The tiles of an item that may see a key of the block, first to last; first > last: none. They include all that do.
struct TileRange {
    int64_t first;
    int64_t last;
};

OARLOCK_INLINE TileRange live_tiles(const FlashProblem& problem, const FlashItem& item, int64_t block) {
    const int64_t group = problem.call.num_heads_q / problem.call.num_heads_k;
    TileRange live = {item.tile_end, item.tile_begin - 1};
    for (int64_t head = item.key_head * group; head < (item.key_head + 1) * group; ++head) {
        const RowRange hull = make_tile(problem, item, head, 0).mask->hull[block];
        if (hull.begin < hull.end) {
            live.first = smaller(live.first, larger(hull.begin / kTileRows, item.tile_begin));
            live.last = larger(live.last, smaller((hull.end - 1) / kTileRows, item.tile_end - 1));
        }
    }
    return live;
}

// The tile after this one; none after the last: it begins at its end.
OARLOCK_INLINE Tile next_tile(const FlashProblem& problem, const FlashItem& item, const Tile& tile) {
    const int64_t group = problem.call.num_heads_q / problem.call.num_heads_k;
    const int64_t index = tile.begin / kTileRows;
    if (tile.head + 1 < (item.key_head + 1) * group) {
        return make_tile(problem, item, tile.head + 1, index);
    }
    Tile next = make_tile(problem, item, item.key_head * group, smaller(index + 1, item.tile_end - 1));
    next.end = index + 1 < item.tile_end ? next.end : next.begin;
    return next;
}

// Rows of a tensor like the queries.
OARLOCK_INLINE HeadRows rows_of(const FlashProblem& problem, const oarlock_vectors& tensor, const Tile& tile,
                                int64_t size) {
    return {tensor, problem.call.dtype, tile.batch, tile.head, size, tile.begin, tile.end - tile.begin};
}

// Rows of a tensor like the keys.
OARLOCK_INLINE HeadRows rows_of(const FlashProblem& problem, const oarlock_vectors& tensor, const FlashItem& item,
                                int64_t block, int64_t size) {
    const int64_t key = block * kKeyBlock;
    const int64_t count = smaller(kKeyBlock, problem.call.seqlen_k - key);
    return {tensor, problem.call.dtype, item.batch, item.key_head, size, key, count};
}

// Bit v of some[c]: vector v of the tile has a row that sees a key of chunk c of the block; of all[c]: all its rows see
// all keys. The bits of rows beyond the last one do not matter.
struct BlockClasses {
    uint32_t some[kChunksPerBlock];
    uint32_t all[kChunksPerBlock];
    uint32_t any;  // the union of `some`
};

OARLOCK_INLINE uint32_t bits_between(int64_t begin, int64_t end) {
    return begin < end ? (uint32_t{1} << end) - (uint32_t{1} << begin) : 0;
}

OARLOCK_INLINE uint32_t kept_vectors(const Tile& tile, int64_t block, int64_t seqlen_k) {
    uint32_t kept = 0;
    for (int64_t v = 0; tile.begin + v * kLanes < tile.end; ++v) {
        const int64_t row_block = (tile.begin + v * kLanes) / kKeyBlock;
        const bool keeps = tile.block_mask[row_block * (round_up(seqlen_k, kKeyBlock) / kKeyBlock) + block] != 0;
        kept |= static_cast<uint32_t>(keeps) << v;
    }
    return kept;
}

void classify(const Tile& tile, int64_t block, int64_t seqlen_k, BlockClasses& classes) {
    classes.any = 0;
    const ClassTable& mask = *tile.mask;
    if (mask.hull[block].begin >= tile.end || mask.hull[block].end <= tile.begin) {
        return;
    }
    const uint32_t kept = tile.block_mask == nullptr ? ~uint32_t{0} : kept_vectors(tile, block, seqlen_k);
    const int64_t num_chunks = round_up(seqlen_k, kChunk) / kChunk;
    for (int64_t c = 0; c < kChunksPerBlock; ++c) {
        const int64_t chunk = block * kChunksPerBlock + c;
        uint32_t some = 0;
        uint32_t all = 0;
        if (chunk < num_chunks) {
            for (int32_t i = mask.some_begin[chunk]; i < mask.some_begin[chunk + 1]; ++i) {
                const int64_t begin = larger(mask.some[i].begin, tile.begin) - tile.begin;
                const int64_t end = smaller(mask.some[i].end, tile.end) - tile.begin;
                some |= begin < end ? bits_between(begin / kLanes, (end - 1) / kLanes + 1) : 0;
            }
            for (int32_t i = mask.all_begin[chunk]; i < mask.all_begin[chunk + 1]; ++i) {
                const int64_t begin = larger(mask.all[i].begin, tile.begin) - tile.begin;
                const int64_t end = mask.all[i].end >= tile.end ? kTileRows : mask.all[i].end - tile.begin;
                all |= end > 0 ? bits_between((begin + kLanes - 1) / kLanes, end / kLanes) : 0;
            }
        }
        classes.some[c] = some & kept;
        classes.all[c] = all;
        classes.any |= classes.some[c];
    }
}

// Consecutive chunks of a block that are visible to the same vectors [first, last) of a panel (to their hull).
struct Run {
    int64_t begin;
    int64_t end;
    int first;
    int last;
};

OARLOCK_INLINE uint32_t panel_bits(uint32_t tile_bits, int64_t panel) {
    return (tile_bits >> (panel * kPanelVectors)) & ((1U << kPanelVectors) - 1);
}

OARLOCK_INLINE int64_t find_runs(const BlockClasses& classes, int64_t panel, Run* runs) {
    int64_t count = 0;
    for (int64_t c = 0; c < kChunksPerBlock; ++c) {
        const uint32_t bits = panel_bits(classes.some[c], panel);
        if (bits == 0) {
            continue;
        }
        const Run run = {c, c + 1, __builtin_ctz(bits), 32 - __builtin_clz(bits)};
        const bool continues = count > 0 && runs[count - 1].end == c && runs[count - 1].first == run.first &&
                               runs[count - 1].last == run.last;
        if (continues) {
            runs[count - 1].end = c + 1;
        } else {
            runs[count++] = run;
        }
    }
    return count;
}

// The vectors of the run whose rows do not all see all keys of the chunk.
OARLOCK_INLINE uint32_t partial_bits(const BlockClasses& classes, int64_t panel, const Run& run, int64_t chunk) {
    return bits_between(run.first, run.last) & ~panel_bits(classes.all[chunk] & classes.some[chunk], panel);
}

// Fills the hidden pairs of a chunk in the vectors `partial` of a panel. A block mask hides vectors as a whole.
OARLOCK_INLINE void hide_chunk(const Tile& tile, int64_t panel, uint32_t partial, uint32_t some,
                               const HiddenRows* hidden, float* values, float fill) {
    for (int64_t v = 0; v < kPanelVectors; ++v) {
        if ((partial >> v & 1U) == 0) {
            continue;
        }
        if ((some >> v & 1U) == 0) {
            for (int64_t key = 0; key < kChunk; ++key) {
                store(values + key * kPanel + v * kLanes, splat(fill), Whole{});
            }
        } else {
            hide(values + v * kLanes, hidden, tile.begin + panel * kPanel + v * kLanes, fill);
        }
    }
}

template <int kCount>
struct Constant {
    static constexpr int value = kCount;
};

// body(Constant<n>) for n vectors.
template <typename Body>
OARLOCK_INLINE void with_vectors(int64_t n, const Body& body) {
    if constexpr (kPanelVectors >= 3) {
        if (n == 3) {
            body(Constant<3>{});
            return;
        }
    }
    if (n == 2) {
        body(Constant<2>{});
    } else {
        body(Constant<1>{});
    }
}

// values[key][row] = K Q^T for num_keys keys (whole register tiles) and kVectors vectors of a panel; with `top`, also
// top = max(top, values) over the keys.
template <int kVectors>
__attribute__((noinline)) void scores(int64_t num_keys, const float* keys, int64_t stride, const float* queries,
                                      int64_t depth, float* values, float* top, Moves& moves) {
    for (int64_t key = 0; key < num_keys; key += kRows, keys += kRows * stride, values += kRows * kPanel) {
        Sums<kVectors> c;
        set_zero(c);
        add_product<kVectors>(c, keys, stride, queries, kPanel, depth, moves);
        store_sums(c, values, kPanel);
        if (top == nullptr) {
            continue;
        }
        for (int v = 0; v < kVectors; ++v) {
            Floats largest = load(top + v * kLanes, Whole{});
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                largest = larger_or_nan(c.at[r][v], largest);
            }
            store(top + v * kLanes, largest, Whole{});
        }
    }
}

// sums[channel][row] = factors[row] * sums + V^T P^T over num_keys keys; without factors, factor 1.
template <int kVectors>
__attribute__((noinline)) void add_weighted(int64_t num_keys, const float* values, int64_t stride, const float* weights,
                                            int64_t channels, float* sums, const float* factors, Moves& moves) {
    for (int64_t channel = 0; channel < channels; channel += kRows, values += kRows, sums += kRows * kPanel) {
        Sums<kVectors> c;
        load_sums(c, sums, kPanel);
        if (factors != nullptr) {
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) {
                const Floats factor = load(factors + v * kLanes, Whole{});
#pragma GCC unroll 8
                for (int r = 0; r < kRows; ++r) {
                    c.at[r][v] *= factor;
                }
            }
        }
        add_transposed_product<kVectors>(c, values, stride, weights, kPanel, num_keys, moves);
        store_sums(c, sums, kPanel);
    }
}

// sums[channel][row] += weights[key][row] * values[key][channel] over the visible pairs of one chunk and the vectors
// [first, last) of a panel, one by one: for values that are not finite, as 0 * NaN is NaN. weights and sums point to
// the panel, values to the chunk.
void add_visible(const Tile& tile, int64_t panel, int64_t first, int64_t last, uint32_t some, const HiddenRows* hidden,
                 const float* weights, const float* values, int64_t stride, int64_t channels, float* sums) {
    for (int64_t v = first; v < last; ++v) {
        if ((some >> v & 1U) == 0) {
            continue;
        }
        const Ints rows = iota() + static_cast<int32_t>(tile.begin + panel * kPanel + v * kLanes);
        for (int64_t channel = 0; channel < channels; ++channel) {
            float* const target = sums + channel * kPanel + v * kLanes;
            Floats sum = load(target, Whole{});
            for (int64_t key = 0; key < kChunk; ++key) {
                const Floats weight = load(weights + key * kPanel + v * kLanes, Whole{});
                sum = is_hidden(hidden[key], rows) ? sum : sum + weight * values[key * stride + channel];
            }
            store(target, sum, Whole{});
        }
    }
}

}  // namespace
}  // namespace oarlock
