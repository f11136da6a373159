// The backward of one work item. With P = exp(S - lse) and Delta = rowsum(dO * O) - dlse:
//     dS = P * (dO V^T - Delta) * scale,  dQ += dS K,  dK += dS^T Q,  dV += P^T dO
// dQ of a tile is complete after its last block of keys; dK and dV are summed over all tiles of the item.
#pragma once

#include "attention/flash_dropout.h"

namespace oarlock {
namespace {

struct BackwardSpace {
    // [span][kKeyBlock][row stride of D or Dv], block b at b % span
    float* keys;
    float* values;
    float* finite_keys;  // written where some keys are not finite
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
    space.finite_keys = carver.take(num_keys * key_stride);  // last: rarely touched
    return space;
}

int64_t backward_workspace(const FlashProblem& problem, const FlashItem& item) {
    Carver carver = {nullptr, 0};
    backward_space(problem, item, carver);
    return carver.used;
}

// weights: scores -> P; slopes: scale * dO V^T -> dS.
template <int kVectors>
__attribute__((noinline)) void slopes_of(int64_t num_keys, float* weights, float* slopes, const float* lse,
                                         const float* delta) {
    Floats lses[kVectors];
    Floats deltas[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        lses[v] = load(lse + v * kLanes, Whole{});
        deltas[v] = load(delta + v * kLanes, Whole{});
    }
    for (int64_t key = 0; key < num_keys; ++key, weights += kPanel, slopes += kPanel) {
        for (int v = 0; v < kVectors; ++v) {
            const Floats p = power_of_2(load(weights + v * kLanes, Whole{}) - lses[v]);
            store(weights + v * kLanes, p, Whole{});
            store(slopes + v * kLanes, p * (load(slopes + v * kLanes, Whole{}) - deltas[v]), Whole{});
        }
    }
}

// The same with dropout: Z = scale or 0, weights -> P * Z, slopes -> P * (Z * slopes - Delta).
void slopes_of_dropped(int64_t num_keys, int64_t num_vectors, float* weights, float* slopes, const float* lse,
                       const float* delta, const RowHashes& hashes, int64_t first_row, int64_t first_key,
                       uint32_t threshold, float scale) {
    for (int64_t key = 0; key < num_keys; ++key, weights += kPanel, slopes += kPanel) {
        for (int64_t lane = 0; lane < num_vectors * kLanes; lane += kLanes) {
            const Floats z = is_kept(hashes, first_row + lane, first_key + key, threshold) ? splat(scale) : Floats{};
            const Floats p = power_of_2(load(weights + lane, Whole{}) - load(lse + lane, Whole{}));
            const Floats slope = load(slopes + lane, Whole{}) * z - load(delta + lane, Whole{});
            store(weights + lane, p * z, Whole{});
            store(slopes + lane, p * slope, Whole{});
        }
    }
}

// sums[key][kVectors vectors] += A(key, row) * rows[row] over the vectors [first, last) of the tile's rows; A is stored
// as [kTilePanels][kKeyBlock][kPanel].
template <int kVectors>
__attribute__((noinline)) void add_over_rows(int64_t num_keys, const float* a, int64_t first, int64_t last,
                                             const float* rows, int64_t stride, float* sums) {
    for (int64_t key = 0; key < num_keys; key += kRows, a += kRows * kPanel, sums += kRows * stride) {
        Sums<kVectors> c;
        load_sums(c, sums, stride);
        for (int64_t v = first; v < last;) {
            const int64_t panel = v / kPanelVectors;
            const int64_t end = smaller(last, (panel + 1) * kPanelVectors);
            const int64_t lane = (v - panel * kPanelVectors) * kLanes;
            add_product<kVectors>(c, a + panel * kKeyBlock * kPanel + lane, kPanel, rows + v * kLanes * stride, stride,
                                  (end - v) * kLanes);
            v = end;
        }
        store_sums(c, sums, stride);
    }
}

// The tile's rows, of which each thread has one at a time.
struct BackwardTile {
    const FlashProblem& problem;
    const Tile& tile;
    const BackwardSpace& space;
    int64_t num_panels;
    alignas(64) float lse[kTileRows];    // in base 2; +infinity for rows without keys and beyond the last row
    alignas(64) float delta[kTileRows];  // times scale
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

void load_tile(BackwardTile& t) {
    const oarlock_attention& call = t.problem.call;
    const Tile& tile = t.tile;
    const int64_t count = tile.end - tile.begin;
    const int64_t padded_count = t.num_panels * kPanel;
    const int64_t key_stride = row_stride(call.head_dim);
    const int64_t value_stride = row_stride(call.value_dim);
    stage_rows(t.problem.query, call.dtype, tile.batch, tile.begin, tile.head, count, padded_count, call.head_dim,
               t.space.query_rows);
    stage_rows(t.problem.grad_out, call.dtype, tile.batch, tile.begin, tile.head, count, padded_count, call.value_dim,
               t.space.grad_rows);
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

// The keys of one block, as the item staged them.
struct BackwardKeys {
    int64_t first_key;
    const float* keys;
    const float* finite_keys;
    const float* values;
    float* key_sums;
    float* value_sums;
};

// P, dS and dQ of one panel and a run of chunks.
OARLOCK_INLINE void backward_run(BackwardTile& t, const BackwardKeys& block, const BlockClasses& classes, int64_t panel,
                                 const Run& run) {
    const oarlock_attention& call = t.problem.call;
    const int64_t key_stride = row_stride(call.head_dim);
    const int64_t value_stride = row_stride(call.value_dim);
    const int64_t lane = run.first * kLanes;
    const int64_t row = panel * kPanel;
    const int64_t first_key = run.begin * kChunk;
    const int64_t num_keys = (run.end - run.begin) * kChunk;
    float* const weights = t.space.weights + (panel * kKeyBlock + first_key) * kPanel;
    float* const slopes = t.space.slopes + (panel * kKeyBlock + first_key) * kPanel;
    with_vectors(run.last - run.first, [&](auto n) {
        scores<n.value>(num_keys, block.keys + first_key * key_stride, key_stride,
                        t.space.queries + row * padded(call.head_dim) + lane, call.head_dim, weights + lane, nullptr,
                        t.prefetch);
        scores<n.value>(num_keys, block.values + first_key * value_stride, value_stride,
                        t.space.grads + row * padded(call.value_dim) + lane, call.value_dim, slopes + lane, nullptr,
                        t.prefetch);
        if (call.dropout_threshold > 0) {
            slopes_of_dropped(num_keys, n.value, weights + lane, slopes + lane, t.lse + row + lane,
                              t.delta + row + lane, t.hashes, row + lane, block.first_key + first_key,
                              call.dropout_threshold, call.dropout_scale);
        } else {
            slopes_of<n.value>(num_keys, weights + lane, slopes + lane, t.lse + row + lane, t.delta + row + lane);
        }
    });
    // Only now: the row of a hidden pair may have a NaN in its lse.
    for (int64_t chunk = run.begin; chunk < run.end; ++chunk) {
        const uint32_t partial = partial_bits(classes, panel, run, chunk);
        if (partial != 0) {
            const uint32_t some = panel_bits(classes.some[chunk], panel);
            const HiddenRows* const hidden = t.tile.mask->hidden + block.first_key + chunk * kChunk;
            const int64_t offset = (chunk - run.begin) * kChunk * kPanel;
            hide_chunk(t.tile, panel, partial, some, hidden, weights + offset, 0.0f);
            hide_chunk(t.tile, panel, partial, some, hidden, slopes + offset, 0.0f);
        }
    }
    with_vectors(run.last - run.first, [&](auto n) {
        add_weighted<n.value>(num_keys, block.finite_keys + first_key * key_stride, key_stride, slopes + lane,
                              round_up(call.head_dim, kRows), t.space.query_sums + row * padded(call.head_dim) + lane,
                              nullptr, t.prefetch);
    });
}

// dV or dK of a run of chunks, over the vectors [first, last) of the tile's rows.
OARLOCK_INLINE void add_key_gradients(int64_t num_keys, const float* a, int64_t first, int64_t last, const float* rows,
                                      int64_t channels, float* sums) {
    const int64_t stride = row_stride(channels);
    int64_t left = padded(channels) / kLanes;
    while (left > 0) {
        const int64_t count = left == 4 ? 2 : smaller(left, kPanelVectors);
        with_vectors(count, [&](auto n) { add_over_rows<n.value>(num_keys, a, first, last, rows, stride, sums); });
        left -= count;
        rows += count * kLanes;
        sums += count * kLanes;
    }
}

void backward_block(BackwardTile& t, const BackwardKeys& block, const BlockClasses& classes) {
    const oarlock_attention& call = t.problem.call;
    uint32_t computed[kChunksPerBlock] = {};  // vectors of the tile
    for (int64_t panel = 0; panel < t.num_panels; ++panel) {
        Run runs[kChunksPerBlock];
        const int64_t num_runs = find_runs(classes, panel, runs);
        for (int64_t i = 0; i < num_runs; ++i) {
            backward_run(t, block, classes, panel, runs[i]);
            for (int64_t chunk = runs[i].begin; chunk < runs[i].end; ++chunk) {
                computed[chunk] |= bits_between(runs[i].first, runs[i].last) << (panel * kPanelVectors);
            }
        }
    }
    for (int64_t begin = 0; begin < kChunksPerBlock;) {
        const uint32_t bits = computed[begin];
        int64_t end = begin + 1;
        while (end < kChunksPerBlock && computed[end] == bits) {
            ++end;
        }
        if (bits != 0) {
            const int64_t first = __builtin_ctz(bits);
            const int64_t last = 32 - __builtin_clz(bits);
            const int64_t num_keys = (end - begin) * kChunk;
            const int64_t key = begin * kChunk;
            for (int64_t v = first; v < last; ++v) {  // gaps between the visible vectors
                const int64_t offset = (v / kPanelVectors * kKeyBlock + key) * kPanel + v % kPanelVectors * kLanes;
                for (int64_t i = 0; i < num_keys && (bits >> v & 1U) == 0; ++i) {
                    store(t.space.weights + offset + i * kPanel, Floats{}, Whole{});
                    store(t.space.slopes + offset + i * kPanel, Floats{}, Whole{});
                }
            }
            add_key_gradients(num_keys, t.space.weights + key * kPanel, first, last, t.space.grad_rows, call.value_dim,
                              block.value_sums + key * row_stride(call.value_dim));
            add_key_gradients(num_keys, t.space.slopes + key * kPanel, first, last, t.space.query_rows, call.head_dim,
                              block.key_sums + key * row_stride(call.head_dim));
        }
        begin = end;
    }
}

// Brings a block of keys and values into its place, with sums of 0 if it is new there.
BackwardKeys stage_keys(const FlashProblem& problem, const FlashItem& item, const BackwardSpace& space, int64_t block) {
    const oarlock_attention& call = problem.call;
    const int64_t place = block % item.span;
    const int64_t key_size = kKeyBlock * row_stride(call.head_dim);
    const int64_t value_size = kKeyBlock * row_stride(call.value_dim);
    float* const keys = space.keys + place * key_size;
    float* const values = space.values + place * value_size;
    float* const finite_keys = space.finite_keys + place * key_size;
    BackwardKeys staged = {block * kKeyBlock,
                           keys,
                           keys,
                           values,
                           space.key_sums + place * key_size,
                           space.value_sums + place * value_size};
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
        if (!space.finite[place]) {
            // For dQ += dS K, where dS is 0 for hidden pairs, and 0 * NaN would be NaN. For visible pairs dS is NaN.
            for (int64_t i = 0; i < key_size; ++i) {
                finite_keys[i] = keys[i] * 0.0f == 0.0f ? keys[i] : 0.0f;
            }
        }
        std::memset(staged.key_sums, 0, static_cast<size_t>(key_size) * sizeof(float));
        std::memset(staged.value_sums, 0, static_cast<size_t>(value_size) * sizeof(float));
        space.is_summed[block] = true;
    }
    staged.finite_keys = space.finite[place] ? keys : finite_keys;
    return staged;
}

void backward_tile(const FlashProblem& problem, const FlashItem& item, const Tile& tile, const BackwardSpace& space) {
    const oarlock_attention& call = problem.call;
    BackwardTile t = {problem, tile, space, (tile.end - tile.begin + kPanel - 1) / kPanel, {}, {}, {}, {}};
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
