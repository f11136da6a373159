// The forward of one work item: online softmax over the visible chunks of keys.
#pragma once

#include "attention/flash_dropout.h"

namespace oarlock {
namespace {

// The softmax so far, in base 2, of one panel.
struct RunningSoftmax {
    alignas(64) float top[kPanel];   // largest score
    alignas(64) float sums[kPanel];  // of 2^(score - top)
};

struct ForwardSpace {
    KeyBlocks blocks;
    float* query_rows;  // [kTileRows][row stride of D]
    float* out_rows;    // [kLanes][row stride of Dv]
    float* queries;     // [kTilePanels][padded D][kPanel], times scale * log2(e)
    float* sums;        // [kTilePanels][padded Dv][kPanel]: O^T
    float* scores;      // [kKeyBlock][kPanel], later the probabilities
};

ForwardSpace forward_space(const FlashProblem& problem, const FlashItem& item, Carver& carver) {
    ForwardSpace space;
    space.blocks.take(problem, item, carver);
    space.query_rows = carver.take(kTileRows * row_stride(problem.call.head_dim));
    space.out_rows = carver.take(kLanes * row_stride(problem.call.value_dim));
    space.queries = carver.take(kTilePanels * padded(problem.call.head_dim) * kPanel);
    space.sums = carver.take(kTilePanels * padded(problem.call.value_dim) * kPanel);
    space.scores = carver.take(kKeyBlock * kPanel);
    return space;
}

int64_t forward_workspace(const FlashProblem& problem, const FlashItem& item) {
    Carver carver = {nullptr, 0};
    forward_space(problem, item, carver);
    return carver.used;
}

// One panel and one block of keys.
struct ForwardBlock {
    const FlashProblem& problem;
    const Tile& tile;
    const BlockClasses& classes;
    int64_t panel;
    int64_t first_key;
    const float* keys;  // of the block
    const float* values;
    const float* queries;  // of the panel, like all below
    float* sums;
    float* scores;
    RunningSoftmax& softmax;
    const RowHashes& hashes;
    bool is_finite;  // the values
    Moves& moves;
};

// Scores of a run, hidden ones -infinity, and their largest per row.
OARLOCK_INLINE void score_run(const ForwardBlock& b, const Run& run, float* top) {
    const oarlock_attention& call = b.problem.call;
    const int64_t stride = row_stride(call.head_dim);
    const int64_t shift = run.first * kLanes;
    for (int64_t begin = run.begin; begin < run.end;) {
        const uint32_t partial = partial_bits(b.classes, b.panel, run, begin);
        int64_t end = begin + 1;
        while (partial == 0 && end < run.end && partial_bits(b.classes, b.panel, run, end) == 0) {
            ++end;
        }
        float* const values = b.scores + begin * kChunk * kPanel;
        with_vectors(run.last - run.first, [&](auto n) {
            scores<n.value>((end - begin) * kChunk, b.keys + begin * kChunk * stride, stride, b.queries + shift,
                            call.head_dim, values + shift, partial == 0 ? top + shift : nullptr, b.moves);
        });
        if (partial != 0) {
            hide_chunk(b.tile, b.panel, partial, panel_bits(b.classes.some[begin], b.panel),
                       b.tile.mask->hidden + b.first_key + begin * kChunk, values, -kInfinity);
            for (int64_t lane = shift; lane < run.last * kLanes; lane += kLanes) {
                Floats largest = load(top + lane, Whole{});
                for (int64_t key = 0; key < kChunk; ++key) {
                    largest = larger_or_nan(load(values + key * kPanel + lane, Whole{}), largest);
                }
                store(top + lane, largest, Whole{});
            }
        }
        begin = end;
    }
}

// As add_weighted for a run, with values that are not finite.
void add_visible_run(const ForwardBlock& b, const Run& run, const float* factors) {
    const int64_t stride = row_stride(b.problem.call.value_dim);
    const int64_t channels = b.problem.call.value_dim;
    for (int64_t channel = 0; channel < channels; ++channel) {
        for (int64_t lane = run.first * kLanes; lane < run.last * kLanes; lane += kLanes) {
            float* const target = b.sums + channel * kPanel + lane;
            store(target, load(target, Whole{}) * load(factors + lane, Whole{}), Whole{});
        }
    }
    for (int64_t chunk = run.begin; chunk < run.end; ++chunk) {
        const int64_t key = chunk * kChunk;
        add_visible(b.tile, b.panel, run.first, run.last, panel_bits(b.classes.some[chunk], b.panel),
                    b.tile.mask->hidden + b.first_key + key, b.scores + key * kPanel, b.values + key * stride, stride,
                    channels, b.sums);
    }
}

OARLOCK_INLINE void forward_block(const ForwardBlock& b) {
    const oarlock_attention& call = b.problem.call;
    Run runs[kChunksPerBlock];
    const int64_t num_runs = find_runs(b.classes, b.panel, runs);

    alignas(64) float top[kPanel];
    alignas(64) float factors[kPanel];
    std::memcpy(top, b.softmax.top, sizeof top);
    for (int64_t i = 0; i < num_runs; ++i) {
        score_run(b, runs[i], top);
    }
    for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
        const Floats largest = load(top + lane, Whole{});
        const Floats reference = largest == splat(-kInfinity) ? Floats{} : largest;  // rows without a key so far
        const Floats factor = power_of_2(load(b.softmax.top + lane, Whole{}) - reference);
        store(b.softmax.top + lane, largest, Whole{});
        store(b.softmax.sums + lane, load(b.softmax.sums + lane, Whole{}) * factor, Whole{});
        store(top + lane, reference, Whole{});
        store(factors + lane, factor, Whole{});
    }
    const int64_t stride = row_stride(call.value_dim);
    for (int64_t i = 0; i < num_runs; ++i) {
        const Run& run = runs[i];
        const int64_t shift = run.first * kLanes;
        const int64_t first_key = run.begin * kChunk;
        const int64_t num_keys = (run.end - run.begin) * kChunk;
        float* const weights = b.scores + first_key * kPanel + shift;
        with_vectors(run.last - run.first,
                     [&](auto n) { exponentials<n.value>(num_keys, weights, top + shift, b.softmax.sums + shift); });
        if (call.dropout_threshold > 0) {
            drop(num_keys, run.last - run.first, weights, b.hashes, b.panel * kPanel + shift, b.first_key + first_key,
                 call.dropout_threshold);
        }
        if (b.is_finite) {
            with_vectors(run.last - run.first, [&](auto n) {
                add_weighted<n.value>(num_keys, b.values + first_key * stride, stride, weights,
                                      round_up(call.value_dim, kRows), b.sums + shift, factors + shift, b.moves);
            });
        } else {
            add_visible_run(b, run, factors);
        }
        for (int64_t lane = shift; lane < run.last * kLanes; lane += kLanes) {
            store(factors + lane, splat(1.0f), Whole{});  // the sums are scaled now
        }
    }
}

// Writes out and lse of a panel.
void finish_panel(const FlashProblem& problem, const Tile& tile, int64_t panel, const RunningSoftmax& softmax,
                  const float* sums, float* out_rows) {
    const oarlock_attention& call = problem.call;
    const int64_t row = tile.begin + panel * kPanel;
    const float scale = call.dropout_threshold > 0 ? call.dropout_scale : 1.0f;
    alignas(64) float factors[kPanel];
    float* const lse = problem.lse + (tile.batch * call.num_heads_q + tile.head) * call.seqlen_q + row;
    for (int64_t i = 0; i < kPanel; ++i) {
        const bool is_blind = softmax.sums[i] == 0.0f;
        factors[i] = is_blind ? 0.0f : scale / softmax.sums[i];
        if (row + i < tile.end) {
            lse[i] = is_blind ? -kInfinity : softmax.top[i] * kLn2 + __builtin_logf(softmax.sums[i]);
        }
    }
    HeadRows out = rows_of(problem, problem.out, tile, call.value_dim);
    out.token = row;
    out.count = smaller(kPanel, tile.end - row);
    write_panel(out, sums, factors, out_rows);
}

// Begins to bring what a tile needs.
void request_tile(const FlashProblem& problem, const FlashItem& item, const Tile& tile, const ForwardSpace& space,
                  Moves& moves) {
    const HeadRows queries = rows_of(problem, problem.query, tile, problem.call.head_dim);
    request(queries, round_up(queries.count, kPanel), space.query_rows, moves);
    request_keys(problem, item, tile, space.blocks, moves);
}

// What it needs has been moved; afterwards so has what the next tile needs.
void forward_tile(const FlashProblem& problem, const FlashItem& item, const Tile& tile, const ForwardSpace& space,
                  Moves& moves) {
    const oarlock_attention& call = problem.call;
    const int64_t query_size = padded(call.head_dim) * kPanel;
    const int64_t sums_size = padded(call.value_dim) * kPanel;
    const int64_t num_panels = (tile.end - tile.begin + kPanel - 1) / kPanel;
    RunningSoftmax softmax[kTilePanels];
    RowHashes hashes;
    arrive(rows_of(problem, problem.query, tile, call.head_dim), num_panels * kPanel, space.query_rows);
    for (int64_t panel = 0; panel < num_panels; ++panel) {
        // All scores of an infinite query might be -infinity, as if it saw nothing.
        transpose_to_panel<true>(space.query_rows + panel * kPanel * row_stride(call.head_dim),
                                 row_stride(call.head_dim), padded(call.head_dim), call.scale * kLog2E,
                                 space.queries + panel * query_size);
        for (int64_t i = 0; i < kPanel; ++i) {
            softmax[panel].top[i] = -kInfinity;
            softmax[panel].sums[i] = 0.0f;
        }
    }
    std::memset(space.sums, 0, static_cast<size_t>(num_panels * sums_size) * sizeof(float));
    if (call.dropout_threshold > 0) {
        hashes.fill(call, tile);
    }
    request_tile(problem, item, next_tile(problem, item, tile), space, moves);
    touch(rows_of(problem, problem.out, tile, call.value_dim), moves);
    BlockClasses classes;
    for (int64_t block = item.block_begin; block < item.block_end; ++block) {
        classify(tile, block, call.seqlen_k, classes);
        if (classes.any == 0) {
            continue;
        }
        const int64_t place = use_keys(problem, item, block, space.blocks, false, moves);
        for (int64_t panel = 0; panel < num_panels; ++panel) {
            if (panel_bits(classes.any, panel) != 0) {
                forward_block({problem, tile, classes, panel, block * kKeyBlock, space.blocks.keys_at(problem, place),
                               space.blocks.values_at(problem, place), space.queries + panel * query_size,
                               space.sums + panel * sums_size, space.scores, softmax[panel], hashes,
                               space.blocks.is_finite[place], moves});
            }
        }
    }
    moves.finish();
    for (int64_t panel = 0; panel < num_panels; ++panel) {
        finish_panel(problem, tile, panel, softmax[panel], space.sums + panel * sums_size, space.out_rows);
    }
}

void forward(const FlashProblem& problem, const FlashItem& item, float* workspace) {
    Carver carver = {workspace, 0};
    const ForwardSpace space = forward_space(problem, item, carver);
    space.blocks.clear(item.span);
    Moves moves;
    const int64_t group = problem.call.num_heads_q / problem.call.num_heads_k;
    request_tile(problem, item, make_tile(problem, item, item.key_head * group, item.tile_begin), space, moves);
    moves.finish();
    for (int64_t index = item.tile_begin; index < item.tile_end; ++index) {
        for (int64_t head = item.key_head * group; head < (item.key_head + 1) * group; ++head) {
            forward_tile(problem, item, make_tile(problem, item, head, index), space, moves);
        }
    }
}

}  // namespace
}  // namespace oarlock
