#include "common/guard.h"
#include "ops/row_kernels.h"
#include "common/split_rows.h"
#include "ops/weight_gradient.h"

oarlock_status oarlock_rms_norm(const float* x, const float* update, const float* weight, float eps, float* total,
                                float* y, float* inverse_rms, int64_t num_rows, int64_t width, int32_t num_threads) {
    if (num_rows < 0 || width < 1 || num_threads < 1 || (update == nullptr) != (total == nullptr)) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const oarlock::RmsNormForward args = {x, update, weight, eps, total, y, inverse_rms, width};
    oarlock::split_rows(num_rows, width, num_threads,
                        [&](int64_t begin, int64_t end) { oarlock::row_kernels().rms_norm_forward(args, begin, end); });
    return OARLOCK_OK;
}

oarlock_status oarlock_rms_norm_backward(const float* dy, const float* dtotal, const float* x, const float* weight,
                                         const float* inverse_rms, float* dx, float* dweight, int64_t num_rows,
                                         int64_t width, int32_t num_threads) {
    if (num_rows < 0 || width < 1 || num_threads < 1) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const oarlock::RmsNormBackward args = {dy, dtotal, x, weight, inverse_rms, dx, width};
    return oarlock::guarded([&] {
        oarlock::sum_weight_gradient(num_rows, width, width, num_threads, dweight,
                                     [&](int64_t begin, int64_t end, float* partial) {
                                         oarlock::row_kernels().rms_norm_backward(args, begin, end, partial);
                                     });
    });
}
