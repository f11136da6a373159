// From the address of an allocation to its block: open addressing, half full at most.
#pragma once

#include <vector>

#include "memory/block.h"

namespace oarlock::memory {

class PointerMap {
  public:
    PointerMap() : slots_(1024, nullptr) {}

    size_t size() const { return size_; }

    Block* find(uint64_t addr) const {
        for (size_t i = home(addr);; i = (i + 1) & (slots_.size() - 1)) {
            if (slots_[i] == nullptr || slots_[i]->addr == addr) {
                return slots_[i];
            }
        }
    }

    // Room for one more; insert() then cannot fail.
    void make_room() {
        if ((size_ + 1) * 2 <= slots_.size()) {
            return;
        }
        std::vector<Block*> old(slots_.size() * 2, nullptr);
        old.swap(slots_);
        shift_--;
        size_ = 0;
        for (Block* b : old) {
            if (b != nullptr) {
                insert(b);
            }
        }
    }

    void insert(Block* b) noexcept {
        size_t i = home(b->addr);
        while (slots_[i] != nullptr) {
            i = (i + 1) & (slots_.size() - 1);
        }
        slots_[i] = b;
        size_++;
    }

    void erase(uint64_t addr) noexcept {
        const size_t mask = slots_.size() - 1;
        size_t hole = home(addr);
        while (slots_[hole]->addr != addr) {
            hole = (hole + 1) & mask;
        }
        // Entries behind it move up where that brings them no further than their home.
        for (size_t i = (hole + 1) & mask; slots_[i] != nullptr; i = (i + 1) & mask) {
            if (((i - home(slots_[i]->addr)) & mask) >= ((i - hole) & mask)) {
                slots_[hole] = slots_[i];
                hole = i;
            }
        }
        slots_[hole] = nullptr;
        size_--;
    }

    template <typename Body>
    void each(const Body& body) const {
        for (Block* b : slots_) {
            if (b != nullptr) {
                body(b);
            }
        }
    }

  private:
    size_t home(uint64_t addr) const {
        return static_cast<size_t>((addr / kAlignment * 0x9E3779B97F4A7C15u) >> shift_);
    }

    std::vector<Block*> slots_;
    int shift_ = 54;  // 64 - log2 of the number of slots
    size_t size_ = 0;
};

}  // namespace oarlock::memory
