// The last events of a pool, in a ring that is written under the pool's lock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "memory/block.h"
#include "oarlock.h"

namespace oarlock::memory {

// Of the calls of this thread.
inline thread_local Context context;

class Recorder {
  public:
    bool on() const { return on_; }

    // Keeps at least so many events; their numbers start at 0 again.
    void start(uint64_t num_events) {
        stop();
        uint64_t size = 1024;
        while (size < num_events) {
            size *= 2;
        }
        ring_.reset(static_cast<Line*>(std::aligned_alloc(64, size * sizeof(Line))));
        if (ring_ == nullptr) {
            throw std::bad_alloc();
        }
        std::memset(ring_.get(), 0, size * sizeof(Line));  // takes the pages now, not during a step
        mask_ = size - 1;
        next_ = ring_.get();
        end_ = next_ + size;
        on_ = true;
    }
    void stop() {
        on_ = false;
        ring_.reset();
        pending_.clear();
        count_ = 0;
    }

    // The clock is read for every 16th event, and for those that are rare: reading it takes as long as half an
    // allocation.
    void note(oarlock_pool_action action, uint64_t addr, uint64_t size, uint32_t stream, uint32_t tag, Context who,
              uint8_t detail) {
        if (action > OARLOCK_FREE_COMPLETED || (count_ & 15) == 0) {
            read_clock();
        }
        const uint64_t last =
            tag | uint64_t{static_cast<uint16_t>(stream)} << 32 | uint64_t{action} << 48 | uint64_t{detail} << 56;
        Line* to = next_;
        __builtin_prefetch(&ring_[(count_ + 8) & mask_], 1);
        next_ = to + 1 == end_ ? ring_.get() : to + 1;
        count_++;
        to->words[0] = time_;
        to->words[1] = addr;
        to->words[2] = size;
        to->words[3] = who.stack | uint64_t{who.name} << 32;
        to->words[4] = last;
    }

    void allocated(const Block* b, uint32_t tag, const Streams& streams) {
        if (!pending_.empty()) {
            complete(streams, b->addr, b->end());
        }
        note(OARLOCK_ALLOC, b->addr, b->size, b->stream, tag, b->who, 0);
    }

    // `held`: pins keep it; else it is pending while other streams than its own use it.
    void freed(const Block* b, uint32_t tag, bool held) {
        if (held || !b->uses.more.empty() || (b->uses.first.tick != 0 && b->uses.first.stream != b->stream)) {
            note(OARLOCK_FREE_REQUESTED, b->addr, b->size, b->stream, tag, b->who, 0);
            pending_.push_back({b->addr, b->size, b->uses, b->stream, tag, b->who, held});
        } else {
            note(OARLOCK_FREE_COMPLETED, b->addr, b->size, b->stream, tag, b->who, 0);
        }
    }

    // The pins of a freed block are gone.
    void unpinned(const Block* b) {
        for (Pending& p : pending_) {
            p.held = p.held && p.addr != b->addr;
        }
    }

    // Notes the completion of what the streams are done with, and of what lies in [from, to), which has a new owner.
    void complete(const Streams& streams, uint64_t from, uint64_t to) {
        size_t kept = 0;
        for (size_t i = 0; i < pending_.size(); i++) {
            const Pending& p = pending_[i];
            if ((!p.held && streams.done(p.uses)) || (p.addr < to && from < p.addr + p.size)) {
                note(OARLOCK_FREE_COMPLETED, p.addr, p.size, p.stream, p.tag, p.who, 0);
            } else {
                pending_[kept++] = p;
            }
        }
        pending_.resize(kept);
    }

    // Copies events from number `first` on, as far as they are kept; returns the number of the first one.
    uint64_t read(uint64_t first, oarlock_pool_event* out, uint64_t max, uint64_t* num) const {
        const uint64_t oldest = count_ > mask_ + 1 ? count_ - mask_ - 1 : 0;
        first = std::min(std::max(first, oldest), count_);
        *num = count_ - first;
        for (uint64_t i = 0; i < std::min(*num, max); i++) {
            std::memcpy(&out[i], &ring_[(first + i) & mask_], sizeof out[i]);
        }
        return first;
    }

  private:
    // An oarlock_pool_event as words, on a little-endian machine.
    struct Line {
        uint64_t words[5];
    };
    struct Free {
        void operator()(Line* p) const { std::free(p); }
    };
    static_assert(sizeof(Line) == sizeof(oarlock_pool_event));

    struct Pending {
        uint64_t addr;
        uint64_t size;
        Uses uses;
        uint32_t stream;
        uint32_t tag;
        Context who;
        bool held;
    };

    __attribute__((noinline, cold)) void read_clock() {
        const auto time = std::chrono::steady_clock::now().time_since_epoch();
        time_ = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
    }

    bool on_ = false;
    uint64_t count_ = 0;
    uint64_t mask_ = 0;
    uint64_t time_ = 0;
    Line* next_ = nullptr;
    Line* end_ = nullptr;
    std::unique_ptr<Line[], Free> ring_;
    std::vector<Pending> pending_;
};

}  // namespace oarlock::memory
