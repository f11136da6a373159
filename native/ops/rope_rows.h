// Rotary position embedding: (a, b) -> (a cos - b sin, b cos + a sin) for the pairs of a head's vector, which are
// (x[i], x[i + head_dim / 2]), or neighbours where interleaved; alone or after an RMS-norm of the vector.
#pragma once

#include <cmath>

#include "ops/row_kernels.h"
#include "ops/vector.h"

namespace oarlock {
namespace {

OARLOCK_INLINE void rotate_halves(const float* x, const float* cos, const float* sin, float direction, float* y,
                                  int64_t half) {
    for_each_vector(half, [&](int64_t i, auto part) {
        const Floats a = load(x + i, part);
        const Floats b = load(x + half + i, part);
        const Floats c = load(cos + i, part);
        const Floats s = load(sin + i, part) * direction;
        store(y + i, a * c - b * s, part);
        store(y + half + i, b * c + a * s, part);
    });
}

// The compiler turns the stride of 2 into shuffles.
OARLOCK_INLINE void rotate_neighbours(const float* __restrict x, const float* __restrict cos,
                                      const float* __restrict sin, float direction, float* __restrict y, int64_t half) {
    for (int64_t i = 0; i < half; ++i) {
        const float a = x[2 * i];
        const float b = x[2 * i + 1];
        const float s = sin[i] * direction;
        y[2 * i] = a * cos[i] - b * s;
        y[2 * i + 1] = b * cos[i] + a * s;
    }
}

OARLOCK_INLINE float* vector_of(const oarlock_heads& heads, int64_t token, int64_t head) {
    return heads.data + token * heads.token_stride + head * heads.head_stride;
}

// body(token, head, cos, sin) for the vectors of the tokens [begin, end), with the token's row of angles.
template <typename Body>
OARLOCK_INLINE void for_each_head(const oarlock_rotation& rotation, int64_t begin, int64_t end, const Body& body) {
    const int64_t half = rotation.head_dim / 2;
    for (int64_t token = begin; token < end; ++token) {
        const int64_t angles = token % rotation.num_angles * half;
        for (int64_t head = 0; head < rotation.num_heads; ++head) {
            body(token, head, rotation.cos + angles, rotation.sin + angles);
        }
    }
}

void rope(const Rope& args, int64_t begin, int64_t end) {
    const int64_t half = args.rotation.head_dim / 2;
    for_each_head(args.rotation, begin, end, [&](int64_t token, int64_t head, const float* cos, const float* sin) {
        const float* x = vector_of(args.x, token, head);
        float* y = vector_of(args.y, token, head);
        if (args.interleaved) {
            rotate_neighbours(x, cos, sin, args.direction, y, half);
        } else {
            rotate_halves(x, cos, sin, args.direction, y, half);
        }
    });
}

// Returns 1 / rms.
OARLOCK_INLINE float norm_rope_vector(const float* x, const float* weight, float eps, const float* cos,
                                      const float* sin, float* y, int64_t half) {
    Floats squares = {};
    for_each_vector(2 * half, [&](int64_t i, auto part) {
        const Floats v = load(x + i, part);
        squares += v * v;
    });
    const float scale = 1.0f / sqrtf(sum_of_lanes(squares) / static_cast<float>(2 * half) + eps);
    for_each_vector(half, [&](int64_t i, auto part) {
        const Floats a = load(x + i, part) * scale * load(weight + i, part);
        const Floats b = load(x + half + i, part) * scale * load(weight + half + i, part);
        const Floats c = load(cos + i, part);
        const Floats s = load(sin + i, part);
        store(y + i, a * c - b * s, part);
        store(y + half + i, b * c + a * s, part);
    });
    return scale;
}

void norm_rope_forward(const NormRopeForward& args, int64_t begin, int64_t end) {
    const int64_t half = args.rotation.head_dim / 2;
    for_each_head(args.rotation, begin, end, [&](int64_t token, int64_t head, const float* cos, const float* sin) {
        args.inverse_rms[token * args.rotation.num_heads + head] = norm_rope_vector(
            vector_of(args.x, token, head), args.weight, args.eps, cos, sin, vector_of(args.y, token, head), half);
    });
}

// The gradient is rotated back, then goes through the norm as in rms_norm_backward; dx holds it in between.
OARLOCK_INLINE void norm_rope_backward_vector(const float* dy, const float* x, const float* weight, float scale,
                                              const float* cos, const float* sin, float* dx, float* dweight,
                                              int64_t half) {
    Floats products = {};
    for_each_vector(half, [&](int64_t i, auto part) {
        const Floats a = load(dy + i, part);
        const Floats b = load(dy + half + i, part);
        const Floats c = load(cos + i, part);
        const Floats s = load(sin + i, part);
        const Floats x_a = load(x + i, part);
        const Floats x_b = load(x + half + i, part);
        const Floats turned_a = a * c + b * s;
        const Floats turned_b = b * c - a * s;
        store(dweight + i, load(dweight + i, part) + turned_a * (x_a * scale), part);
        store(dweight + half + i, load(dweight + half + i, part) + turned_b * (x_b * scale), part);
        const Floats g_a = turned_a * load(weight + i, part);
        const Floats g_b = turned_b * load(weight + half + i, part);
        products += g_a * x_a + g_b * x_b;
        store(dx + i, g_a, part);
        store(dx + half + i, g_b, part);
    });
    const float k = sum_of_lanes(products) * scale / static_cast<float>(2 * half) * scale;
    for_each_vector(2 * half, [&](int64_t i, auto part) {
        store(dx + i, (load(dx + i, part) - load(x + i, part) * k) * scale, part);
    });
}

void norm_rope_backward(const NormRopeBackward& args, int64_t begin, int64_t end, float* dweight) {
    const int64_t half = args.rotation.head_dim / 2;
    for_each_head(args.rotation, begin, end, [&](int64_t token, int64_t head, const float* cos, const float* sin) {
        norm_rope_backward_vector(vector_of(args.dy, token, head), vector_of(args.x, token, head), args.weight,
                                  args.inverse_rms[token * args.rotation.num_heads + head], cos, sin,
                                  vector_of(args.dx, token, head), dweight, half);
    });
}

}  // namespace
}  // namespace oarlock
