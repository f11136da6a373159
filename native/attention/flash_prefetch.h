// Brings rows of the caller's tensors into the cache while products run.
//
// One head's rows are short pieces that lie far apart, where hardware does not prefetch, and a core waits for few lines
// at a time: read in one go, they would cost as much as the products of a short document.
#pragma once

#include "attention/flash_rows.h"

namespace oarlock {
namespace {

class Prefetch {
  public:
    // Asks for the rows [token, token + count) of a head.
    void add(const oarlock_vectors& tensor, int32_t dtype, int64_t batch, int64_t token, int64_t head, int64_t count,
             int64_t size) {
        if (count > 0 && num_ranges_ < kMaxRanges && tensor.dim_stride == 1) {
            const int64_t bytes = dtype == OARLOCK_FLOAT32 ? 4 : 2;
            const TensorRow row = tensor_row(tensor, dtype, batch, token, head);
            ranges_[num_ranges_++] = {row.data, tensor.token_stride * bytes, size * bytes, count};
        }
    }

    // Fetches the next few rows.
    void step() {
        if (num_ranges_ > 0) {
            fetch();
        }
    }

  private:
    static constexpr int kMaxRanges = 8;
    static constexpr int kRowsPerStep = 4;

    struct Range {
        const char* next;
        int64_t stride;
        int64_t bytes;
        int64_t count;
    };

    __attribute__((noinline)) void fetch() {
        Range& range = ranges_[num_ranges_ - 1];
        for (int i = 0; i < kRowsPerStep && range.count > 0; ++i, --range.count, range.next += range.stride) {
            for (int64_t line = 0; line < range.bytes; line += 64) {
                __builtin_prefetch(range.next + line, 0, 2);
            }
        }
        num_ranges_ -= range.count == 0;
    }

    Range ranges_[kMaxRanges];
    int num_ranges_ = 0;
};

}  // namespace
}  // namespace oarlock
