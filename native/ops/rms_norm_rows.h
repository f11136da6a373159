// RMS-norm, alone or after a residual addition. A row is read twice, the second time from the first-level cache.
#pragma once

#include <cmath>

#include "ops/row_kernels.h"
#include "ops/vector.h"

namespace oarlock {
namespace {

template <bool kAdd>
OARLOCK_INLINE void rms_norm_row(const RmsNormForward& args, int64_t row) {
    const int64_t width = args.width;
    const float* x = args.x + row * width;
    const float* update = kAdd ? args.update + row * width : nullptr;
    const float* weight = args.weight;
    float* total = kAdd ? args.total + row * width : nullptr;
    float* y = args.y + row * width;
    Floats squares = {};
    for_each_vector(width, [&](int64_t i, auto part) {
        Floats v = load(x + i, part);
        if (kAdd) {
            v += load(update + i, part);
            store(total + i, v, part);
        }
        squares += v * v;
    });
    const float scale = 1.0f / sqrtf(sum_of_lanes(squares) / static_cast<float>(width) + args.eps);
    args.inverse_rms[row] = scale;
    const float* source = kAdd ? total : x;
    for_each_vector(width, [&](int64_t i, auto part) {
        store(y + i, load(source + i, part) * scale * load(weight + i, part), part);
    });
}

void rms_norm_forward(const RmsNormForward& args, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        if (args.update != nullptr) {
            rms_norm_row<true>(args, row);
        } else {
            rms_norm_row<false>(args, row);
        }
    }
}

// dx = (g - x k) / rms + dtotal, g = dy weight, k = sum(g x) / (width rms^2); dweight += dy x / rms.
template <bool kAdd>
OARLOCK_INLINE void rms_norm_backward_row(const RmsNormBackward& args, int64_t row, float* dweight) {
    const int64_t width = args.width;
    const float* x = args.x + row * width;
    const float* dy = args.dy + row * width;
    const float* dtotal = kAdd ? args.dtotal + row * width : nullptr;
    const float* weight = args.weight;
    float* dx = args.dx + row * width;
    Floats products = {};
    for_each_vector(width, [&](int64_t i, auto part) {
        products += load(dy + i, part) * load(weight + i, part) * load(x + i, part);
    });
    const float scale = args.inverse_rms[row];
    const float k = sum_of_lanes(products) * scale / static_cast<float>(width) * scale;
    for_each_vector(width, [&](int64_t i, auto part) {
        const Floats v = load(x + i, part);
        const Floats upstream = load(dy + i, part);
        Floats result = (upstream * load(weight + i, part) - v * k) * scale;
        if (kAdd) {
            result += load(dtotal + i, part);
        }
        store(dx + i, result, part);
        store(dweight + i, load(dweight + i, part) + upstream * (v * scale), part);
    });
}

void rms_norm_backward(const RmsNormBackward& args, int64_t begin, int64_t end, float* dweight) {
    for (int64_t row = begin; row < end; ++row) {
        if (args.dtotal != nullptr) {
            rms_norm_backward_row<true>(args, row, dweight);
        } else {
            rms_norm_backward_row<false>(args, row, dweight);
        }
    }
}

}  // namespace
}  // namespace oarlock
