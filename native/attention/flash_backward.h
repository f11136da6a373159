// The backward of one work item. With P = exp(S - lse) and Delta = rowsum(dO * O) - dlse:
//     dS = P * (dO V^T - Delta) * scale,  dQ += dS K,  dK += dS^T Q,  dV += P^T dO
// dQ of a tile is complete after its last block of keys; dK and dV are summed over all tiles of the item.
#pragma once

#include "attention/flash_dropout.h"

namespace oarlock {
namespace {

struct BackwardSpace {
    float* keys;         // [keys of the item][row stride of D]
    float* values;       // [keys of the item][row stride of Dv]
    float* finite_keys;  // as keys, used if some are not finite
    float* key_sums;     // as keys: dK
    float* value_sums;   // as values: dV
    float* query_rows;   // [kTileRows][row stride of D]
    float* grad_rows;    // [kTileRows][row stride of Dv]: dO
    float* queries;      // [kTilePanels][padded D][kPanel], times scale * log2(e)
    float* grads;        // [kTilePanels][padded Dv][kPanel], times scale
    float* query_sums;   // [kTilePanels][padded D][kPanel]: dQ^T
    float* weights;      // [kTilePanels][kKeyBlock][kPanel]: P
    float* slopes;       // likewise: dS
    float* rows;         // 4 rows, for input and output
};

BackwardSpace backward_space(const FlashProblem& problem, int64_t num_chunks, bool has_sums, Carver& carver) {
    const int64_t key_stride = row_stride(problem.call.head_dim);
    const int64_t value_stride = row_stride(problem.call.value_dim);
    const int64_t num_keys = num_chunks * kChunk;
    BackwardSpace space;
    space.keys = carver.take(num_keys * key_stride);
    space.values = carver.take(num_keys * value_stride);
    space.key_sums = has_sums ? carver.take(num_keys * key_stride) : nullptr;
    space.value_sums = has_sums ? carver.take(num_keys * value_stride) : nullptr;
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

int64_t backward_workspace(const FlashProblem& problem, int64_t num_chunks) {
    Carver carver = {nullptr, 0};
    backward_space(problem, num_chunks, true, carver);
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
            add_product<kVectors, false>(c, a + panel * kKeyBlock * kPanel + lane, kPanel, rows + v * kLanes * stride,
                                         stride, (end - v) * kLanes);
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
OARLOCK_INLINE void backward_run(const BackwardTile& t, const BackwardKeys& block, const BlockClasses& classes,
                                 int64_t panel, const Run& run) {
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
                        t.space.queries + row * padded(call.head_dim) + lane, call.head_dim, weights + lane, nullptr);
        scores<n.value>(num_keys, block.values + first_key * value_stride, value_stride,
                        t.space.grads + row * padded(call.value_dim) + lane, call.value_dim, slopes + lane, nullptr);
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
                              nullptr);
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

void backward_block(const BackwardTile& t, const BackwardKeys& block, const BlockClasses& classes) {
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

void backward_tile(const FlashProblem& problem, const FlashItem& item, const Tile& tile, const BackwardSpace& space,
                   const float* finite_keys) {
    const oarlock_attention& call = problem.call;
    BackwardTile t = {problem, tile, space, (tile.end - tile.begin + kPanel - 1) / kPanel, {}, {}, {}};
    load_tile(t);
    const int64_t key_stride = row_stride(call.head_dim);
    const int64_t value_stride = row_stride(call.value_dim);
    BlockClasses classes;
    for (int64_t block = item.chunk_begin / kChunksPerBlock; block * kChunksPerBlock < item.chunk_end; ++block) {
        classify(tile, block, item.chunk_begin, item.chunk_end, call.seqlen_k, classes);
        if (classes.any != 0) {
            const int64_t first_key = block * kKeyBlock;
            const int64_t staged_key = first_key - item.chunk_begin * kChunk;  // negative in the first block, perhaps
            backward_block(t,
                           {first_key, space.keys + staged_key * key_stride, finite_keys + staged_key * key_stride,
                            space.values + staged_key * value_stride, space.key_sums + staged_key * key_stride,
                            space.value_sums + staged_key * value_stride},
                           classes);
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

// Writes the gradients of all keys of the item's head from its sums; 0 outside of its chunks.
void write_key_gradients(const FlashProblem& problem, const FlashItem& item, const BackwardSpace& space) {
    const oarlock_attention& call = problem.call;
    const int64_t key_stride = row_stride(call.head_dim);
    const int64_t value_stride = row_stride(call.value_dim);
    std::memset(space.rows, 0, static_cast<size_t>(larger(key_stride, value_stride)) * sizeof(float));
    for (int64_t key = 0; key < call.seqlen_k; ++key) {
        const bool is_inside = key >= item.chunk_begin * kChunk && key < item.chunk_end * kChunk;
        const int64_t staged = key - item.chunk_begin * kChunk;
        write_row(tensor_row(problem.grad_key, call.dtype, item.batch, key, item.key_head), call.head_dim,
                  is_inside ? space.key_sums + staged * key_stride : space.rows);
        write_row(tensor_row(problem.grad_value, call.dtype, item.batch, key, item.key_head), call.value_dim,
                  is_inside ? space.value_sums + staged * value_stride : space.rows);
    }
}

void backward(const FlashProblem& problem, const FlashItem& item, float* workspace) {
    const oarlock_attention& call = problem.call;
    const int64_t num_chunks = item.chunk_end - item.chunk_begin;
    const bool is_whole = item.grad_key_sums == nullptr;
    Carver carver = {workspace, 0};
    BackwardSpace space = backward_space(problem, num_chunks, is_whole, carver);
    if (!is_whole) {
        space.key_sums = item.grad_key_sums;
        space.value_sums = item.grad_value_sums;
    }
    const int64_t first_key = item.chunk_begin * kChunk;
    const int64_t padded_keys = num_chunks * kChunk;
    const int64_t num_keys = smaller(padded_keys, call.seqlen_k - first_key);
    const int64_t key_size = padded_keys * row_stride(call.head_dim);
    const int64_t value_size = padded_keys * row_stride(call.value_dim);
    const bool is_finite = stage_rows(problem.key, call.dtype, item.batch, first_key, item.key_head, num_keys,
                                      padded_keys, call.head_dim, space.keys);
    stage_rows(problem.value, call.dtype, item.batch, first_key, item.key_head, num_keys, padded_keys, call.value_dim,
               space.values);
    if (!is_finite) {
        // For dQ += dS K, where dS is 0 for hidden pairs and 0 * NaN would be NaN. For visible ones dS itself is NaN.
        for (int64_t i = 0; i < key_size; ++i) {
            space.finite_keys[i] = space.keys[i] * 0.0f == 0.0f ? space.keys[i] : 0.0f;
        }
    }
    std::memset(space.key_sums, 0, static_cast<size_t>(key_size) * sizeof(float));
    std::memset(space.value_sums, 0, static_cast<size_t>(value_size) * sizeof(float));
    const int64_t group = call.num_heads_q / call.num_heads_k;
    for (int64_t head = item.key_head * group; head < (item.key_head + 1) * group; ++head) {
        for (int64_t index = item.tile_begin; index < item.tile_end; ++index) {
            backward_tile(problem, item, make_tile(problem, item, head, index), space,
                          is_finite ? space.keys : space.finite_keys);
        }
    }
    if (is_whole) {
        write_key_gradients(problem, item, space);
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
            if (key < item.chunk_begin * kChunk || key >= item.chunk_end * kChunk) {
                continue;
            }
            const float* const row = item.*part + (key - item.chunk_begin * kChunk) * stride;
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
