// The register kernel of every matrix product in the attention, for the instruction set of the including file.
//
// C[kRows][kVectors vectors] = start + sum over k of A(row, k) * B[k][kVectors vectors]
//
// A is read element by element (broadcast), B and C by whole vectors; the C tile stays in registers.
#pragma once

#include "ops/vector.h"

namespace oarlock {
namespace {

#if defined(__AVX512F__) || defined(__aarch64__)  // 32 registers: 24 sums, 3 of B, the broadcasts
constexpr int kRows = 8;
constexpr int kPanelVectors = 3;
#elif defined(__AVX2__)  // 16 registers: 12 sums, 3 of B, 1 broadcast
constexpr int kRows = 4;
constexpr int kPanelVectors = 3;
#else                    // 16 registers without a fused multiply-add: 8 sums, 2 of B, the broadcasts and their products
constexpr int kRows = 4;
constexpr int kPanelVectors = 2;
#endif

// Queries of one panel: they lie in the lanes of kPanelVectors vectors.
constexpr int64_t kPanel = kPanelVectors * kLanes;

template <int kVectors>
struct Sums {
    Floats at[kRows][kVectors];
};

template <int kVectors>
OARLOCK_INLINE void set_zero(Sums<kVectors>& c) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            c.at[r][v] = Floats{};
        }
    }
}

template <int kVectors>
OARLOCK_INLINE void load_sums(Sums<kVectors>& c, const float* source, int64_t stride) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            c.at[r][v] = load(source + r * stride + v * kLanes, Whole{});
        }
    }
}

template <int kVectors>
OARLOCK_INLINE void store_sums(const Sums<kVectors>& c, float* target, int64_t stride) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            store(target + r * stride + v * kLanes, c.at[r][v], Whole{});
        }
    }
}

// c += A(., k) B[k]. A(row, k) is a[row * stride + k], or a[row + k * stride] with kRowsAdjacent.
template <int kVectors, bool kRowsAdjacent>
OARLOCK_INLINE void add_outer(Sums<kVectors>& c, const float* a, int64_t stride, const float* b) {
    Floats b_vectors[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
        b_vectors[v] = load(b + v * kLanes, Whole{});
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        const Floats a_everywhere = splat(a[kRowsAdjacent ? r : r * stride]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            c.at[r][v] += a_everywhere * b_vectors[v];
        }
    }
}

template <int kVectors, bool kRowsAdjacent>
OARLOCK_INLINE void add_product(Sums<kVectors>& c, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                                int64_t depth) {
    const int64_t a_step = kRowsAdjacent ? a_stride : 1;
    int64_t k = 0;
    for (; k + 4 <= depth; k += 4) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            add_outer<kVectors, kRowsAdjacent>(c, a + i * a_step, a_stride, b + i * b_stride);
        }
        a += 4 * a_step;
        b += 4 * b_stride;
    }
    for (; k < depth; ++k, a += a_step, b += b_stride) {
        add_outer<kVectors, kRowsAdjacent>(c, a, a_stride, b);
    }
}

}  // namespace
}  // namespace oarlock
