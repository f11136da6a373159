// Brings memory that is needed soon into the cache while products run.
//
// One head's rows are short pieces that lie far apart, where hardware does not prefetch, and a core waits for few lines
// at a time: read in one go, they would cost as much as the products of a short document. Asked for in one go, they
// would still wait for each other; so the register kernel asks for a few lines every few steps.
#pragma once

#include "ops/vector.h"

namespace oarlock {
namespace {

class Prefetch {
  public:
    Prefetch() : next_(0), size_(0) {}

    // Asks for `count` pieces of memory.
    void add(const char* data, int64_t stride, int64_t bytes, int64_t count) {
        for (int64_t i = 0; i < count; ++i, data += stride) {
            for (int64_t offset = 0; offset < bytes && size_ < kMaxPieces; offset += kPieceBytes) {
                pieces_[size_++] = data + offset;
            }
        }
    }

    // Fetches the next piece.
    __attribute__((always_inline)) void step() {
        if (next_ < size_) {
            const char* const piece = pieces_[next_++];
#pragma GCC unroll 4
            for (int64_t line = 0; line < kPieceBytes; line += 64) {
                __builtin_prefetch(piece + line, 0, 2);
            }
        }
    }

    // Fetches the rest.
    void finish() {
        while (next_ < size_) {
            step();
        }
        next_ = 0;
        size_ = 0;
    }

  private:
    static constexpr int64_t kPieceBytes = 256;
    static constexpr int64_t kMaxPieces = 4096;

    int64_t next_;
    int64_t size_;
    const char* pieces_[kMaxPieces];
};

}  // namespace
}  // namespace oarlock
