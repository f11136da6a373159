// Dropout of probabilities by the hash that src/oarlock/attention/dropout.py defines: the same in every tiling.
#pragma once

#include "attention/flash_keys.h"

namespace oarlock {
namespace {

typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));

OARLOCK_INLINE uint64_t mixed(uint64_t z) {  // SplitMix64
    z += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

// The part of the hash that depends on the row, for the rows of a tile.
struct RowHashes {
    uint32_t low[kTileRows];
    uint32_t high[kTileRows];

    void fill(const oarlock_attention& call, const Tile& tile) {
        const uint64_t place = static_cast<uint64_t>(tile.batch) << 32 | static_cast<uint64_t>(tile.head);
        const uint64_t head = mixed(mixed(mixed(call.seed) ^ call.offset) ^ place);
        for (int64_t i = 0; i < kTileRows; ++i) {
            const uint64_t row = mixed(head ^ static_cast<uint64_t>(tile.begin + i));
            low[i] = static_cast<uint32_t>(row);
            high[i] = static_cast<uint32_t>(row >> 32);
        }
    }
};

OARLOCK_INLINE Words load_words(const uint32_t* source) {
    Words v;
    std::memcpy(&v, source, sizeof v);
    return v;
}

// All bits of a lane set: the pair of the row (first_row + lane of the tile) and the key survives.
OARLOCK_INLINE Ints is_kept(const RowHashes& hashes, int64_t first_row, int64_t key, uint32_t threshold) {
    Words x = load_words(hashes.low + first_row) + static_cast<uint32_t>(key) * 0x9e3779b1U;
    x = (x ^ (x >> 16)) * 0x7feb352dU;
    x = (x ^ (x >> 15) ^ load_words(hashes.high + first_row)) * 0x846ca68bU;
    x = x ^ (x >> 16);
    return x >= threshold;
}

// Zeroes the dropped ones of num_keys x num_vectors values.
void drop(int64_t num_keys, int64_t num_vectors, float* values, const RowHashes& hashes, int64_t first_row,
          int64_t first_key, uint32_t threshold) {
    for (int64_t key = 0; key < num_keys; ++key, values += kPanel) {
        for (int64_t lane = 0; lane < num_vectors * kLanes; lane += kLanes) {
            const Ints kept = is_kept(hashes, first_row + lane, first_key + key, threshold);
            store(values + lane, float_of_bits(bits_of(load(values + lane, Whole{})) & kept), Whole{});
        }
    }
}

}  // namespace
}  // namespace oarlock
