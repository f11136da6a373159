// The kernels that are compiled once per instruction set. Each works on the rows [begin, end) and on one thread; the
// entry points of the C ABI split the rows. Plain data only: no inline function may be shared between variants.
#pragma once

#include <cstdint>

#include "oarlock.h"

namespace oarlock {

struct RmsNormForward {
    const float* x;
    const float* update;  // null: no residual addition
    const float* weight;
    float eps;
    float* total;  // x + update, only with an update
    float* y;
    float* inverse_rms;
    int64_t width;
};

struct RmsNormBackward {
    const float* dy;
    const float* dtotal;  // null: the stream has no gradient of its own
    const float* x;
    const float* weight;
    const float* inverse_rms;
    float* dx;
    int64_t width;
};

// Rows of the operands may be part of longer rows: consecutive ones lie `*_stride` floats apart.
struct SwigluForward {
    const float* gate;
    int64_t gate_stride;
    const float* up;
    int64_t up_stride;
    float* y;
    int64_t y_stride;
    int64_t width;
};

struct SwigluBackward {
    const float* dy;
    int64_t dy_stride;
    const float* gate;
    int64_t gate_stride;
    const float* up;
    int64_t up_stride;
    float* dgate;
    int64_t dgate_stride;
    float* dup;
    int64_t dup_stride;
    int64_t width;
};

struct SoftmaxCrossEntropy {
    float* logits;  // replaced by the gradient if with_gradient
    const int64_t* targets;
    int64_t ignore_index;
    float scale;
    const float* row_scales;  // null: 1
    float* losses;
    int64_t vocabulary;
    bool with_gradient;
};

struct Rope {
    oarlock_rotation rotation;
    oarlock_heads x;
    oarlock_heads y;
    float direction;  // +1, or -1 to rotate back
    bool interleaved;
};

struct NormRopeForward {
    oarlock_rotation rotation;
    oarlock_heads x;
    const float* weight;
    float eps;
    float* inverse_rms;
    oarlock_heads y;
};

struct NormRopeBackward {
    oarlock_rotation rotation;
    oarlock_heads dy;
    oarlock_heads x;
    const float* weight;
    const float* inverse_rms;
    oarlock_heads dx;
};

struct RowKernels {
    void (*rms_norm_forward)(const RmsNormForward& args, int64_t begin, int64_t end);
    // Adds the rows' share of the weight's gradient to dweight.
    void (*rms_norm_backward)(const RmsNormBackward& args, int64_t begin, int64_t end, float* dweight);
    void (*swiglu_forward)(const SwigluForward& args, int64_t begin, int64_t end);
    void (*swiglu_backward)(const SwigluBackward& args, int64_t begin, int64_t end);
    void (*softmax_cross_entropy)(const SoftmaxCrossEntropy& args, int64_t begin, int64_t end);
    void (*rope)(const Rope& args, int64_t begin, int64_t end);
    void (*norm_rope_forward)(const NormRopeForward& args, int64_t begin, int64_t end);
    void (*norm_rope_backward)(const NormRopeBackward& args, int64_t begin, int64_t end, float* dweight);
};

// Those of this process's instruction set.
const RowKernels& row_kernels() noexcept;

// One variant each; null where the compiler does not target it.
const RowKernels* row_kernels_baseline() noexcept;
const RowKernels* row_kernels_avx2() noexcept;
const RowKernels* row_kernels_avx512() noexcept;

}  // namespace oarlock
