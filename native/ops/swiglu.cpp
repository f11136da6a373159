#include "oarlock.h"
#include "ops/row_kernels.h"
#include "common/split_rows.h"

oarlock_status oarlock_swiglu(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride, float* y,
                              int64_t y_stride, int64_t num_rows, int64_t width, int32_t num_threads) {
    if (num_rows < 0 || width < 0 || num_threads < 1) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const oarlock::SwigluForward args = {gate, gate_stride, up, up_stride, y, y_stride, width};
    oarlock::split_rows(num_rows, width, num_threads,
                        [&](int64_t begin, int64_t end) { oarlock::row_kernels().swiglu_forward(args, begin, end); });
    return OARLOCK_OK;
}

oarlock_status oarlock_swiglu_backward(const float* dy, int64_t dy_stride, const float* gate, int64_t gate_stride,
                                       const float* up, int64_t up_stride, float* dgate, int64_t dgate_stride,
                                       float* dup, int64_t dup_stride, int64_t num_rows, int64_t width,
                                       int32_t num_threads) {
    if (num_rows < 0 || width < 0 || num_threads < 1) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const oarlock::SwigluBackward args = {dy,    dy_stride,    gate, gate_stride, up,   up_stride,
                                          dgate, dgate_stride, dup,  dup_stride,  width};
    oarlock::split_rows(num_rows, width, num_threads,
                        [&](int64_t begin, int64_t end) { oarlock::row_kernels().swiglu_backward(args, begin, end); });
    return OARLOCK_OK;
}
