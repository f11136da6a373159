// Cuts a call into work items of about equal, exactly known cost, and hands them to threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/flash.h"
#include "attention/flash_classes.h"
#include "common/guard.h"

namespace oarlock {

struct Schedule {
    std::vector<FlashItem> items;         // by batch row and key head, then by tiles
    std::vector<std::size_t> first_item;  // of each (batch row, key head), and the number of items
    std::vector<std::size_t> by_cost;     // indices of items, the most expensive first
};

// About `num_wanted` items; one per key head is the least, as each item reads its keys anew.
Schedule make_schedule(const oarlock_attention& call, const std::vector<MaskClasses>& masks,
                       const FlashKernels& kernels, int64_t num_wanted);

// body(i) once for each i < count: each thread takes the next one as soon as it is free.
template <typename Body>
oarlock_status run_queue(int64_t count, int32_t num_threads, const Body& body) {
    (void)num_threads;  // without OpenMP
    std::atomic<int64_t> next{0};
    std::atomic<oarlock_status> worst{OARLOCK_OK};
#pragma omp parallel num_threads(num_threads) if (num_threads > 1 && count > 1)
    {
        const oarlock_status status = guarded([&] {
            for (int64_t i = next++; i < count; i = next++) {
                body(i);
            }
        });
        if (status != OARLOCK_OK) {
            worst = status;
        }
    }
    return worst;
}

}  // namespace oarlock
