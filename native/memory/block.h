// A piece of a heap's address space.
#pragma once

#include <cstdint>

#include "memory/streams.h"

namespace oarlock::memory {

// Who asked, in numbers of the caller's language.
struct Context {
    uint32_t stack = 0;
    uint32_t name = 0;
};

constexpr uint64_t kAlignment = 512;

enum class State : uint8_t {
    kLive = 0,
    kFree = 1,    // memory behind it, nobody's
    kHole = 2,    // no memory behind it; page-aligned
    kHeld = 3,    // freed, but pinned: neither reused nor moved
    kLost = 4,    // a page that the driver would neither give back nor take: never used again
    kMerged = 5,  // absorbed by `prev` during a transaction
};

struct Heap;
struct Arena;

struct Block {
    uint64_t addr = 0;
    uint64_t size = 0;
    Block* prev = nullptr;  // in address order, inside the arena
    Block* next = nullptr;
    Block* before = nullptr;  // in the list of its bin, or of the heap's holes
    Block* after = nullptr;
    Arena* arena = nullptr;
    uint64_t requested = 0;
    Context who;
    Uses uses;  // of a live block: the other streams that use it
    uint32_t stream = 0;
    uint32_t pins = 0;
    State state = State::kHole;

    uint64_t end() const { return addr + size; }
};

}  // namespace oarlock::memory
