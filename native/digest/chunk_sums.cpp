// Chunk sums of digest64 of a long sequence of bytes, on several threads.
#include "oarlock.h"
#include "common/split_rows.h"
#include "digest/chunk_sum.h"

oarlock_status oarlock_digest_chunk_sums(const void* data, int64_t num_bytes, const uint64_t* weights, uint64_t* sums,
                                         int32_t num_threads) {
    using oarlock::kChunkBytes;
    if (num_bytes < 0 || num_threads < 1) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const auto* bytes = static_cast<const unsigned char*>(data);
    const int64_t num_chunks = (num_bytes + kChunkBytes - 1) / kChunkBytes;
    oarlock::split_rows(num_chunks, oarlock::kChunkWords, num_threads, [&](int64_t begin, int64_t end) {
        for (int64_t chunk = begin; chunk < end; ++chunk) {
            const int64_t size = chunk + 1 < num_chunks ? kChunkBytes : num_bytes - chunk * kChunkBytes;
            sums[chunk] = oarlock::chunk_sum(bytes + chunk * kChunkBytes, size, weights);
        }
    });
    return OARLOCK_OK;
}
