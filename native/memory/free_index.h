// The free blocks of a heap by size: bins of nearly equal sizes and a bitmap of those that hold something.
#pragma once

#include <array>

#include "memory/block.h"

namespace oarlock::memory {

inline int lowest_bit(uint64_t x) {
    return __builtin_ctzll(x);
}
inline int highest_bit(uint64_t x) {
    return 63 - __builtin_clzll(x);
}

// Up to 32 KiB a bin for every size, above it 32 bins per power of two.
inline uint32_t bin_of(uint64_t size) {
    const uint64_t units = size / kAlignment;
    if (units < 64) {
        return static_cast<uint32_t>(units);
    }
    const int exponent = highest_bit(units);
    return static_cast<uint32_t>(64 + (exponent - 6) * 32) + static_cast<uint32_t>((units >> (exponent - 5)) & 31);
}

class FreeIndex {
  public:
    void insert(Block* b) {
        const uint32_t bin = bin_of(b->size);
        b->before = nullptr;
        b->after = bins_[bin];
        if (b->after != nullptr) {
            b->after->before = b;
        }
        bins_[bin] = b;
        words_[bin / 64] |= uint64_t{1} << (bin % 64);
        summary_ |= uint64_t{1} << (bin / 64);
    }

    void remove(Block* b) {
        if (b->after != nullptr) {
            b->after->before = b->before;
        }
        if (b->before != nullptr) {
            b->before->after = b->after;
            return;
        }
        const uint32_t bin = bin_of(b->size);
        bins_[bin] = b->after;
        if (b->after == nullptr) {
            words_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
            if (words_[bin / 64] == 0) {
                summary_ &= ~(uint64_t{1} << (bin / 64));
            }
        }
    }

    // The smallest usable block that holds `size`, among the first kLooks that do in the first bin that has one.
    Block* find(uint64_t size, const Streams& streams, uint32_t stream) const {
        for (int bin = next_bin(bin_of(size)); bin >= 0; bin = next_bin(static_cast<uint32_t>(bin) + 1)) {
            Block* best = nullptr;
            int looks = kLooks;
            for (Block* b = bins_[static_cast<uint32_t>(bin)]; b != nullptr && looks > 0; b = b->after) {
                if (b->size >= size && streams.usable(b->uses, stream)) {
                    looks--;
                    if (best == nullptr || b->size < best->size || (b->size == best->size && b->addr < best->addr)) {
                        best = b;
                    }
                }
            }
            if (best != nullptr) {
                return best;
            }
        }
        return nullptr;
    }

    // body(block) for every block that may hold `size` bytes or more.
    template <typename Body>
    void each(uint64_t size, const Body& body) const {
        for (int bin = next_bin(bin_of(size)); bin >= 0; bin = next_bin(static_cast<uint32_t>(bin) + 1)) {
            for (Block* b = bins_[static_cast<uint32_t>(bin)]; b != nullptr; b = b->after) {
                body(b);
            }
        }
    }

  private:
    static constexpr int kLooks = 32;
    static constexpr uint32_t kBins = 64 + 32 * 50;

    int next_bin(uint32_t from) const {
        if (from >= kBins) {
            return -1;
        }
        const uint64_t word = words_[from / 64] >> (from % 64);
        if (word != 0) {
            return static_cast<int>(from) + lowest_bit(word);
        }
        const uint32_t later = from / 64 + 1;
        const uint64_t left = later < 64 ? summary_ >> later << later : 0;
        if (left == 0) {
            return -1;
        }
        const int found = lowest_bit(left);
        return found * 64 + lowest_bit(words_[static_cast<size_t>(found)]);
    }

    std::array<Block*, kBins> bins_{};
    std::array<uint64_t, (kBins + 63) / 64> words_{};
    uint64_t summary_ = 0;
};

}  // namespace oarlock::memory
