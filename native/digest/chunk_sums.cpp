// Chunk sums of digest64, whose definition is in oarlock/digest.py: S = sum_j mix(w_j) * k_j over 4096 words.
#include <cstring>

#include "oarlock.h"
#include "common/split_rows.h"

namespace {

constexpr int64_t kChunkWords = 4096;
constexpr int64_t kChunkBytes = 8 * kChunkWords;
constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15U;

// Little-endian, from any address; the bytes past the end count as zeros.
uint64_t load_word(const unsigned char* bytes, int64_t num_bytes) {
    uint64_t word = 0;
    for (int64_t i = 0; i < num_bytes; ++i) {
        word |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    }
    return word;
}

uint64_t term(uint64_t word, uint64_t weight) {
    const uint64_t mixed = word * kMultiplier;
    return (mixed ^ (mixed >> 32)) * weight;
}

uint64_t whole_words(const unsigned char* bytes, int64_t num_words, const uint64_t* weights) {
    // Four sums: multiplications take three cycles, but one can start in each.
    uint64_t sums[4] = {0, 0, 0, 0};
    int64_t j = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; j + 4 <= num_words; j += 4) {
        uint64_t words[4];
        std::memcpy(words, bytes + 8 * j, sizeof words);
        for (int lane = 0; lane < 4; ++lane) {
            sums[lane] += term(words[lane], weights[j + lane]);
        }
    }
#endif
    for (; j < num_words; ++j) {
        sums[0] += term(load_word(bytes + 8 * j, 8), weights[j]);
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace

oarlock_status oarlock_digest_chunk_sums(const void* data, int64_t num_bytes, const uint64_t* weights, uint64_t* sums,
                                         int32_t num_threads) {
    if (num_bytes < 0 || num_threads < 1) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const auto* bytes = static_cast<const unsigned char*>(data);
    const int64_t num_chunks = (num_bytes + kChunkBytes - 1) / kChunkBytes;
    oarlock::split_rows(num_chunks, kChunkWords, num_threads, [&](int64_t begin, int64_t end) {
        for (int64_t chunk = begin; chunk < end; ++chunk) {
            const unsigned char* start = bytes + chunk * kChunkBytes;
            const int64_t size = chunk + 1 < num_chunks ? kChunkBytes : num_bytes - chunk * kChunkBytes;
            uint64_t sum = whole_words(start, size / 8, weights);
            if (size % 8 != 0) {
                sum += term(load_word(start + size / 8 * 8, size % 8), weights[size / 8]);
            }
            sums[chunk] = sum;
        }
    });
    return OARLOCK_OK;
}
