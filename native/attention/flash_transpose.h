// Between rows of a tensor and panels, whose rows lie in the lanes of vectors.
#pragma once

#include "attention/flash_product.h"

namespace oarlock {
namespace {

template <int... kLane>
struct LaneList {};

#if defined(__AVX512F__)
using AllLanes = LaneList<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>;
#elif defined(__AVX2__)
using AllLanes = LaneList<0, 1, 2, 3, 4, 5, 6, 7>;
#else
using AllLanes = LaneList<0, 1, 2, 3>;
#endif

// Swaps the lanes of a that have the bit kStep with those of b that have not.
template <int kStep, int... kLane>
OARLOCK_INLINE void swap_lanes(Floats& a, Floats& b, LaneList<kLane...>) {
    constexpr int kSize = static_cast<int>(kLanes);
    const Floats low = __builtin_shufflevector(a, b, ((kLane & kStep) == 0 ? kLane : kSize + kLane - kStep)...);
    b = __builtin_shufflevector(a, b, ((kLane & kStep) == 0 ? kLane + kStep : kSize + kLane)...);
    a = low;
}

template <int kStep>
OARLOCK_INLINE void transpose_blocks(Floats (&rows)[kLanes]) {
    if constexpr (kStep > 0) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
            if ((i & kStep) == 0) {
                swap_lanes<kStep>(rows[i], rows[i + kStep], AllLanes{});
            }
        }
        transpose_blocks<kStep / 2>(rows);
    }
}

OARLOCK_INLINE void transpose(Floats (&rows)[kLanes]) {
    transpose_blocks<static_cast<int>(kLanes) / 2>(rows);
}

// target[c][r] = factor * source[r][c] for kPanel rows r, but with kInfinityIsNan a NaN where that is infinite. The
// number of channels c is a multiple of 16.
template <bool kInfinityIsNan>
void transpose_to_panel(const float* source, int64_t stride, int64_t channels, float factor, float* target) {
    for (int64_t r = 0; r < kPanel; r += kLanes) {
        for (int64_t c = 0; c < channels; c += kLanes) {
            Floats square[kLanes];
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) {
                const Floats values = load(source + (r + i) * stride + c, Whole{});
                square[i] = kInfinityIsNan ? values * factor + values * 0.0f : values * factor;
            }
            transpose(square);
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) {
                store(target + (c + i) * kPanel + r, square[i], Whole{});
            }
        }
    }
}

// target[r][c] = factors[r] * source[c][r] for kLanes rows r.
void transpose_from_panel(const float* source, const float* factors, int64_t channels, float* target, int64_t stride) {
    const Floats factor = load(factors, Whole{});
    for (int64_t c = 0; c < channels; c += kLanes) {
        Floats square[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
            square[i] = load(source + (c + i) * kPanel, Whole{}) * factor;
        }
        transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
            store(target + i * stride + c, square[i], Whole{});
        }
    }
}

}  // namespace
}  // namespace oarlock
