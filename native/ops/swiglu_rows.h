// SwiGLU: silu(gate) * up.
#pragma once

#include "ops/row_kernels.h"
#include "ops/vector.h"

namespace oarlock {
namespace {

void swiglu_forward(const SwigluForward& args, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float* gate = args.gate + row * args.gate_stride;
        const float* up = args.up + row * args.up_stride;
        float* y = args.y + row * args.y_stride;
        for_each_vector(args.width, [&](int64_t i, auto part) {
            const Floats g = load(gate + i, part);
            store(y + i, g / (1.0f + exponential(-g)) * load(up + i, part), part);
        });
    }
}

void swiglu_backward(const SwigluBackward& args, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float* dy = args.dy + row * args.dy_stride;
        const float* gate = args.gate + row * args.gate_stride;
        const float* up = args.up + row * args.up_stride;
        float* dgate = args.dgate + row * args.dgate_stride;
        float* dup = args.dup + row * args.dup_stride;
        for_each_vector(args.width, [&](int64_t i, auto part) {
            const Floats g = load(gate + i, part);
            const Floats upstream = load(dy + i, part);
            const Floats e = exponential(-g);
            const Floats sigmoid = 1.0f / (1.0f + e);
            // 1 - sigmoid cancels for large gates, e * sigmoid is inf * 0 for very negative ones.
            const Floats complement = g > 0.0f ? e * sigmoid : 1.0f - sigmoid;
            store(dup + i, upstream * (g * sigmoid), part);
            store(dgate + i, upstream * load(up + i, part) * (sigmoid * (1.0f + g * complement)), part);
        });
    }
}

}  // namespace
}  // namespace oarlock
