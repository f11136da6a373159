// Splits rows over threads.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace oarlock {

// Below this many elements per thread, waking a thread costs more than it saves.
constexpr int64_t kElementsPerThread = 16384;

inline int32_t useful_threads(int64_t num_elements, int32_t num_threads) {
    return static_cast<int32_t>(std::clamp<int64_t>(num_elements / kElementsPerThread, 1, num_threads));
}

// body(begin, end) once per thread: contiguous ranges that cover [0, num_rows).
template <typename Body>
void split_rows(int64_t num_rows, int64_t width, int32_t num_threads, const Body& body) {
#if defined(_OPENMP)
    const int32_t team = useful_threads(num_rows * width, num_threads);
    if (team > 1) {
#pragma omp parallel num_threads(team)
        {
            const int64_t thread = omp_get_thread_num();
            const int64_t size = omp_get_num_threads();
            body(num_rows * thread / size, num_rows * (thread + 1) / size);
        }
        return;
    }
#endif
    (void)width;
    (void)num_threads;
    body(int64_t{0}, num_rows);
}

}  // namespace oarlock
