#include "common/guard.h"
#include "ops/row_kernels.h"
#include "common/split_rows.h"
#include "ops/weight_gradient.h"

namespace {

bool is_valid(const oarlock_rotation* rotation, int32_t num_threads) {
    return rotation->num_tokens >= 0 && rotation->num_heads >= 0 && rotation->head_dim >= 2 &&
           rotation->head_dim % 2 == 0 && rotation->num_angles >= 1 && num_threads >= 1;
}

}  // namespace

oarlock_status oarlock_rope(const oarlock_rotation* rotation, const oarlock_heads* x, const oarlock_heads* y,
                            int32_t inverse, int32_t interleaved, int32_t num_threads) {
    if (!is_valid(rotation, num_threads)) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const oarlock::Rope args = {*rotation, *x, *y, inverse != 0 ? -1.0f : 1.0f, interleaved != 0};
    oarlock::split_rows(rotation->num_tokens, rotation->num_heads * rotation->head_dim, num_threads,
                        [&](int64_t begin, int64_t end) { oarlock::row_kernels().rope(args, begin, end); });
    return OARLOCK_OK;
}

oarlock_status oarlock_norm_rope(const oarlock_rotation* rotation, const oarlock_heads* x, const float* weight,
                                 float eps, float* inverse_rms, const oarlock_heads* y, int32_t num_threads) {
    if (!is_valid(rotation, num_threads)) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const oarlock::NormRopeForward args = {*rotation, *x, weight, eps, inverse_rms, *y};
    oarlock::split_rows(
        rotation->num_tokens, rotation->num_heads * rotation->head_dim, num_threads,
        [&](int64_t begin, int64_t end) { oarlock::row_kernels().norm_rope_forward(args, begin, end); });
    return OARLOCK_OK;
}

oarlock_status oarlock_norm_rope_backward(const oarlock_rotation* rotation, const oarlock_heads* dy,
                                          const oarlock_heads* x, const float* weight, const float* inverse_rms,
                                          const oarlock_heads* dx, float* dweight, int32_t num_threads) {
    if (!is_valid(rotation, num_threads)) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const oarlock::NormRopeBackward args = {*rotation, *dy, *x, weight, inverse_rms, *dx};
    return oarlock::guarded([&] {
        oarlock::sum_weight_gradient(rotation->num_tokens, rotation->num_heads * rotation->head_dim, rotation->head_dim,
                                     num_threads, dweight, [&](int64_t begin, int64_t end, float* partial) {
                                         oarlock::row_kernels().norm_rope_backward(args, begin, end, partial);
                                     });
    });
}
