// digest64 and the largest magnitude of a tensor's values in one call, for tensors so short that calls are what costs.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "oarlock.h"
#include "digest/chunk_sum.h"

namespace {

uint64_t splitmix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

// Chunk sums of chunk sums until one is left; the tree of the definition.
uint64_t root_of(const unsigned char* bytes, int64_t num_bytes, const uint64_t* weights) {
    using oarlock::kChunkBytes;
    if (num_bytes <= kChunkBytes) {
        return num_bytes == 0 ? 0 : oarlock::chunk_sum(bytes, num_bytes, weights);
    }
    std::vector<unsigned char> sums;  // little-endian words
    sums.reserve(static_cast<size_t>(8 * ((num_bytes + kChunkBytes - 1) / kChunkBytes)));
    for (int64_t start = 0; start < num_bytes; start += kChunkBytes) {
        const int64_t size = num_bytes - start < kChunkBytes ? num_bytes - start : kChunkBytes;
        const uint64_t sum = oarlock::chunk_sum(bytes + start, size, weights);
        for (int shift = 0; shift < 64; shift += 8) {
            sums.push_back(static_cast<unsigned char>(sum >> shift));
        }
    }
    return root_of(sums.data(), static_cast<int64_t>(sums.size()), weights);
}

// Without their sign, floating-point numbers are ordered as their bits are; infinity and NaN come last. Signed, because
// more instruction sets compare those.
template <typename Bits>
Bits largest_bits(const unsigned char* bytes, int64_t num_bytes) {
    Bits largest = 0;
    for (int64_t start = 0; start < num_bytes; start += static_cast<int64_t>(sizeof(Bits))) {
        Bits bits;
        std::memcpy(&bits, bytes + start, sizeof bits);
        bits = static_cast<Bits>(bits & std::numeric_limits<Bits>::max());
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

template <typename Float, typename Bits>
double as_float(Bits bits) {
    Float value;
    std::memcpy(&value, &bits, sizeof value);
    return static_cast<double>(value);
}

double as_half(int16_t bits) {
    const int exponent = bits >> 10, fraction = bits & 1023;
    if (exponent == 31) {
        return fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    }
    return exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
}

double largest_of(const unsigned char* bytes, int64_t num_bytes, int32_t values) {
    switch (values) {
        case OARLOCK_CONTENT_FLOAT64:
            return as_float<double>(largest_bits<int64_t>(bytes, num_bytes));
        case OARLOCK_CONTENT_FLOAT32:
            return as_float<float>(largest_bits<int32_t>(bytes, num_bytes));
        case OARLOCK_CONTENT_BFLOAT16:
            return as_float<float>(static_cast<int32_t>(largest_bits<int16_t>(bytes, num_bytes)) << 16);
        case OARLOCK_CONTENT_FLOAT16:
            return as_half(largest_bits<int16_t>(bytes, num_bytes));
        default:
            return 0;
    }
}

}  // namespace

oarlock_status oarlock_digest_content(const void* data, int64_t num_bytes, int32_t values, uint64_t header_sum,
                                      const uint64_t* weights, oarlock_content* content) {
    if (num_bytes < 0 || values < OARLOCK_CONTENT_OTHER || values > OARLOCK_CONTENT_FLOAT16) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const auto* bytes = static_cast<const unsigned char*>(data);
    const uint64_t root = root_of(bytes, num_bytes, weights);
    content->digest = splitmix(oarlock::digest_term(root, weights[0]) + header_sum);
    content->largest = largest_of(bytes, num_bytes, values);
    return OARLOCK_OK;
}
