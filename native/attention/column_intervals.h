// The rows that one key column of a column mask shows: the complement of its masked row intervals.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "oarlock.h"

namespace oarlock {

struct RowInterval {
    int64_t begin;
    int64_t end;
    int64_t size() const { return end - begin; }
};

// A column has at most two masked intervals (one plus the causal triangle, or two), hence at most three visible ones.
struct VisibleIntervals {
    RowInterval items[3];
    int count = 0;

    const RowInterval* begin() const { return items; }
    const RowInterval* end() const { return items + count; }
};

inline bool is_valid(const oarlock_column_mask* mask) {
    if (mask == nullptr || mask->num_masks < 0 || mask->seqlen_q < 0 || mask->seqlen_k < 0) {
        return false;
    }
    const int32_t n = mask->num_bounds;
    return mask->causal ? n == 1 || n == 2 : n == 2 || n == 4;
}

inline bool is_valid_rectangle(const oarlock_column_mask* mask, int64_t index, RowInterval rows, RowInterval keys) {
    return is_valid(mask) && 0 <= index && index < mask->num_masks && 0 <= rows.begin && rows.begin <= rows.end &&
           rows.end <= mask->seqlen_q && 0 <= keys.begin && keys.begin <= keys.end && keys.end <= mask->seqlen_k;
}

inline RowInterval clipped(int64_t begin, int64_t end, int64_t seqlen_q) {
    begin = std::clamp<int64_t>(begin, 0, seqlen_q);
    end = std::clamp<int64_t>(end, begin, seqlen_q);
    return {begin, end};
}

// Visible row intervals of column `key` of mask `index`, ascending, disjoint and not empty.
inline VisibleIntervals visible_intervals(const oarlock_column_mask& mask, int64_t index, int64_t key) {
    const int32_t* r = mask.bounds + (index * mask.seqlen_k + key) * mask.num_bounds;
    const int64_t rows = mask.seqlen_q;
    RowInterval first;
    RowInterval second;
    if (mask.causal) {
        first = clipped(0, key - (mask.seqlen_k - rows), rows);
        second = clipped(r[0], mask.num_bounds == 1 ? rows : r[1], rows);
    } else if (mask.num_bounds == 2) {
        first = clipped(0, r[1], rows);
        second = clipped(r[0], rows, rows);
    } else {
        first = clipped(r[0], r[1], rows);
        second = clipped(r[2], r[3], rows);
    }
    if (second.begin < first.begin) {
        std::swap(first, second);
    }

    VisibleIntervals visible;
    int64_t cursor = 0;
    const auto emit_until = [&](int64_t end) {
        if (cursor < end) {
            visible.items[visible.count++] = {cursor, end};
        }
    };
    for (const RowInterval& masked : {first, second}) {
        if (masked.size() == 0) {
            continue;
        }
        emit_until(masked.begin);
        cursor = std::max(cursor, masked.end);
    }
    emit_until(rows);
    return visible;
}

}  // namespace oarlock
