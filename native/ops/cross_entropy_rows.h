// Softmax cross-entropy of rows of logits, in place: the row comes from memory once, the later passes find it cached.
#pragma once

#include <cmath>

#include "ops/row_kernels.h"
#include "ops/vector.h"

namespace oarlock {
namespace {

// NaN entries are skipped; they reach the result through the exponentials.
OARLOCK_INLINE float largest(const float* values, int64_t size) {
    constexpr int64_t kChains = 4;  // independent, to hide the latency of a maximum
    Floats best[kChains];
    for (Floats& chain : best) {
        chain = splat(-INFINITY);
    }
    int64_t i = 0;
    for (; i + kChains * kLanes <= size; i += kChains * kLanes) {
        for (int64_t chain = 0; chain < kChains; ++chain) {
            const Floats v = load(values + i + chain * kLanes, Whole{});
            best[chain] = v > best[chain] ? v : best[chain];
        }
    }
    for (int64_t chain = 1; chain < kChains; ++chain) {
        best[0] = best[chain] > best[0] ? best[chain] : best[0];
    }
    float lanes[kLanes];
    store(lanes, best[0], Whole{});
    float result = -INFINITY;
    for (const float lane : lanes) {
        result = lane > result ? lane : result;
    }
    for (; i < size; ++i) {
        result = values[i] > result ? values[i] : result;
    }
    return result;
}

// sum(exp(z - shift)); with kWrite the exponentials replace the row.
template <bool kWrite>
OARLOCK_INLINE float sum_of_exponentials(float* z, int64_t size, float shift) {
    Floats sum = {};
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        const Floats e = softmax_exponential(load(z + i, Whole{}) - shift);
        sum += e;
        if (kWrite) {
            store(z + i, e, Whole{});
        }
    }
    float total = sum_of_lanes(sum);
    if (i < size) {
        const Part part = {size - i};
        const Floats e = softmax_exponential(load(z + i, part) - shift);
        if (kWrite) {
            store(z + i, e, part);
        }
        float lanes[kLanes];
        store(lanes, e, Whole{});
        for (int64_t lane = 0; lane < part.lanes; ++lane) {
            total += lanes[lane];
        }
    }
    return total;
}

void softmax_cross_entropy(const SoftmaxCrossEntropy& args, int64_t begin, int64_t end) {
    const int64_t size = args.vocabulary;
    for (int64_t row = begin; row < end; ++row) {
        float* z = args.logits + row * size;
        const int64_t target = args.targets[row];
        if (target == args.ignore_index) {
            args.losses[row] = 0.0f;
            if (args.with_gradient) {
                std::memset(z, 0, static_cast<size_t>(size) * sizeof(float));
            }
            continue;
        }
        const float shift = largest(z, size);
        const float target_logit = z[target] - shift;
        const float sum =
            args.with_gradient ? sum_of_exponentials<true>(z, size, shift) : sum_of_exponentials<false>(z, size, shift);
        args.losses[row] = static_cast<float>(log(static_cast<double>(sum)) - static_cast<double>(target_logit));
        if (args.with_gradient) {
            const float scale = args.row_scales != nullptr ? args.scale * args.row_scales[row] : args.scale;
            const float factor = scale / sum;
            for_each_vector(size, [&](int64_t i, auto part) { store(z + i, load(z + i, part) * factor, part); });
            z[target] -= scale;
        }
    }
}

}  // namespace
}  // namespace oarlock
