// The element-wise passes between the products: exponentials, hidden pairs, dropout.
#pragma once

#include "attention/flash_rows.h"

namespace oarlock {
namespace {

constexpr float kLog2E = 1.44269504088896f;
constexpr float kLn2 = 0.693147180559945f;
constexpr float kInfinity = __builtin_inff();

// The larger one; a NaN of b stays. One instruction where x86 has it.
OARLOCK_INLINE Floats larger_or_nan(Floats a, Floats b) {
    return a > b ? a : b;
}

// 2^x for x <= 0, relative error 1e-7; exactly 0 from -127 on; NaN stays NaN.
OARLOCK_INLINE Floats power_of_2(Floats x) {
    constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, left in the low bits
    x = larger_or_nan(splat(-127.0f), x);
    const Floats shifted = x + kRounder;
    const Floats f = x - (shifted - kRounder);
    Floats p = f * 1.326472731e-3f + 9.671512991e-3f;
    p = p * f + 5.550733581e-2f;
    p = p * f + 2.402224243e-1f;
    p = p * f + 6.931470037e-1f;
    p = p * f + 1.0f;
    return p * float_of_bits((bits_of(shifted) << 23) + 0x3f800000);
}

OARLOCK_INLINE Ints iota() {
    int32_t lanes[kLanes];
    for (int32_t i = 0; i < static_cast<int32_t>(kLanes); ++i) {
        lanes[i] = i;
    }
    Ints v;
    std::memcpy(&v, lanes, sizeof v);
    return v;
}

// All bits of a lane set: the row does not see the key.
OARLOCK_INLINE Ints is_hidden(const HiddenRows& hidden, Ints rows) {
    const Ints first = (rows >= hidden.ranges[0].begin) & (rows < hidden.ranges[0].end);
    const Ints second = (rows >= hidden.ranges[1].begin) & (rows < hidden.ranges[1].end);
    return first | second;
}

// Sets the hidden pairs of one chunk and one vector of rows. values: [kChunk][kPanel].
OARLOCK_INLINE void hide(float* values, const HiddenRows* hidden, int64_t first_row, float fill) {
    const Ints rows = iota() + static_cast<int32_t>(first_row);
    for (int64_t key = 0; key < kChunk; ++key, values += kPanel) {
        const Floats value = load(values, Whole{});
        store(values, is_hidden(hidden[key], rows) ? splat(fill) : value, Whole{});
    }
}

// values = 2^(values - top); sums += their sums over the keys.
template <int kVectors>
__attribute__((noinline)) void exponentials(int64_t num_keys, float* values, const float* top, float* sums) {
    Floats tops[kVectors];
    Floats totals[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        tops[v] = load(top + v * kLanes, Whole{});
        totals[v] = load(sums + v * kLanes, Whole{});
    }
    for (int64_t key = 0; key < num_keys; ++key, values += kPanel) {
        for (int v = 0; v < kVectors; ++v) {
            const Floats e = power_of_2(load(values + v * kLanes, Whole{}) - tops[v]);
            store(values + v * kLanes, e, Whole{});
            totals[v] += e;
        }
    }
    for (int v = 0; v < kVectors; ++v) {
        store(sums + v * kLanes, totals[v], Whole{});
    }
}

}  // namespace
}  // namespace oarlock
