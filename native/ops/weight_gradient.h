// Sums a weight's gradient over rows in an order that depends on the number of rows only: the result is bitwise the
// same for every number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/split_rows.h"

namespace oarlock {

constexpr int64_t kRowsPerPart = 64;
constexpr int64_t kMaxParts = 256;

// body(begin, end, partial) adds the rows' share to `partial` [size]; dweight [size] gets the sum of all shares.
template <typename Body>
void sum_weight_gradient(int64_t num_rows, int64_t row_elements, int64_t size, int32_t num_threads, float* dweight,
                         const Body& body) {
    const int64_t num_parts = std::clamp<int64_t>(num_rows / kRowsPerPart, 1, kMaxParts);
    std::vector<float> partial(static_cast<size_t>(num_parts * size));
    [[maybe_unused]] const int32_t team = useful_threads(num_rows * row_elements, num_threads);
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
    for (int64_t part = 0; part < num_parts; ++part) {
        body(num_rows * part / num_parts, num_rows * (part + 1) / num_parts, partial.data() + part * size);
    }
    std::fill_n(dweight, size, 0.0f);
    for (int64_t part = 0; part < num_parts; ++part) {
        for (int64_t i = 0; i < size; ++i) {
            dweight[i] += partial[static_cast<size_t>(part * size + i)];
        }
    }
}

}  // namespace oarlock
