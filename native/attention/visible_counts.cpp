// Exact visible counts of a column mask, without ever looking at one of its Sq x Sk entries.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/column_intervals.h"
#include "common/guard.h"
#include "oarlock.h"

namespace oarlock {
namespace {

// Each visible interval adds +1 at its first row and -1 after its last; the running sum is the count of the row.
void count_rows(const oarlock_column_mask& mask, int64_t index, int64_t* counts) {
    std::vector<int64_t> steps(static_cast<size_t>(mask.seqlen_q) + 1, 0);
    for (int64_t key = 0; key < mask.seqlen_k; ++key) {
        for (const RowInterval& rows : visible_intervals(mask, index, key)) {
            ++steps[static_cast<size_t>(rows.begin)];
            --steps[static_cast<size_t>(rows.end)];
        }
    }
    int64_t running = 0;
    for (int64_t row = 0; row < mask.seqlen_q; ++row) {
        running += steps[static_cast<size_t>(row)];
        counts[row] = running;
    }
}

// As count_rows, per key block and with tiles for rows: an interval adds its two ends by size, whole tiles by steps.
void count_tiles(const oarlock_column_mask& mask, int64_t index, int64_t block_q, RowInterval keys, int64_t stride,
                 int64_t* counts) {
    const int64_t num_tiles = (mask.seqlen_q + block_q - 1) / block_q;
    std::vector<int64_t> partial(static_cast<size_t>(num_tiles), 0);
    std::vector<int64_t> steps(static_cast<size_t>(num_tiles) + 1, 0);
    for (int64_t key = keys.begin; key < keys.end; ++key) {
        for (const RowInterval& rows : visible_intervals(mask, index, key)) {
            const int64_t first = rows.begin / block_q;
            const int64_t last = (rows.end - 1) / block_q;
            if (first == last) {
                partial[static_cast<size_t>(first)] += rows.size();
                continue;
            }
            partial[static_cast<size_t>(first)] += (first + 1) * block_q - rows.begin;
            partial[static_cast<size_t>(last)] += rows.end - last * block_q;
            ++steps[static_cast<size_t>(first) + 1];
            --steps[static_cast<size_t>(last)];
        }
    }
    int64_t running = 0;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
        running += steps[static_cast<size_t>(tile)];
        counts[tile * stride] = partial[static_cast<size_t>(tile)] + running * block_q;
    }
}

}  // namespace
}  // namespace oarlock

oarlock_status oarlock_mask_visible_per_row(const oarlock_column_mask* mask, int64_t* counts, int32_t num_threads) {
    if (!oarlock::is_valid(mask) || num_threads < 1) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    oarlock_status worst = OARLOCK_OK;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1)
    for (int64_t index = 0; index < mask->num_masks; ++index) {
        const oarlock_status status =
            oarlock::guarded([&] { oarlock::count_rows(*mask, index, counts + index * mask->seqlen_q); });
        if (status != OARLOCK_OK) {
#pragma omp critical
            worst = status;
        }
    }
    return worst;
}

oarlock_status oarlock_mask_visible_per_key(const oarlock_column_mask* mask, int64_t index, int64_t row_begin,
                                            int64_t row_end, int64_t key_begin, int64_t key_end, int64_t* counts) {
    if (!oarlock::is_valid_rectangle(mask, index, {row_begin, row_end}, {key_begin, key_end})) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    for (int64_t key = key_begin; key < key_end; ++key) {
        int64_t visible = 0;
        for (const oarlock::RowInterval& rows : oarlock::visible_intervals(*mask, index, key)) {
            const int64_t overlap = std::min(rows.end, row_end) - std::max(rows.begin, row_begin);
            visible += std::max<int64_t>(overlap, 0);
        }
        counts[key - key_begin] = visible;
    }
    return OARLOCK_OK;
}

oarlock_status oarlock_mask_visible_per_tile(const oarlock_column_mask* mask, int64_t block_q, int64_t block_k,
                                             int64_t* counts, int32_t num_threads) {
    if (!oarlock::is_valid(mask) || block_q < 1 || block_k < 1 || num_threads < 1) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const int64_t tiles_q = (mask->seqlen_q + block_q - 1) / block_q;
    const int64_t tiles_k = (mask->seqlen_k + block_k - 1) / block_k;
    oarlock_status worst = OARLOCK_OK;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1)
    for (int64_t item = 0; item < mask->num_masks * tiles_k; ++item) {
        const int64_t index = item / tiles_k;
        const int64_t tile_k = item % tiles_k;
        const oarlock::RowInterval keys = {tile_k * block_k, std::min((tile_k + 1) * block_k, mask->seqlen_k)};
        const oarlock_status status = oarlock::guarded([&] {
            oarlock::count_tiles(*mask, index, block_q, keys, tiles_k, counts + index * tiles_q * tiles_k + tile_k);
        });
        if (status != OARLOCK_OK) {
#pragma omp critical
            worst = status;
        }
    }
    return worst;
}
