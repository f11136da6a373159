#include <algorithm>

#include "oarlock.h"
#include "ops/row_kernels.h"
#include "common/split_rows.h"

oarlock_status oarlock_softmax_cross_entropy(float* logits, const int64_t* targets, int64_t ignore_index, float scale,
                                             const float* row_scales, int32_t with_gradient, float* losses,
                                             int64_t num_rows, int64_t vocabulary, int32_t num_threads) {
    if (num_rows < 0 || vocabulary < 1 || num_threads < 1) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const bool are_targets_valid = std::all_of(targets, targets + num_rows, [&](int64_t target) {
        return target == ignore_index || (target >= 0 && target < vocabulary);
    });
    if (!are_targets_valid) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const oarlock::SoftmaxCrossEntropy args = {logits,     targets, ignore_index, scale,
                                               row_scales, losses,  vocabulary,   with_gradient != 0};
    oarlock::split_rows(num_rows, vocabulary, num_threads, [&](int64_t begin, int64_t end) {
        oarlock::row_kernels().softmax_cross_entropy(args, begin, end);
    });
    return OARLOCK_OK;
}
