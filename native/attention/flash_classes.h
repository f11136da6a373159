// Which rows see some, and which see all, of each chunk of 8 keys: exact classes of every tile, in O(Sk) memory.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/flash.h"

namespace oarlock {

class MaskClasses {
  public:
    MaskClasses(const oarlock_column_mask& mask, int64_t index);

    ClassTable table() const;

    // Visible (group of `group_rows` rows, chunk) pairs of each group.
    std::vector<int64_t> chunks_per_group(int64_t group_rows, int64_t seqlen_q) const;

    // No row outside of hulls()[b] sees a key of block b.
    const std::vector<RowRange>& hulls() const { return hull_; }

  private:
    void add_chunk(const oarlock_column_mask& mask, int64_t index, int64_t key_begin);

    std::vector<HiddenRows> hidden_;
    std::vector<int32_t> some_begin_ = {0};
    std::vector<RowRange> some_;
    std::vector<int32_t> all_begin_ = {0};
    std::vector<RowRange> all_;
    std::vector<RowRange> hull_;
};

}  // namespace oarlock
