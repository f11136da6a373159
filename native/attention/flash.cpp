// Entry points of the fused attention.
#include "attention/flash.h"

#include <algorithm>
#include <vector>

#include "attention/column_intervals.h"
#include "attention/flash_classes.h"
#include "attention/flash_schedule.h"
#include "attention/flash_workspace.h"
#include "common/guard.h"
#include "oarlock.h"

namespace oarlock {
namespace {

// Two per thread, for an even end. More would read the same keys too often, and the backward sums dK and dV of a key
// head once per item: a single key head gets one item per thread.
int64_t num_items(const oarlock_attention& call) {
    return call.num_threads == 1 ? 1 : call.num_threads * (call.batch * call.num_heads_k == 1 ? 1 : 2);
}

// dK and dV are sums in an order that depends on where the tiles are cut.
constexpr int64_t kDeterministicItems = 16;

constexpr int64_t kKeysPerSum = 256;

bool is_valid_call(const oarlock_attention& call) {
    const bool has_sizes = call.batch >= 0 && call.num_heads_k > 0 && call.num_heads_q % call.num_heads_k == 0 &&
                           call.head_dim >= 0 && call.value_dim >= 0 && call.num_threads >= 1 &&
                           call.seqlen_q == call.mask.seqlen_q && call.seqlen_k == call.mask.seqlen_k &&
                           call.seqlen_q <= INT32_MAX && call.seqlen_k <= INT32_MAX;
    const bool has_mask = is_valid(&call.mask) && call.mask_heads > 0 && call.num_heads_q % call.mask_heads == 0 &&
                          (call.mask_batch == 1 || call.mask_batch == call.batch) &&
                          (call.block_mask_batch == 1 || call.block_mask_batch == call.batch) &&
                          call.mask.num_masks == call.mask_batch * call.mask_heads;
    const bool has_dtype =
        call.dtype == OARLOCK_FLOAT32 || call.dtype == OARLOCK_BFLOAT16 || call.dtype == OARLOCK_FLOAT16;
    return has_sizes && has_mask && has_dtype;
}

// What both directions prepare.
struct Prepared {
    std::vector<MaskClasses> masks;
    std::vector<ClassTable> tables;
    Schedule schedule;
};

Prepared prepare(const oarlock_attention& call, int64_t num_wanted) {
    Prepared prepared;
    for (int64_t index = 0; index < call.mask.num_masks; ++index) {
        prepared.masks.emplace_back(call.mask, index);
    }
    for (const MaskClasses& mask : prepared.masks) {
        prepared.tables.push_back(mask.table());
    }
    prepared.schedule = make_schedule(call, prepared.masks, flash_kernels(), num_wanted);
    return prepared;
}

bool is_empty(const oarlock_attention& call) {
    return call.batch == 0 || call.num_heads_q == 0 || call.seqlen_q == 0;
}

using WorkspaceSize = int64_t (*)(const FlashProblem&, const FlashItem&);
using Work = void (*)(const FlashProblem&, const FlashItem&, float*);

oarlock_status run_items(const FlashProblem& problem, const Schedule& schedule, WorkspaceSize size, Work work) {
    return run_queue(static_cast<int64_t>(schedule.items.size()), problem.call.num_threads, [&](int64_t i) {
        const FlashItem& item = schedule.items[schedule.by_cost[static_cast<size_t>(i)]];
        work(problem, item, own_workspace().get(size(problem, item)));
    });
}

// Gives the items of each key head that has several their own sums of dK and dV.
void assign_sums(const oarlock_attention& call, Schedule& schedule) {
    const int64_t key_stride = flash_kernels().row_stride(call.head_dim);
    const int64_t value_stride = flash_kernels().row_stride(call.value_dim);
    const auto for_each_part = [&](auto&& body) {
        for (size_t head = 0; head + 1 < schedule.first_item.size(); ++head) {
            const size_t begin = schedule.first_item[head];
            const size_t end = schedule.first_item[head + 1];
            for (size_t i = begin; i < end && end - begin > 1; ++i) {
                body(schedule.items[i], (schedule.items[i].block_end - schedule.items[i].block_begin) * kKeyBlock);
            }
        }
    };
    int64_t size = 0;
    for_each_part([&](const FlashItem&, int64_t num_keys) { size += num_keys * (key_stride + value_stride) + 16; });
    float* next = shared_workspace().get(size);
    for_each_part([&](FlashItem& item, int64_t num_keys) {
        item.grad_key_sums = next;
        item.grad_value_sums = next + num_keys * key_stride;
        next += num_keys * (key_stride + value_stride) + 16;  // never empty, so never null
    });
}

// A range of keys of a key head whose gradients are sums over several items.
struct KeySum {
    size_t head;
    int64_t key_begin;
};

oarlock_status add_all_parts(const FlashProblem& problem, const Schedule& schedule) {
    std::vector<KeySum> sums;
    for (size_t head = 0; head + 1 < schedule.first_item.size(); ++head) {
        const bool has_parts = schedule.first_item[head + 1] - schedule.first_item[head] > 1;
        for (int64_t key = 0; key < problem.call.seqlen_k && has_parts; key += kKeysPerSum) {
            sums.push_back({head, key});
        }
    }
    const int64_t row = flash_kernels().row_stride(std::max(problem.call.head_dim, problem.call.value_dim));
    return run_queue(static_cast<int64_t>(sums.size()), problem.call.num_threads, [&](int64_t i) {
        const KeySum& sum = sums[static_cast<size_t>(i)];
        const size_t begin = schedule.first_item[sum.head];
        const auto num_items = static_cast<int64_t>(schedule.first_item[sum.head + 1] - begin);
        flash_kernels().add_parts(problem, schedule.items.data() + begin, num_items, sum.key_begin,
                                  std::min(sum.key_begin + kKeysPerSum, problem.call.seqlen_k),
                                  own_workspace().get(row));
    });
}

}  // namespace
}  // namespace oarlock

oarlock_status oarlock_attention_forward(const oarlock_attention* call, const oarlock_vectors* query,
                                         const oarlock_vectors* key, const oarlock_vectors* value,
                                         const oarlock_vectors* out, float* lse) {
    if (!oarlock::is_valid_call(*call)) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    if (oarlock::is_empty(*call)) {
        return OARLOCK_OK;
    }
    oarlock_status status = OARLOCK_OK;
    const oarlock_status failure = oarlock::guarded([&] {
        const oarlock::Prepared prepared = oarlock::prepare(*call, oarlock::num_items(*call));
        oarlock::FlashProblem problem = {};
        problem.call = *call;
        problem.query = *query;
        problem.key = *key;
        problem.value = *value;
        problem.out = *out;
        problem.lse = lse;
        problem.masks = prepared.tables.data();
        const oarlock::FlashKernels& kernels = oarlock::flash_kernels();
        status = oarlock::run_items(problem, prepared.schedule, kernels.forward_workspace, kernels.forward);
    });
    return failure != OARLOCK_OK ? failure : status;
}

oarlock_status oarlock_attention_backward(const oarlock_attention* call, const oarlock_vectors* query,
                                          const oarlock_vectors* key, const oarlock_vectors* value,
                                          const oarlock_vectors* out, const float* lse, const oarlock_vectors* grad_out,
                                          const float* grad_lse, const oarlock_vectors* grad_query,
                                          const oarlock_vectors* grad_key, const oarlock_vectors* grad_value) {
    if (!oarlock::is_valid_call(*call)) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    if (oarlock::is_empty(*call)) {
        return OARLOCK_OK;
    }
    oarlock_status status = OARLOCK_OK;
    const oarlock_status failure = oarlock::guarded([&] {
        const int64_t num_wanted = call->deterministic != 0 ? oarlock::kDeterministicItems : oarlock::num_items(*call);
        oarlock::Prepared prepared = oarlock::prepare(*call, num_wanted);
        oarlock::assign_sums(*call, prepared.schedule);
        oarlock::FlashProblem problem = {};
        problem.call = *call;
        problem.query = *query;
        problem.key = *key;
        problem.value = *value;
        problem.out = *out;
        problem.saved_lse = lse;
        problem.grad_out = *grad_out;
        problem.grad_lse = grad_lse;
        problem.grad_query = *grad_query;
        problem.grad_key = *grad_key;
        problem.grad_value = *grad_value;
        problem.masks = prepared.tables.data();
        const oarlock::FlashKernels& kernels = oarlock::flash_kernels();
        status = oarlock::run_items(problem, prepared.schedule, kernels.backward_workspace, kernels.backward);
        if (status == OARLOCK_OK) {
            status = oarlock::add_all_parts(problem, prepared.schedule);
        }
    });
    return failure != OARLOCK_OK ? failure : status;
}
