// Address space of one tag and size class: blocks in address order, its free ones by size, its holes.
#pragma once

#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "memory/block.h"
#include "memory/free_index.h"

namespace oarlock::memory {

// One reserved range of addresses. pages[i] is the physical page behind addr + i * page_bytes, 0 for none.
struct Arena {
    struct Free {
        void operator()(uint64_t* p) const { std::free(p); }
    };
    Heap* heap = nullptr;
    uint64_t addr = 0;
    uint64_t bytes = 0;
    uint64_t page_bytes = 0;
    std::unique_ptr<uint64_t[], Free> pages;
    Block* first = nullptr;

    uint64_t page_of(uint64_t at) const { return (at - addr) / page_bytes; }
    uint64_t page_addr(uint64_t page) const { return addr + page * page_bytes; }
};

// Hands out blocks and takes them back; grows by slabs, so that taking one after reserve() cannot fail.
class BlockStore {
  public:
    void reserve(size_t count);
    Block* take() noexcept {
        Block* b = spare_;
        spare_ = b->after;
        num_spare_--;
        return b;
    }
    void give(Block* b) noexcept {
        b->uses.clear();
        b->pins = 0;
        b->after = spare_;
        spare_ = b;
        num_spare_++;
    }
    size_t num_spare() const { return num_spare_; }

  private:
    std::deque<std::vector<Block>> slabs_;
    Block* spare_ = nullptr;
    size_t num_spare_ = 0;
};

struct SavedBlock {
    uint64_t addr;
    uint64_t size;
    std::unique_ptr<char[]> bytes;
};

struct Heap {
    Heap(uint32_t tag_, BlockStore& store_) : tag(tag_), store(store_) {}

    const uint32_t tag;
    BlockStore& store;
    bool asleep = false;
    std::deque<Arena> arenas;
    FreeIndex index;
    Block* holes = nullptr;
    std::vector<SavedBlock> saved;

    // Adds a reserved range as one hole.
    void add(uint64_t addr, uint64_t bytes, uint64_t page_bytes);

    // Fills an empty heap.
    void copy(const Heap& from);

    // Into and out of the index of its state (free or hole).
    void enter(Block* b) noexcept;
    void leave(Block* b) noexcept;
    // Cuts a block that is in no index; the right part has the same state and uses. Returns the right part.
    Block* split(Block* b, uint64_t at);
    // Joins a free block or hole, which is in no index, with neighbours of its state, then enters it. The absorbed ones
    // are given back, or kept as kMerged with `prev` leading to their absorber where `graveyard` is given.
    Block* merge(Block* b, std::vector<Block*>* graveyard = nullptr);
    // [from, to) of a block that is in its index becomes a block of its own, in no index; the rest stays entered.
    Block* carve(Block* b, uint64_t from, uint64_t to, State state);
};

}  // namespace oarlock::memory
