// Streams and what they may still be doing: each free is a tick of its stream's clock, events tell how far it has got.
#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "memory/driver.h"

namespace oarlock::memory {

// Work of a stream up to `tick` may still touch the memory.
struct Use {
    uint32_t stream = 0;
    uint64_t tick = 0;
};

// The latest use per stream. Nearly always one: the rest is kept apart.
struct Uses {
    Use first;  // tick 0: none
    std::vector<Use> more;

    void clear() {
        first = {};
        more.clear();
    }
    void add(Use use);
    void add(const Uses& other);
};

class Streams {
  public:
    explicit Streams(Driver& driver) : driver_(driver), has_streams_(driver.has_streams()) {}
    ~Streams() = default;

    uint32_t index(uint64_t id) {
        if (!has_streams_) {
            id = 0;
        }
        return last_ < streams_.size() && streams_[last_].id == id ? last_ : find(id);
    }
    uint64_t id(uint32_t stream) const { return streams_[stream].id; }
    size_t size() const { return streams_.size(); }
    // What is known of another's streams; their events stay with its driver.
    void copy(const Streams& from) { streams_ = from.streams_; }

    // A use by everything queued on the stream so far.
    Use use(uint32_t stream) { return has_streams_ ? Use{stream, ++streams_[stream].clock} : Use{}; }
    bool done(Use use) const { return use.tick == 0 || streams_[use.stream].done >= use.tick; }
    bool done(const Uses& uses) const;
    // Stream order makes the stream's own earlier work harmless to its later work.
    bool usable(const Uses& uses, uint32_t stream) const {
        return (uses.first.stream == stream || done(uses.first)) && (uses.more.empty() || usable_more(uses, stream));
    }

    // Has an event recorded behind the stream's uses so far; nothing where that fails, poll() tries again.
    void record(uint32_t stream);
    // Records what is not yet recorded, then asks the events. True if a stream got further.
    bool poll();
    // Has the stream begin what is queued from now on after these uses, which makes them harmless to it. False where an
    // event cannot be had or waited for; some may be waited for all the same.
    bool order(const Uses& uses, uint32_t stream);
    // Waits, without the lock, for the event that was recorded first. False if there is none or the driver failed.
    bool wait_oldest(std::unique_lock<std::mutex>& lock);
    // Waits for everything, with the lock held.
    bool wait_all();
    void forget_all();

  private:
    struct Event {
        uint64_t event;
        uint64_t clock;
        uint64_t order;
    };
    struct Stream {
        uint64_t id;
        uint64_t clock = 0;     // uses so far
        uint64_t recorded = 0;  // covered by an event
        uint64_t done = 0;
        std::deque<Event> events;
    };
    uint32_t find(uint64_t id);
    bool usable_more(const Uses& uses, uint32_t stream) const;
    bool order(Use use, uint32_t stream);

    Driver& driver_;
    const bool has_streams_;
    std::vector<Stream> streams_;
    uint32_t last_ = 0;
    uint64_t order_ = 0;
};

}  // namespace oarlock::memory
