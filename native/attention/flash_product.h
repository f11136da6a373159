// The register kernel of every matrix product in the attention, for the instruction set of the including file.
//
// C[kRows][kVectors vectors] = start + sum over k of A(row, k) * B[k][kVectors vectors]
//
// A is read element by element (broadcast), B and C by whole vectors; the C tile stays in registers.
#pragma once

#include "attention/flash_moves.h"

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

template <int kVectors>
OARLOCK_INLINE void load_b(Floats (&b)[kVectors], const float* source) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
        b[v] = load(source + v * kLanes, Whole{});
    }
}

template <int kVectors>
OARLOCK_INLINE void add_row(Floats (&c)[kVectors], float a, const Floats (&b)[kVectors]) {
    const Floats a_everywhere = splat(a);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
        c[v] += a_everywhere * b[v];
    }
}

// Steps of a product for each moved piece.
constexpr int64_t kStepsPerMove = 16;

// c += sum over k < depth of A(., k) B[k] with A(row, k) = a[row * a_stride + k].
template <int kVectors>
OARLOCK_INLINE void add_product(Sums<kVectors>& c, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                                int64_t depth, Moves& moves) {
    const float* rows[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        rows[r] = a + r * a_stride;
        // Hides where the pointer comes from: the compiler would keep one more register for every row and step.
        __asm__("" : "+r"(rows[r]));
    }
    int64_t k = 0;
    for (; k + 4 <= depth; k += 4) {
        if (k % kStepsPerMove == 0) {
            moves.step();
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i, b += b_stride) {
            Floats b_vectors[kVectors];
            load_b(b_vectors, b);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                add_row(c.at[r], rows[r][k + i], b_vectors);
            }
        }
    }
    for (; k < depth; ++k, b += b_stride) {
        Floats b_vectors[kVectors];
        load_b(b_vectors, b);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            add_row(c.at[r], rows[r][k], b_vectors);
        }
    }
}

// The same with A(row, k) = a[k * a_stride + row].
template <int kVectors>
OARLOCK_INLINE void add_transposed_product(Sums<kVectors>& c, const float* a, int64_t a_stride, const float* b,
                                           int64_t b_stride, int64_t depth, Moves& moves) {
    for (int64_t begin = 0; begin < depth; begin += kStepsPerMove) {
        moves.step();
        const int64_t steps = depth - begin < kStepsPerMove ? depth - begin : kStepsPerMove;
#pragma GCC unroll 4
        for (int64_t k = 0; k < steps; ++k, a += a_stride, b += b_stride) {
            Floats b_vectors[kVectors];
            load_b(b_vectors, b);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                add_row(c.at[r], a[r], b_vectors);
            }
        }
    }
}

}  // namespace
}  // namespace oarlock
