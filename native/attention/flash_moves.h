// Moves memory while products run.
//
// One head's rows are short pieces that lie far apart. Hardware does not prefetch them, a core waits for few lines at a
// time, and where they lie a power of two apart they share few sets of the caches, so that they cannot be fetched long
// before they are needed either. So the register kernel moves a piece every few steps, between the caller's tensors and
// dense buffers, and asks for the far side of a piece some pieces earlier.
#pragma once

#include "ops/vector.h"

namespace oarlock {
namespace {

class Moves {
  public:
    static constexpr int64_t kPieceBytes = 256;

    Moves() : fetched_(0), moved_(0), size_(0) {}

    int64_t room() const { return kMaxPieces - size_; }

    // Copies `count` rows of a tensor to a buffer, by and by; `bytes` is a multiple of kPieceBytes.
    void read(const char* source, int64_t stride, float* target, int64_t target_stride, int64_t bytes, int64_t count) {
        for (int64_t i = 0; i < count; ++i, source += stride, target += target_stride) {
            for (int64_t offset = 0; offset < bytes; offset += kPieceBytes) {
                pieces_[size_++] = {source + offset, reinterpret_cast<char*>(target) + offset, source + offset};
            }
        }
    }

    // Asks for `count` rows that something else will read. Less than `bytes` where there is no room.
    void touch(const char* source, int64_t stride, int64_t bytes, int64_t count) {
        for (int64_t i = 0; i < count; ++i, source += stride) {
            for (int64_t offset = 0; offset < bytes && size_ < kMaxPieces; offset += kPieceBytes) {
                pieces_[size_++] = {source + offset, nullptr, source + offset};
            }
        }
    }

    // The other way.
    void write(const float* source, int64_t source_stride, char* target, int64_t stride, int64_t bytes, int64_t count) {
        for (int64_t i = 0; i < count; ++i, source += source_stride, target += stride) {
            for (int64_t offset = 0; offset < bytes; offset += kPieceBytes) {
                pieces_[size_++] = {reinterpret_cast<const char*>(source) + offset, target + offset, target + offset};
            }
        }
    }

    // Moves the next piece, if any.
    __attribute__((always_inline)) void step() {
        if (moved_ < size_) {
            if (fetched_ < size_) {
                fetch(pieces_[fetched_++].far);
            }
            if (fetched_ == size_ || fetched_ - moved_ > kAhead) {
                move(pieces_[moved_++]);
            }
        }
    }

    // Moves the rest.
    void finish() {
        while (moved_ < size_) {
            step();
        }
        fetched_ = 0;
        moved_ = 0;
        size_ = 0;
    }

  private:
    static constexpr int64_t kAhead = 8;
    static constexpr int64_t kMaxPieces = 4096;

    struct Piece {
        const char* source;
        char* target;     // null: only fetched
        const char* far;  // the one of both that is in the tensor
    };

    static __attribute__((always_inline)) void fetch(const char* data) {
#pragma GCC unroll 4
        for (int64_t line = 0; line < kPieceBytes; line += 64) {
            __builtin_prefetch(data + line, 0, 3);
        }
    }

    static __attribute__((always_inline)) void move(const Piece& piece) {
        if (piece.target == nullptr) {
            return;
        }
#pragma GCC unroll 4
        for (int64_t i = 0; i < kPieceBytes; i += kVectorBytes) {
            Floats vector;
            std::memcpy(&vector, piece.source + i, sizeof vector);
            std::memcpy(piece.target + i, &vector, sizeof vector);
        }
    }

    int64_t fetched_;
    int64_t moved_;
    int64_t size_;
    Piece pieces_[kMaxPieces];
};

}  // namespace
}  // namespace oarlock
