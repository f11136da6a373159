// From scores to probabilities P and their gradients dS = P * (dO V^T - Delta), element by element.
#pragma once

#include "attention/flash_dropout.h"

namespace oarlock {
namespace {

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

}  // namespace
}  // namespace oarlock
