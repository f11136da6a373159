// The kernels that are compiled once per instruction set. Each works on the rows [begin, end) and on one thread; the
// entry points of the C ABI split the rows. Plain data only: no inline function may be shared between variants.
#pragma once

#include <cstdint>

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

struct RowKernels {
    void (*rms_norm_forward)(const RmsNormForward& args, int64_t begin, int64_t end);
    // Adds the rows' share of the weight's gradient to dweight.
    void (*rms_norm_backward)(const RmsNormBackward& args, int64_t begin, int64_t end, float* dweight);
    void (*swiglu_forward)(const SwigluForward& args, int64_t begin, int64_t end);
    void (*swiglu_backward)(const SwigluBackward& args, int64_t begin, int64_t end);
};

// Those of this process's instruction set.
const RowKernels& row_kernels() noexcept;

// One variant each; null where the compiler does not target it.
const RowKernels* row_kernels_baseline() noexcept;
const RowKernels* row_kernels_avx2() noexcept;
const RowKernels* row_kernels_avx512() noexcept;

}  // namespace oarlock
