// First and last visible key of every row, in time linear in Sq + Sk.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "attention/column_intervals.h"
#include "common/guard.h"
#include "oarlock.h"

namespace oarlock {
namespace {

// Hands out each row once: claim(rows, f) calls f for those rows of the interval that nobody claimed before.
class UnclaimedRows {
  public:
    explicit UnclaimedRows(int64_t num_rows) : next_(static_cast<size_t>(num_rows) + 1), num_left_(num_rows) {
        std::iota(next_.begin(), next_.end(), size_t{0});
    }

    template <typename Function>
    void claim(RowInterval rows, Function&& function) {
        const auto end = static_cast<size_t>(rows.end);
        for (size_t row = find(static_cast<size_t>(rows.begin)); row < end; row = find(row + 1)) {
            function(static_cast<int64_t>(row));
            next_[row] = end;
            --num_left_;
        }
    }

    bool is_empty() const { return num_left_ == 0; }

  private:
    // Union-find with path halving: the first unclaimed row at or after `row`.
    size_t find(size_t row) {
        while (next_[row] != row) {
            next_[row] = next_[next_[row]];
            row = next_[row];
        }
        return row;
    }

    std::vector<size_t> next_;
    int64_t num_left_;
};

void row_spans(const oarlock_column_mask& mask, int64_t index, int64_t* first, int64_t* last) {
    std::fill_n(first, mask.seqlen_q, 0);
    std::fill_n(last, mask.seqlen_q, 0);
    UnclaimedRows ascending(mask.seqlen_q);
    for (int64_t key = 0; key < mask.seqlen_k && !ascending.is_empty(); ++key) {
        for (const RowInterval& rows : visible_intervals(mask, index, key)) {
            ascending.claim(rows, [&](int64_t row) { first[row] = key; });
        }
    }
    UnclaimedRows descending(mask.seqlen_q);
    for (int64_t key = mask.seqlen_k - 1; key >= 0 && !descending.is_empty(); --key) {
        for (const RowInterval& rows : visible_intervals(mask, index, key)) {
            descending.claim(rows, [&](int64_t row) { last[row] = key + 1; });
        }
    }
}

}  // namespace
}  // namespace oarlock

oarlock_status oarlock_mask_row_spans(const oarlock_column_mask* mask, int64_t* first, int64_t* last,
                                      int32_t num_threads) {
    if (!oarlock::is_valid(mask) || num_threads < 1) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    oarlock_status worst = OARLOCK_OK;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1)
    for (int64_t index = 0; index < mask->num_masks; ++index) {
        const int64_t offset = index * mask->seqlen_q;
        const oarlock_status status =
            oarlock::guarded([&] { oarlock::row_spans(*mask, index, first + offset, last + offset); });
        if (status != OARLOCK_OK) {
#pragma omp critical
            worst = status;
        }
    }
    return worst;
}
