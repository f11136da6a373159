#include "memory/streams.h"

#include <algorithm>

namespace oarlock::memory {

void Uses::add(Use use) {
    if (use.tick == 0) {
        return;
    }
    if (first.tick == 0) {
        first = use;
        return;
    }
    if (first.stream == use.stream) {
        first.tick = std::max(first.tick, use.tick);
        return;
    }
    for (Use& other : more) {
        if (other.stream == use.stream) {
            other.tick = std::max(other.tick, use.tick);
            return;
        }
    }
    more.push_back(use);
}

void Uses::add(const Uses& other) {
    add(other.first);
    for (const Use& use : other.more) {
        add(use);
    }
}

uint32_t Streams::find(uint64_t id) {
    for (uint32_t i = 0; i < streams_.size(); i++) {
        if (streams_[i].id == id) {
            return last_ = i;
        }
    }
    streams_.push_back({id, 0, 0, 0, {}});
    return last_ = static_cast<uint32_t>(streams_.size() - 1);
}

bool Streams::done(const Uses& uses) const {
    return done(uses.first) && std::all_of(uses.more.begin(), uses.more.end(), [&](Use use) { return done(use); });
}

bool Streams::usable_more(const Uses& uses, uint32_t stream) const {
    return std::all_of(uses.more.begin(), uses.more.end(), [&](Use use) { return use.stream == stream || done(use); });
}

void Streams::record(uint32_t stream) {
    Stream& s = streams_[stream];
    uint64_t event = 0;
    if (s.recorded < s.clock && driver_.record(s.id, &event)) {
        s.events.push_back({event, s.clock, order_++});
        s.recorded = s.clock;
    }
}

bool Streams::poll() {
    bool further = false;
    for (uint32_t i = 0; i < streams_.size(); i++) {
        record(i);
        Stream& s = streams_[i];
        while (!s.events.empty() && driver_.done(s.events.front().event)) {
            s.done = std::max(s.done, s.events.front().clock);
            driver_.forget(s.events.front().event);
            s.events.pop_front();
            further = true;
        }
    }
    return further;
}

bool Streams::order(Use use, uint32_t stream) {
    if (use.stream == stream || done(use)) {
        return true;
    }
    record(use.stream);
    const std::deque<Event>& events = streams_[use.stream].events;
    const auto covers = std::find_if(events.begin(), events.end(), [&](const Event& e) { return e.clock >= use.tick; });
    return covers != events.end() && driver_.stream_wait(streams_[stream].id, covers->event);
}

bool Streams::order(const Uses& uses, uint32_t stream) {
    return order(uses.first, stream) &&
           std::all_of(uses.more.begin(), uses.more.end(), [&](Use use) { return order(use, stream); });
}

bool Streams::wait_oldest(std::unique_lock<std::mutex>& lock) {
    size_t oldest = streams_.size();
    for (size_t i = 0; i < streams_.size(); i++) {
        if (!streams_[i].events.empty() &&
            (oldest == streams_.size() || streams_[i].events.front().order < streams_[oldest].events.front().order)) {
            oldest = i;
        }
    }
    if (oldest == streams_.size()) {
        return false;
    }
    // Taken out of the queue, so that nobody else asks or forgets it while the lock is open.
    const Event event = streams_[oldest].events.front();
    streams_[oldest].events.pop_front();
    lock.unlock();
    const bool waited = driver_.wait(event.event);
    lock.lock();
    Stream& s = streams_[oldest];
    if (!waited) {
        s.events.push_front(event);
        return false;
    }
    s.done = std::max(s.done, event.clock);
    driver_.forget(event.event);
    return true;
}

bool Streams::wait_all() {
    for (uint32_t i = 0; i < streams_.size(); i++) {
        if (has_streams_) {
            streams_[i].clock++;  // also the work of blocks that are still live
        }
        record(i);
        Stream& s = streams_[i];
        if (s.recorded < s.clock || (!s.events.empty() && !driver_.wait(s.events.back().event))) {
            return false;
        }
        for (const Event& event : s.events) {
            driver_.forget(event.event);
        }
        s.events.clear();
        s.done = s.clock;
    }
    return true;
}

void Streams::forget_all() {
    for (Stream& s : streams_) {
        for (const Event& event : s.events) {
            driver_.forget(event.event);
        }
        s.events.clear();
    }
}

}  // namespace oarlock::memory
