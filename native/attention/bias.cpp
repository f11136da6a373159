// The additive form (0 or -infinity) of one rectangle of a column mask.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "attention/column_intervals.h"
#include "oarlock.h"

oarlock_status oarlock_mask_bias(const oarlock_column_mask* mask, int64_t index, int64_t row_begin, int64_t row_end,
                                 int64_t key_begin, int64_t key_end, float* bias) {
    if (!oarlock::is_valid_rectangle(mask, index, {row_begin, row_end}, {key_begin, key_end})) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    const int64_t width = key_end - key_begin;
    std::fill_n(bias, (row_end - row_begin) * width, -std::numeric_limits<float>::infinity());
    for (int64_t key = key_begin; key < key_end; ++key) {
        for (const oarlock::RowInterval& rows : oarlock::visible_intervals(*mask, index, key)) {
            const int64_t end = std::min(rows.end, row_end);
            for (int64_t row = std::max(rows.begin, row_begin); row < end; ++row) {
                bias[(row - row_begin) * width + (key - key_begin)] = 0.0F;
            }
        }
    }
    return OARLOCK_OK;
}
