#include "memory/heap.h"

#include <new>

namespace oarlock::memory {

void BlockStore::reserve(size_t count) {
    while (num_spare_ < count) {
        slabs_.emplace_back(256);
        for (Block& b : slabs_.back()) {
            give(&b);
        }
    }
}

void Heap::add(uint64_t addr, uint64_t bytes, uint64_t page_bytes) {
    store.reserve(1);
    Arena arena;
    // calloc: the table of a terabyte range takes memory only where it is used.
    arena.pages.reset(static_cast<uint64_t*>(std::calloc(bytes / page_bytes, sizeof(uint64_t))));
    if (arena.pages == nullptr) {
        throw std::bad_alloc();
    }
    arena.heap = this;
    arena.addr = addr;
    arena.bytes = bytes;
    arena.page_bytes = page_bytes;
    arenas.push_back(std::move(arena));
    Block* b = store.take();
    b->addr = addr;
    b->size = bytes;
    b->prev = b->next = nullptr;
    b->arena = &arenas.back();
    b->state = State::kHole;
    arenas.back().first = b;
    enter(b);
}

void Heap::enter(Block* b) noexcept {
    if (b->state == State::kFree) {
        index.insert(b);
        return;
    }
    b->before = nullptr;
    b->after = holes;
    if (holes != nullptr) {
        holes->before = b;
    }
    holes = b;
}

void Heap::leave(Block* b) noexcept {
    if (b->state == State::kFree) {
        index.remove(b);
        return;
    }
    if (b->after != nullptr) {
        b->after->before = b->before;
    }
    (b->before != nullptr ? b->before->after : holes) = b->after;
}

Block* Heap::split(Block* b, uint64_t at) {
    Block* right = store.take();
    right->addr = at;
    right->size = b->end() - at;
    right->prev = b;
    right->next = b->next;
    right->arena = b->arena;
    right->state = b->state;
    right->uses = b->uses;
    if (b->next != nullptr) {
        b->next->prev = right;
    }
    b->next = right;
    b->size = at - b->addr;
    return right;
}

Block* Heap::merge(Block* b, std::vector<Block*>* graveyard) {
    const auto absorb = [&](Block* left, Block* right) {
        left->size += right->size;
        left->uses.add(right->uses);
        left->next = right->next;
        if (right->next != nullptr) {
            right->next->prev = left;
        }
        if (graveyard == nullptr) {
            store.give(right);
        } else {
            right->state = State::kMerged;
            right->prev = left;
            graveyard->push_back(right);
        }
    };
    Block* left = b->prev;
    if (left != nullptr && left->state == b->state) {
        leave(left);
        absorb(left, b);
        b = left;
    }
    Block* right = b->next;
    if (right != nullptr && right->state == b->state) {
        leave(right);
        absorb(b, right);
    }
    enter(b);
    return b;
}

Block* Heap::carve(Block* b, uint64_t from, uint64_t to, State state) {
    leave(b);
    Block* middle = b;
    if (from > b->addr) {
        middle = split(b, from);
        enter(b);
    }
    if (to < middle->end()) {
        enter(split(middle, to));
    }
    middle->state = state;
    return middle;
}

}  // namespace oarlock::memory
