// What the pool says about itself: figures, blocks, why a request failed, and whether its books agree.
#include <algorithm>
#include <cstdio>

#include "memory/pool.h"

namespace oarlock::memory {
namespace {

std::string amount(uint64_t bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    for (; value >= 1024 && unit < 4; unit++) {
        value /= 1024;
    }
    char text[32];
    std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return text;
}

}  // namespace

std::string Pool::fault() {
    // What failed first, not what failed while it was undone.
    const std::string reason = rollback_reason_.empty() ? driver_->error() : rollback_reason_;
    rollback_reason_.clear();
    return "the driver failed (" + reason + "), and what it had done was undone";
}

void Pool::survey(oarlock_pool_stats* out) const {
    each_block([&](const Heap& h, const Block* b) {
        const int64_t size = static_cast<int64_t>(b->size);
        const int64_t whole = static_cast<int64_t>(whole_pages(b) * page_bytes_);
        switch (b->state) {
            case State::kLive:
                out->num_live++;
                out->pinned_bytes += b->pins > 0 ? size : 0;
                out->asleep_bytes += h.asleep ? size : 0;
                break;
            case State::kHeld:
                out->pinned_bytes += size;
                out->held_bytes += size;
                break;
            case State::kFree:
                if (h.asleep) {
                    break;
                }
                out->num_free++;
                out->free_bytes += size;
                out->stranded_bytes += size - whole;
                out->blocked_bytes += streams_.done(b->uses) ? 0 : size;
                break;
            case State::kHole:
                out->num_holes++;
                break;
            case State::kLost:
            case State::kMerged:
                break;
        }
    });
}

void Pool::stats(oarlock_pool_stats* out) {
    *out = {};
    if (gone()) {
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    *out = stats_;
    out->capacity_bytes = static_cast<int64_t>(limit_ * page_bytes_);
    out->page_bytes = static_cast<int64_t>(page_bytes_);
    out->reserved_bytes = static_cast<int64_t>(num_created_ * page_bytes_);
    out->spare_bytes = static_cast<int64_t>(spare_.size() * page_bytes_);
    survey(out);
}

uint64_t Pool::largest_locked(Heap& h, uint32_t stream) {
    const uint64_t obtainable = spare_.size() + creatable(limit_) + num_donor_pages();
    uint64_t low = obtainable * page_bytes_;  // in a new reservation
    h.index.each(kAlignment,
                 [&](const Block* b) { low = std::max(low, streams_.usable(b->uses, stream) ? b->size : 0); });
    uint64_t high = limit_ * page_bytes_;
    while (low < high) {
        const uint64_t middle = low + (high - low + kAlignment) / (2 * kAlignment) * kAlignment;
        Window window;
        if (find_window(h, middle, stream, obtainable, &window)) {
            low = middle;
        } else {
            high = middle - kAlignment;
        }
    }
    return low;
}

uint64_t Pool::largest(uint64_t stream_id, uint32_t tag) {
    if (gone()) {
        return 0;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.poll();
    Heap& h = heap(tag, limit_ * page_bytes_);
    return h.asleep ? 0 : largest_locked(h, streams_.index(stream_id));
}

std::string Pool::explain(Heap& h, uint64_t size, uint32_t stream) {
    oarlock_pool_stats s{};
    survey(&s);
    const auto bytes = [](int64_t n) { return static_cast<uint64_t>(n); };
    const uint64_t capacity = limit_ * page_bytes_;
    const uint64_t live = bytes(stats_.live_bytes);
    const uint64_t awake = live - bytes(s.asleep_bytes);
    const uint64_t reserved = num_created_ * page_bytes_;
    std::string text = "out of memory: " + amount(size) + " requested of a pool of " + amount(capacity) + " (" +
                       amount(reserved) + " from the device), with " + amount(live) + " live, " +
                       amount(bytes(s.free_bytes)) + " free, of which " + amount(bytes(s.stranded_bytes)) +
                       " stranded in pages that are partly in use and " + amount(bytes(s.blocked_bytes)) +
                       " blocked by events of streams, " + amount(bytes(s.pinned_bytes)) + " pinned, " +
                       amount(bytes(s.asleep_bytes)) + " asleep";
    text += "; largest servable request " + amount(largest_locked(h, stream)) + ". ";
    std::string help;
    const auto suggest = [&help](const std::string& what) { help += (help.empty() ? "" : "; or ") + what; };
    if (reserved < capacity && stats_.num_not_created > 0) {
        suggest("leave more of the device to this pool: it refused a page at " + amount(reserved));
    }
    if (awake + size > capacity || size > capacity) {
        const uint64_t missing = size > capacity ? size - capacity + awake : awake + size - capacity;
        suggest("free " + amount(missing) + " more, or open the pool with that much more capacity");
    } else {
        const uint64_t obtainable = spare_.size() + creatable(limit_) + num_donor_pages();
        Window window;
        uint64_t needed = round_up(size) / page_bytes_;
        if (find_window(h, size, stream, UINT64_MAX, &window)) {
            needed = std::min(needed, window.num_pages + window.num_donors);
        }
        if (needed > obtainable) {
            suggest(amount((needed - obtainable) * page_bytes_) + " more capacity");
        }
        if (bytes(s.stranded_bytes) >= page_bytes_) {
            suggest("pages smaller than " + amount(page_bytes_));
        }
    }
    if (s.blocked_bytes > 0) {
        suggest("wait for the streams that block " + amount(bytes(s.blocked_bytes)));
    }
    if (s.held_bytes > 0) {
        std::string reasons;
        for (const auto& [b, reason] : pinned_) {
            if (b->state == State::kHeld && reasons.find(reason) == std::string::npos) {
                reasons += (reasons.empty() ? "" : ", ") + reason;
            }
        }
        suggest("unpin " + amount(bytes(s.held_bytes)) + " that is freed already (pinned for: " + reasons + ")");
    }
    if (stats_.lost_bytes > 0) {
        suggest("open a new pool: the driver failed on " + amount(bytes(stats_.lost_bytes)) + " for good");
    }
    return text + "What would have helped: " + (help.empty() ? "nothing that the pool knows of" : help) + ".";
}

int64_t Pool::walk(oarlock_pool_block* out, int64_t max) {
    if (gone()) {
        return 0;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    return walk_locked(out, max);
}

int64_t Pool::walk_locked(oarlock_pool_block* out, int64_t max) const {
    int64_t count = 0;
    each_block([&](const Heap& h, const Block* b) {
        if (count++ >= max) {
            return;
        }
        uint64_t mapped = 0;
        for (uint64_t page = b->arena->page_of(b->addr);
             b->state != State::kHole && page <= b->arena->page_of(b->end() - 1); page++) {
            mapped += b->arena->pages[page] != 0 ? 1 : 0;
        }
        const bool live = b->state == State::kLive || b->state == State::kHeld;
        const Context who = live ? b->who : Context{};
        out[count - 1] = {b->addr,
                          b->size,
                          live ? b->requested : 0,
                          live ? streams_.id(b->stream) : 0,
                          mapped,
                          who.stack,
                          who.name,
                          h.tag,
                          b->pins,
                          static_cast<int32_t>(b->state),
                          streams_.done(b->uses) ? 0 : 1};
    });
    return count;
}

void Pool::record(uint64_t num_events) {
    if (gone()) {
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (num_events == 0) {
        recorder_.stop();
    } else {
        recorder_.start(num_events);
    }
}

oarlock_status Pool::annotate(uint64_t addr, uint8_t detail) {
    if (gone()) {
        return OARLOCK_OK;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!recorder_.on()) {
        last_message = "the pool does not record";
        return OARLOCK_INVALID_ARGUMENT;
    }
    Block* b = addr == 0 ? nullptr : pointers_.find(addr);
    if (b != nullptr) {
        b->who.name = context.name;
        recorder_.note(OARLOCK_ANNOTATION, addr, b->size, b->stream, b->arena->heap->tag, b->who, detail);
    } else if (addr == 0) {
        recorder_.note(OARLOCK_ANNOTATION, 0, 0, 0, 0, context, detail);
    } else {
        last_message = "not a live allocation of this pool";
        return OARLOCK_INVALID_ARGUMENT;
    }
    return OARLOCK_OK;
}

void Pool::snapshot(uint64_t first, oarlock_pool_event* events, int64_t max_events, uint64_t* begin,
                    int64_t* num_events, oarlock_pool_block* blocks, int64_t max_blocks, int64_t* num_blocks) {
    *begin = 0;
    *num_events = *num_blocks = 0;
    if (gone()) {
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (recorder_.on()) {
        streams_.poll();
        recorder_.complete(streams_, 0, 0);
        uint64_t count = 0;
        *begin = recorder_.read(first, events, static_cast<uint64_t>(max_events), &count);
        *num_events = static_cast<int64_t>(count);
    }
    *num_blocks = walk_locked(blocks, max_blocks);
}

int64_t Pool::streams(uint64_t* handles, int64_t max) {
    if (gone()) {
        return 0;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < std::min(streams_.size(), static_cast<size_t>(max)); i++) {
        handles[i] = streams_.id(static_cast<uint32_t>(i));
    }
    return static_cast<int64_t>(streams_.size());
}

oarlock_status Pool::check() {
    if (gone()) {
        return OARLOCK_OK;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    last_message.clear();
    const auto require = [](bool holds, const char* what) {
        if (!holds && last_message.empty()) {
            last_message = what;
        }
    };
    uint64_t num_mapped = 0;
    uint64_t num_named = 0;
    int64_t live = 0;
    each_heap([&](Heap& h) {
        uint64_t num_free = 0;
        uint64_t num_holes = 0;
        for (Arena& arena : h.arenas) {
            uint64_t at = arena.addr;
            uint64_t counted = 0;  // pages before it
            for (Block* b = arena.first; b != nullptr; b = b->next) {
                require(b->addr == at && b->size > 0 && b->size % kAlignment == 0, "blocks do not tile the arena");
                require(b->arena == &arena && (b->next == nullptr || b->next->prev == b), "links of blocks");
                at = b->end();
                const bool joins = b->state == State::kFree || b->state == State::kHole;
                require(!joins || b->next == nullptr || b->next->state != b->state, "neighbours that should be one");
                num_free += b->state == State::kFree ? 1 : 0;
                num_holes += b->state == State::kHole ? 1 : 0;
                live += b->state == State::kLive ? static_cast<int64_t>(b->size) : 0;
                if (b->state == State::kLive || b->state == State::kHeld) {
                    num_named++;
                    require(pointers_.find(b->addr) == b, "an allocation that the pointer map does not know");
                }
                if (b->state == State::kHole) {
                    require(b->addr % page_bytes_ == 0 && b->size % page_bytes_ == 0,
                            "a hole that is not page-aligned");
                    continue;
                }
                for (uint64_t page = std::max(counted, arena.page_of(b->addr)); page <= arena.page_of(b->end() - 1);
                     page++) {
                    const uint64_t handle = arena.pages[page];
                    require(handle != 0 || h.asleep, "a block without memory");
                    require(handle == 0 || h.asleep || b->state == State::kLost ||
                                driver_->holds(arena.page_addr(page), handle),
                            "the driver's mapping");
                    num_mapped += handle != 0 ? 1 : 0;
                    counted = page + 1;
                }
            }
            require(at == arena.addr + arena.bytes, "blocks do not reach the end of the arena");
        }
        h.index.each(0, [&](Block* b) {
            num_free--;
            require(b->state == State::kFree && bin_of(b->size) < 64 + 32 * 50, "an index entry that is not free");
        });
        for (Block* b = h.holes; b != nullptr; b = b->after) {
            num_holes--;
            require(b->state == State::kHole, "an entry of the holes that is none");
        }
        require(num_free == 0 && num_holes == 0, "free blocks or holes that are in no index");
    });
    require(num_mapped + spare_.size() == num_created_, "the number of pages");
    require(num_named == pointers_.size() && live == stats_.live_bytes, "the number of live blocks or bytes");
    require(num_created_ <= limit_, "more pages than the capacity allows");
    return last_message.empty() ? OARLOCK_OK : OARLOCK_INVALID_ARGUMENT;
}

void Pool::close() {
    if (gone()) {
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.wait_all();
    streams_.forget_all();
    each_heap([&](Heap& h) {
        for (Arena& arena : h.arenas) {
            for (const Block* b = arena.first; b != nullptr; b = b->next) {
                for (uint64_t page = arena.page_of(b->addr);
                     b->state != State::kHole && page <= arena.page_of(b->end() - 1); page++) {
                    uint64_t& handle = arena.pages[page];
                    if (handle != 0 && driver_->unmap(arena.page_addr(page), page_bytes_)) {
                        driver_->release(handle);
                    }
                    handle = 0;
                }
            }
            driver_->unreserve(arena.addr, arena.bytes);
        }
    });
    for (const uint64_t page : spare_) {
        driver_->release(page);
    }
    closed_ = true;
    heaps_.clear();
    pointers_ = PointerMap();
    store_ = BlockStore();
    driver_.reset();
}

}  // namespace oarlock::memory
