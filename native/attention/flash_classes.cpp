#include "attention/flash_classes.h"

#include <algorithm>

#include "attention/column_intervals.h"

namespace oarlock {
namespace {

using Ranges = std::vector<RowRange>;

// Rows beyond the last one, which fill up vectors, belong to what is hidden at the end.
HiddenRows hidden_rows(const VisibleIntervals& visible, int32_t seqlen_q) {
    HiddenRows hidden = {};
    int count = 0;
    int32_t cursor = 0;
    const auto hide_until = [&](int32_t end) {
        if (cursor < end) {
            hidden.ranges[count++] = {cursor, end};
        }
    };
    for (const RowInterval& rows : visible) {
        hide_until(static_cast<int32_t>(rows.begin));
        cursor = static_cast<int32_t>(rows.end);
    }
    if (cursor < seqlen_q) {
        hide_until(INT32_MAX);
    }
    return hidden;
}

// Sorts and joins ranges that touch or overlap.
void unite(Ranges& ranges) {
    std::sort(ranges.begin(), ranges.end(), [](RowRange a, RowRange b) { return a.begin < b.begin; });
    size_t count = 0;
    for (const RowRange range : ranges) {
        if (count > 0 && range.begin <= ranges[count - 1].end) {
            ranges[count - 1].end = std::max(ranges[count - 1].end, range.end);
        } else {
            ranges[count++] = range;
        }
    }
    ranges.resize(count);
}

Ranges common(const Ranges& left, const VisibleIntervals& right) {
    Ranges both;
    for (const RowRange a : left) {
        for (const RowInterval& b : right) {
            const int32_t begin = std::max(a.begin, static_cast<int32_t>(b.begin));
            const int32_t end = std::min(a.end, static_cast<int32_t>(b.end));
            if (begin < end) {
                both.push_back({begin, end});
            }
        }
    }
    return both;
}

bool is_same(const HiddenRows& a, const HiddenRows& b) {
    const auto equal = [](RowRange x, RowRange y) { return x.begin == y.begin && x.end == y.end; };
    return equal(a.ranges[0], b.ranges[0]) && equal(a.ranges[1], b.ranges[1]);
}

}  // namespace

MaskClasses::MaskClasses(const oarlock_column_mask& mask, int64_t index) {
    const int64_t num_chunks = (mask.seqlen_k + kChunk - 1) / kChunk;
    const auto size = static_cast<size_t>(num_chunks);
    hidden_.reserve(size * kChunk);
    some_begin_.reserve(size + 1);
    all_begin_.reserve(size + 1);
    for (int64_t key = 0; key < mask.seqlen_k; key += kChunk) {
        add_chunk(mask, index, key);
    }
}

void MaskClasses::add_chunk(const oarlock_column_mask& mask, int64_t index, int64_t key_begin) {
    const auto seqlen_q = static_cast<int32_t>(mask.seqlen_q);
    const int64_t key_end = std::min(key_begin + kChunk, mask.seqlen_k);
    Ranges some;
    Ranges all = {{0, seqlen_q}};
    for (int64_t key = key_begin; key < key_end; ++key) {
        const VisibleIntervals visible = visible_intervals(mask, index, key);
        const HiddenRows hidden = hidden_rows(visible, seqlen_q);
        const bool is_news = key == key_begin || !is_same(hidden, hidden_.back());
        hidden_.push_back(hidden);
        if (!is_news) {
            continue;
        }
        for (const RowInterval& rows : visible) {
            some.push_back({static_cast<int32_t>(rows.begin), static_cast<int32_t>(rows.end)});
        }
        all = common(all, visible);
    }
    unite(some);
    for (int64_t key = key_end; key < key_begin + kChunk; ++key) {  // beyond the last key
        hidden_.push_back({{{0, INT32_MAX}, {0, 0}}});
        all.clear();
    }

    if (key_begin % kKeyBlock == 0) {
        hull_.push_back({seqlen_q, 0});
    }
    for (const RowRange rows : some) {
        hull_.back().begin = std::min(hull_.back().begin, rows.begin);
        hull_.back().end = std::max(hull_.back().end, rows.end);
    }
    some_.insert(some_.end(), some.begin(), some.end());
    all_.insert(all_.end(), all.begin(), all.end());
    some_begin_.push_back(static_cast<int32_t>(some_.size()));
    all_begin_.push_back(static_cast<int32_t>(all_.size()));
}

ClassTable MaskClasses::table() const {
    return {hidden_.data(), some_begin_.data(), some_.data(), all_begin_.data(), all_.data(), hull_.data()};
}

std::vector<int64_t> MaskClasses::chunks_per_group(int64_t group_rows, int64_t seqlen_q) const {
    std::vector<int64_t> counts(static_cast<size_t>((seqlen_q + group_rows - 1) / group_rows) + 1, 0);
    for (const RowRange rows : some_) {
        ++counts[static_cast<size_t>(rows.begin / group_rows)];
        --counts[static_cast<size_t>((rows.end - 1) / group_rows) + 1];
    }
    int64_t running = 0;
    for (int64_t& count : counts) {
        running += count;
        count = running;
    }
    counts.pop_back();
    return counts;
}

}  // namespace oarlock
