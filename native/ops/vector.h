// Vectors as wide as the instruction set that this file is compiled for. Everything has internal linkage and nothing
// of the standard library is inlined: code of one instruction set must never serve another.
#pragma once

#include <cstdint>
#include <cstring>

#define OARLOCK_INLINE static inline __attribute__((always_inline))

namespace oarlock {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int64_t kLanes = kVectorBytes / 4;

typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef int32_t Ints __attribute__((vector_size(kVectorBytes)));

// How much of a vector lies inside the array: all of it, or its first lanes.
struct Whole {};
struct Part {
    int64_t lanes;
};

OARLOCK_INLINE Floats load(const float* source, Whole) {
    Floats v;
    std::memcpy(&v, source, sizeof v);
    return v;
}

OARLOCK_INLINE Floats load(const float* source, Part part) {  // zero beyond the array
    Floats v = {};
    std::memcpy(&v, source, static_cast<size_t>(part.lanes) * sizeof(float));
    return v;
}

OARLOCK_INLINE void store(float* target, Floats v, Whole) {
    std::memcpy(target, &v, sizeof v);
}

OARLOCK_INLINE void store(float* target, Floats v, Part part) {
    std::memcpy(target, &v, static_cast<size_t>(part.lanes) * sizeof(float));
}

// body(offset, Whole or Part) for every vector of an array of `size` floats.
template <typename Body>
OARLOCK_INLINE void for_each_vector(int64_t size, const Body& body) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        body(i, Whole{});
    }
    if (i < size) {
        body(i, Part{size - i});
    }
}

OARLOCK_INLINE float sum_of_lanes(Floats v) {
    typedef float Four __attribute__((vector_size(16)));
    Four quads[kLanes / 4];
    std::memcpy(quads, &v, sizeof v);
    Four sum = quads[0];
    for (int64_t i = 1; i < kLanes / 4; ++i) {
        sum += quads[i];
    }
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

OARLOCK_INLINE Floats splat(float value) {
    return value - Floats{};  // `value + Floats{}` is a real addition, because -0 + 0 is +0
}

OARLOCK_INLINE Ints bits_of(Floats v) {
    return reinterpret_cast<Ints>(v);
}

OARLOCK_INLINE Floats float_of_bits(Ints v) {
    return reinterpret_cast<Floats>(v);
}

// e^x = mantissa * 2^exponent for |x| up to 104, mantissa in [0.7, 1.42]; a NaN is in the mantissa.
struct Power {
    Floats mantissa;
    Ints exponent;
};

OARLOCK_INLINE Power power_of_e(Floats x) {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    constexpr float kRounder = 12582912.0f;
    const Floats shifted = x * 1.44269504f + kRounder;
    const Floats n = shifted - kRounder;
    const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // x - n ln 2, |r| <= ln 2 / 2
    Floats p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return {p * r * r + r + 1.0f, bits_of(shifted) - bits_of(splat(kRounder))};
}

OARLOCK_INLINE Floats power_of_two(Ints exponent) {  // from -126 to 127
    return float_of_bits((exponent + 127) << 23);
}

// e^x, relative error below 2e-7; NaN stays NaN, overflow gives infinity, underflow goes through the denormals to 0.
OARLOCK_INLINE Floats exponential(Floats x) {
    x = x > 89.0f ? splat(89.0f) : x;
    x = x < -104.0f ? splat(-104.0f) : x;
    const Power power = power_of_e(x);
    // In two factors, because the exponent reaches from -150 to 128.
    const Ints half = power.exponent >> 1;
    return power.mantissa * power_of_two(half) * power_of_two(power.exponent - half);
}

// e^x for x <= 0, and 0 below -70: in a softmax that is 4e-31 of the largest term, which no float32 sum notices, while
// denormals would slow down every matmul they get into.
OARLOCK_INLINE Floats softmax_exponential(Floats x) {
    const Power power = power_of_e(x < -70.0f ? splat(-70.0f) : x);
    const Floats e = power.mantissa * power_of_two(power.exponent);
    return x < -70.0f ? Floats{} : e;
}

}  // namespace
}  // namespace oarlock
