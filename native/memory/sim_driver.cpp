#include "memory/sim_driver.h"

#include <algorithm>

namespace oarlock::memory {

void SimDriver::hold(uint64_t stream, bool held) {
    const std::lock_guard<std::mutex> guard(events_mutex_);
    held_[stream] = held;
    if (!held) {
        for (auto& [event, marker] : events_) {
            marker.pending = marker.pending && marker.stream != stream;
        }
    }
}

bool SimDriver::reserve(uint64_t bytes, uint64_t* addr) {
    const uint64_t gap = page_bytes_ < (1 << 21) ? uint64_t{1} << 21 : page_bytes_;
    next_addr_ = (next_addr_ + gap - 1) / gap * gap;
    *addr = next_addr_;
    next_addr_ += bytes + gap;
    return true;
}

bool SimDriver::create(uint64_t* page) {
    *page = ++next_page_;
    where_[*page] = 0;
    return true;
}

bool SimDriver::release(uint64_t page) {
    const auto it = where_.find(page);
    if (it == where_.end() || it->second != 0) {
        return fail("release of a page that is mapped or does not exist");
    }
    where_.erase(it);
    return true;
}

bool SimDriver::map(uint64_t addr, uint64_t page) {
    const auto it = where_.find(page);
    if (it == where_.end() || it->second != 0 || mappings_.count(addr) != 0 || addr % page_bytes_ != 0) {
        return fail("map of a mapped page or address");
    }
    it->second = addr;
    mappings_[addr] = {page, 0};
    return true;
}

bool SimDriver::set_access(uint64_t addr, uint64_t bytes) {
    for (uint64_t a = addr; a < addr + bytes; a += page_bytes_) {
        const auto it = mappings_.find(a);
        if (it == mappings_.end()) {
            return fail("set_access on an address without a page");
        }
        it->second.access = num_devices_;
    }
    return true;
}

bool SimDriver::unmap(uint64_t addr, uint64_t bytes) {
    for (uint64_t a = addr; a < addr + bytes; a += page_bytes_) {
        if (mappings_.count(a) == 0) {
            return fail("unmap of an address without a page");
        }
    }
    for (uint64_t a = addr; a < addr + bytes; a += page_bytes_) {
        where_[mappings_[a].page] = 0;
        mappings_.erase(a);
    }
    return true;
}

bool SimDriver::record(uint64_t stream, uint64_t* event) {
    const std::lock_guard<std::mutex> guard(events_mutex_);
    *event = ++next_event_;
    const auto held = held_.find(stream);
    std::vector<uint64_t>& waits = waits_[stream];
    waits.erase(std::remove_if(waits.begin(), waits.end(), [&](uint64_t other) { return is_done(other); }),
                waits.end());
    events_[*event] = {stream, clock_ + lag_, held != held_.end() && held->second, waits};
    return true;
}

// A forgotten event holds nothing up any more.
bool SimDriver::is_done(uint64_t event) {
    const auto it = events_.find(event);
    if (it == events_.end()) {
        return true;
    }
    const Marker& marker = it->second;
    return !marker.pending && marker.due <= clock_ &&
           std::all_of(marker.after.begin(), marker.after.end(), [&](uint64_t other) { return is_done(other); });
}

// The stream gets as far as this event, and those that it waits for: the earlier ones are done too.
void SimDriver::finish(uint64_t event) {
    const auto it = events_.find(event);
    if (it == events_.end()) {
        return;
    }
    clock_ = std::max(clock_, it->second.due);
    for (auto& [other, marker] : events_) {
        marker.pending = marker.pending && !(marker.stream == it->second.stream && other <= event);
    }
    for (const uint64_t other : it->second.after) {
        finish(other);
    }
}

bool SimDriver::done(uint64_t event) {
    const std::lock_guard<std::mutex> guard(events_mutex_);
    return is_done(event);
}

bool SimDriver::wait(uint64_t event) {
    const std::lock_guard<std::mutex> guard(events_mutex_);
    finish(event);
    return true;
}

bool SimDriver::stream_wait(uint64_t stream, uint64_t event) {
    const std::lock_guard<std::mutex> guard(events_mutex_);
    waits_[stream].push_back(event);
    return true;
}

void SimDriver::forget(uint64_t event) {
    const std::lock_guard<std::mutex> guard(events_mutex_);
    events_.erase(event);
}

bool SimDriver::holds(uint64_t addr, uint64_t page) const {
    const auto it = mappings_.find(addr);
    return it != mappings_.end() && it->second.page == page && it->second.access >= num_devices_;
}

}  // namespace oarlock::memory
