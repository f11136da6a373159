// The chunk sum of digest64, whose definition is in oarlock/digest.py: S = sum_j mix(w_j) * k_j over at most 4096 words.
#ifndef OARLOCK_DIGEST_CHUNK_SUM_H_
#define OARLOCK_DIGEST_CHUNK_SUM_H_

#include <cstdint>
#include <cstring>

namespace oarlock {

constexpr int64_t kChunkWords = 4096;
constexpr int64_t kChunkBytes = 8 * kChunkWords;

// Little-endian, from any address; the bytes past the end count as zeros.
inline uint64_t load_word(const unsigned char* bytes, int64_t num_bytes) {
    uint64_t word = 0;
    for (int64_t i = 0; i < num_bytes; ++i) {
        word |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    }
    return word;
}

inline uint64_t digest_term(uint64_t word, uint64_t weight) {
    constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15U;
    const uint64_t mixed = word * kMultiplier;
    return (mixed ^ (mixed >> 32)) * weight;
}

inline uint64_t chunk_sum(const unsigned char* bytes, int64_t num_bytes, const uint64_t* weights) {
    const int64_t num_words = num_bytes / 8;
    // Four sums: multiplications take three cycles, but one can start in each.
    uint64_t sums[4] = {0, 0, 0, 0};
    int64_t j = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; j + 4 <= num_words; j += 4) {
        uint64_t words[4];
        std::memcpy(words, bytes + 8 * j, sizeof words);
        for (int lane = 0; lane < 4; ++lane) {
            sums[lane] += digest_term(words[lane], weights[j + lane]);
        }
    }
#endif
    for (; j < num_words; ++j) {
        sums[0] += digest_term(load_word(bytes + 8 * j, 8), weights[j]);
    }
    if (num_bytes % 8 != 0) {
        sums[0] += digest_term(load_word(bytes + 8 * num_words, num_bytes % 8), weights[num_words]);
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace oarlock

#endif  // OARLOCK_DIGEST_CHUNK_SUM_H_
