// The backward of one tile of rows and one block of keys: P, dS, and the shares of dQ, dK and dV.
#pragma once

#include "attention/flash_backward_tile.h"
#include "attention/flash_slopes.h"

namespace oarlock {
namespace {

// sums[key][kVectors vectors] += A(key, row) * rows[row] over the vectors [first, last) of the tile's rows; A is stored
// as [kTilePanels][kKeyBlock][kPanel].
template <int kVectors>
__attribute__((noinline)) void add_over_rows(int64_t num_keys, const float* a, int64_t first, int64_t last,
                                             const float* rows, int64_t stride, float* sums, Moves& moves) {
    for (int64_t key = 0; key < num_keys; key += kRows, a += kRows * kPanel, sums += kRows * stride) {
        Sums<kVectors> c;
        load_sums(c, sums, stride);
        for (int64_t v = first; v < last;) {
            const int64_t panel = v / kPanelVectors;
            const int64_t end = smaller(last, (panel + 1) * kPanelVectors);
            const int64_t lane = (v - panel * kPanelVectors) * kLanes;
            add_product<kVectors>(c, a + panel * kKeyBlock * kPanel + lane, kPanel, rows + v * kLanes * stride, stride,
                                  (end - v) * kLanes, moves);
            v = end;
        }
        store_sums(c, sums, stride);
    }
}

// The keys of one block, as the item staged them.
struct BackwardKeys {
    int64_t first_key;
    const float* keys;
    const float* values;
    float* key_sums;
    float* value_sums;
    bool are_keys_finite;
};

// Zeroes one chunk of a panel from row `first` on: the score of no row and an infinite key is NaN.
void clear_beyond(int64_t first, float* values) {
    for (int64_t key = 0; key < kChunk; ++key) {
        for (int64_t i = first; i < kPanel; ++i) {
            values[key * kPanel + i] = 0.0f;
        }
    }
}

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
                        t.moves);
        scores<n.value>(num_keys, block.values + first_key * value_stride, value_stride,
                        t.space.grads + row * padded(call.value_dim) + lane, call.value_dim, slopes + lane, nullptr,
                        t.moves);
        if (call.dropout_threshold > 0) {
            slopes_of_dropped(num_keys, n.value, weights + lane, slopes + lane, t.lse + row + lane,
                              t.delta + row + lane, t.hashes, row + lane, block.first_key + first_key,
                              call.dropout_threshold, call.dropout_scale);
        } else {
            slopes_of<n.value>(num_keys, weights + lane, slopes + lane, t.lse + row + lane, t.delta + row + lane);
        }
    });
    float* const query_sums = t.space.query_sums + row * padded(call.head_dim);
    // Only now: the row of a hidden pair may have a NaN in its lse.
    for (int64_t chunk = run.begin; chunk < run.end; ++chunk) {
        const uint32_t partial = partial_bits(classes, panel, run, chunk);
        const uint32_t some = panel_bits(classes.some[chunk], panel);
        const HiddenRows* const hidden = t.tile.mask->hidden + block.first_key + chunk * kChunk;
        if (partial != 0) {
            const int64_t offset = (chunk - run.begin) * kChunk * kPanel;
            hide_chunk(t.tile, panel, partial, some, hidden, weights + offset, 0.0f);
            hide_chunk(t.tile, panel, partial, some, hidden, slopes + offset, 0.0f);
        }
        if (!block.are_keys_finite) {
            const int64_t offset = (chunk - run.begin) * kChunk * kPanel;
            clear_beyond(t.tile.end - t.tile.begin - row, weights + offset);
            clear_beyond(t.tile.end - t.tile.begin - row, slopes + offset);
            add_visible(t.tile, panel, run.first, run.last, some, hidden,
                        slopes + (chunk - run.begin) * kChunk * kPanel, block.keys + chunk * kChunk * key_stride,
                        key_stride, call.head_dim, query_sums);
        }
    }
    if (block.are_keys_finite) {
        with_vectors(run.last - run.first, [&](auto n) {
            add_weighted<n.value>(num_keys, block.keys + first_key * key_stride, key_stride, slopes + lane,
                                  round_up(call.head_dim, kRows), query_sums + lane, nullptr, t.moves);
        });
    }
}

// dV or dK of a run of chunks, over the vectors [first, last) of the tile's rows.
OARLOCK_INLINE void add_key_gradients(int64_t num_keys, const float* a, int64_t first, int64_t last, const float* rows,
                                      int64_t channels, float* sums, Moves& moves) {
    const int64_t stride = row_stride(channels);
    int64_t left = padded(channels) / kLanes;
    while (left > 0) {
        const int64_t count = left == 4 ? 2 : smaller(left, kPanelVectors);
        with_vectors(count,
                     [&](auto n) { add_over_rows<n.value>(num_keys, a, first, last, rows, stride, sums, moves); });
        left -= count;
        rows += count * kLanes;
        sums += count * kLanes;
    }
}

// sums[key][channel] += a[key][row] * rows[row][channel] over the visible pairs of one chunk and the vectors `some` of
// the tile, one by one: for rows that are not finite, as 0 * NaN is NaN. a: [kTilePanels][kKeyBlock][kPanel], from the
// chunk on; sums: of the chunk.
void add_visible_rows(const Tile& tile, uint32_t some, const HiddenRows* hidden, const float* a, const float* rows,
                      int64_t channels, float* sums) {
    const int64_t stride = row_stride(channels);
    for (int64_t i = 0; i < tile.end - tile.begin; ++i) {
        const int64_t panel = i / kPanel;
        if ((some >> (i / kLanes) & 1U) == 0) {
            continue;
        }
        const auto row = static_cast<int32_t>(tile.begin + i);
        for (int64_t key = 0; key < kChunk; ++key) {
            const RowRange(&ranges)[2] = hidden[key].ranges;
            const bool sees_key =
                (row < ranges[0].begin || row >= ranges[0].end) && (row < ranges[1].begin || row >= ranges[1].end);
            const float factor = a[(panel * kKeyBlock + key) * kPanel + i % kPanel];
            for (int64_t d = 0; d < channels && sees_key; ++d) {
                sums[key * stride + d] += factor * rows[i * stride + d];
            }
        }
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
    for (int64_t chunk = 0; chunk < kChunksPerBlock && !t.are_rows_finite; ++chunk) {
        const int64_t key = chunk * kChunk;
        const HiddenRows* const hidden = t.tile.mask->hidden + block.first_key + key;
        add_visible_rows(t.tile, classes.some[chunk], hidden, t.space.weights + key * kPanel, t.grad_rows,
                         call.value_dim, block.value_sums + key * row_stride(call.value_dim));
        add_visible_rows(t.tile, classes.some[chunk], hidden, t.space.slopes + key * kPanel, t.query_rows,
                         call.head_dim, block.key_sums + key * row_stride(call.head_dim));
    }
    for (int64_t begin = 0; begin < kChunksPerBlock && t.are_rows_finite;) {
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
            add_key_gradients(num_keys, t.space.weights + key * kPanel, first, last, t.grad_rows, call.value_dim,
                              block.value_sums + key * row_stride(call.value_dim), t.moves);
            add_key_gradients(num_keys, t.space.slopes + key * kPanel, first, last, t.query_rows, call.head_dim,
                              block.key_sums + key * row_stride(call.head_dim), t.moves);
        }
        begin = end;
    }
}

}  // namespace
}  // namespace oarlock
