#include "memory/pool.h"

#include <algorithm>
#include <atomic>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace oarlock::memory {
namespace {

constexpr int kPressureRounds = 8;

std::atomic<uint64_t> process_generation{0};

// The number of forks between the first process and this one.
uint64_t generation() {
#if defined(__unix__) || defined(__APPLE__)
    static const int registered = pthread_atfork(nullptr, nullptr, [] { process_generation++; });
    (void)registered;
#endif
    return process_generation;
}

uint64_t round_size(uint64_t size) {
    return (size + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Pool::Pool(const oarlock_pool_config& config, std::unique_ptr<Driver> driver)
    : driver_(std::move(driver)),
      page_bytes_(config.page_bytes),
      limit_(config.capacity / config.page_bytes),
      soft_limit_(std::min(limit_, config.soft_capacity / config.page_bytes)),
      reserve_bytes_(limit_ * page_bytes_ * std::max<uint64_t>(1, config.reserve_factor)),
      small_bytes_(std::max(kAlignment, page_bytes_ / 128)),
      generation_(generation()),
      streams_(*driver_) {
    default_heaps_ = nullptr;
    heap(0, 0);
    default_heaps_ = &heaps_.begin()->second;
}

bool Pool::gone() const {
    return closed_ || generation_ != process_generation.load(std::memory_order_relaxed);
}

Heap& Pool::heap(uint32_t tag, uint64_t size) {
    std::pair<Heap, Heap>* heaps = default_heaps_;
    if (tag != 0 || heaps == nullptr) {
        auto it = heaps_.find(tag);
        if (it == heaps_.end()) {
            it = heaps_
                     .emplace(std::piecewise_construct, std::forward_as_tuple(tag),
                              std::forward_as_tuple(std::piecewise_construct, std::forward_as_tuple(tag, store_),
                                                    std::forward_as_tuple(tag, store_)))
                     .first;
        }
        heaps = &it->second;
    }
    return size <= small_bytes_ ? heaps->first : heaps->second;
}

uint64_t Pool::whole_pages(const Block* b) const {
    const uint64_t first = (b->addr + page_bytes_ - 1) / page_bytes_;
    const uint64_t last = b->end() / page_bytes_;
    return last > first ? last - first : 0;
}

oarlock_status Pool::malloc(uint64_t size, uint64_t stream_id, uint32_t tag, uint64_t* addr) {
    *addr = 0;
    if (gone()) {
        // A child process must not take the parent's lock, which may be held for ever there.
        last_message = closed_ ? "the pool is closed" : "the pool belongs to the process that this one was forked from";
        return OARLOCK_INVALID_ARGUMENT;
    }
    if (size == 0) {
        return OARLOCK_OK;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    const uint32_t stream = streams_.index(stream_id);
    if (size > limit_ * page_bytes_) {  // also where rounding would overflow
        last_message = explain(heap(tag, size), size, stream);
        stats_.num_out_of_memory++;
        if (recorder_.on()) {
            recorder_.note(OARLOCK_OOM, 0, size, stream, tag, context, 0);
        }
        return OARLOCK_OUT_OF_MEMORY;
    }
    const uint64_t rounded = round_size(size);
    Heap& h = heap(tag, rounded);
    if (h.asleep) {
        last_message = "tag " + std::to_string(tag) + " is asleep: wake it before allocating under it";
        return OARLOCK_INVALID_ARGUMENT;
    }
    store_.reserve(4);
    pointers_.make_room();
    Block* b = h.index.find(rounded, streams_, stream);
    uint64_t start = 0;
    if (b != nullptr) {
        start = b->addr;
    } else {
        const oarlock_status status = slow_malloc(lock, h, rounded, stream, &b, &start);
        if (status != OARLOCK_OK) {
            return status;
        }
        // Other threads may have allocated meanwhile.
        store_.reserve(4);
        pointers_.make_room();
    }
    *addr = hand_out(b, start, rounded, size, stream);
    return OARLOCK_OK;
}

uint64_t Pool::hand_out(Block* b, uint64_t start, uint64_t size, uint64_t requested, uint32_t stream) {
    Heap& h = *b->arena->heap;
    h.leave(b);
    if (start > b->addr) {
        Block* right = h.split(b, start);
        h.enter(b);
        b = right;
    }
    if (b->size > size) {
        h.enter(h.split(b, start + size));
    }
    b->state = State::kLive;
    b->uses.clear();
    b->requested = requested;
    b->stream = stream;
    b->who = recorder_.on() ? context : Context{};
    pointers_.insert(b);
    stats_.live_bytes += static_cast<int64_t>(size);
    stats_.requested_bytes += static_cast<int64_t>(requested);
    stats_.peak_live_bytes = std::max(stats_.peak_live_bytes, stats_.live_bytes);
    stats_.num_allocations++;
    if (recorder_.on()) {
        recorder_.allocated(b, h.tag, streams_);
    }
    return b->addr;
}

oarlock_status Pool::slow_malloc(std::unique_lock<std::mutex>& lock, Heap& h, uint64_t size, uint32_t stream,
                                 Block** found, uint64_t* start) {
    int rounds = 0;
    uint64_t create_limit = limit_;
    for (;;) {
        streams_.poll();
        if (Block* b = h.index.find(size, streams_, stream)) {
            *found = b;
            *start = b->addr;
            return OARLOCK_OK;
        }
        const uint64_t obtainable = spare_.size() + creatable(create_limit) + num_donor_pages();
        Window window;
        bool placed = find_window(h, size, stream, obtainable, &window);
        if (!placed && round_up(size) / page_bytes_ <= obtainable) {
            if (!reserve(h, round_up(size))) {
                last_message = "no address space for " + std::to_string(size) + " bytes: " + driver_->error();
                return OARLOCK_DRIVER_FAILED;
            }
            placed = find_window(h, size, stream, obtainable, &window);
        }
        const uint64_t without_moves = spare_.size() + creatable(std::min(create_limit, soft_limit_));
        if (streams_.size() > 1 && (!placed || window.num_pages > without_moves)) {
            if (Block* b = find_ordered(h, size, stream)) {
                *found = b;
                *start = b->addr;
                return OARLOCK_OK;
            }
        }
        if (placed) {
            Moves moves;
            plan_destinations(window, size, &moves);
            plan_sources(window.num_pages, create_limit, &window, size, &moves);
            store_.reserve(2 * (moves.to.size() + moves.from.size()) + 4);
            const Moved moved = move_pages(moves);
            if (moved == Moved::kDone) {
                *found = commit(moves);
                *start = window.start;
                return OARLOCK_OK;
            }
            if (moved == Moved::kFailed) {
                last_message = fault();
                return OARLOCK_DRIVER_FAILED;
            }
            // The device has less left than the limit says: others use it too.
            create_limit = num_created_ + moves.num_got;
            stats_.num_not_created++;
            continue;
        }
        if (relieve(lock, size, stream, &rounds)) {
            create_limit = limit_;
            if (closed_) {
                last_message = "the pool was closed";
                return OARLOCK_INVALID_ARGUMENT;
            }
            if (h.asleep) {
                last_message = "tag " + std::to_string(h.tag) + " was put to sleep meanwhile";
                return OARLOCK_INVALID_ARGUMENT;
            }
            continue;
        }
        last_message = explain(h, size, stream);
        stats_.num_out_of_memory++;
        if (recorder_.on()) {
            recorder_.note(OARLOCK_OOM, 0, size, stream, h.tag, context, 0);
        }
        return OARLOCK_OUT_OF_MEMORY;
    }
}

bool Pool::relieve(std::unique_lock<std::mutex>& lock, uint64_t size, uint32_t stream, int* rounds) {
    if (pressure_ != nullptr && *rounds < kPressureRounds) {
        (*rounds)++;
        const oarlock_pressure callback = pressure_;
        void* const user = pressure_user_;
        const uint64_t id = streams_.id(stream);
        stats_.num_pressure_calls++;
        lock.unlock();  // the callback frees, and may allocate
        const int64_t freed = callback(user, static_cast<int64_t>(size), id);
        lock.lock();
        if (freed > 0) {
            return true;
        }
        *rounds = kPressureRounds;
    }
    if (streams_.wait_oldest(lock)) {
        stats_.num_waits++;
        return true;
    }
    return false;
}

oarlock_status Pool::free(uint64_t addr, uint64_t stream_id) {
    if (addr == 0 || gone()) {
        return OARLOCK_OK;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    Block* b = pointers_.find(addr);
    if (b == nullptr || b->state != State::kLive) {
        last_message = "not a live allocation of this pool";
        return OARLOCK_INVALID_ARGUMENT;
    }
    const uint32_t stream = streams_.index(stream_id);
    const uint32_t owner = b->stream;
    // The streams of record_stream() have been used up to now, whatever they had been used for then.
    for (Use& use : b->uses.more) {
        use = streams_.use(use.stream);
    }
    if (b->uses.first.tick != 0) {
        b->uses.first = streams_.use(b->uses.first.stream);
    }
    b->uses.add(streams_.use(owner));
    if (stream != owner) {
        b->uses.add(streams_.use(stream));
    }
    stats_.live_bytes -= static_cast<int64_t>(b->size);
    stats_.requested_bytes -= static_cast<int64_t>(b->requested);
    stats_.num_frees++;
    if (recorder_.on()) {
        recorder_.freed(b, b->arena->heap->tag, b->pins > 0);
    }
    if (b->pins > 0) {
        b->state = State::kHeld;
        return OARLOCK_OK;
    }
    release_block(b);
    return OARLOCK_OK;
}

void Pool::release_block(Block* b) {
    pointers_.erase(b->addr);
    b->state = State::kFree;
    const bool recorded = streams_.size() > 1 || num_created_ >= soft_limit_;
    const Uses* uses = &b->uses;
    if (recorded && driver_->has_streams() && (streams_.size() > 1 || b->size >= page_bytes_)) {
        // Early events are done early: for other streams, and for whoever needs whole pages.
        streams_.record(uses->first.stream);
        for (const Use& use : uses->more) {
            streams_.record(use.stream);
        }
    }
    b->arena->heap->merge(b);
}

oarlock_status Pool::record_stream(uint64_t addr, uint64_t stream_id) {
    if (addr == 0 || gone()) {
        return OARLOCK_OK;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    Block* b = pointers_.find(addr);
    if (b == nullptr || b->state != State::kLive) {
        last_message = "not a live allocation of this pool";
        return OARLOCK_INVALID_ARGUMENT;
    }
    const uint32_t stream = streams_.index(stream_id);
    if (stream != b->stream) {
        b->uses.add(streams_.use(stream));
    }
    return OARLOCK_OK;
}

oarlock_status Pool::pin(uint64_t addr, const char* reason) {
    if (gone()) {
        return OARLOCK_OK;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    Block* b = pointers_.find(addr);
    if (b == nullptr || b->state != State::kLive) {
        last_message = "not a live allocation of this pool";
        return OARLOCK_INVALID_ARGUMENT;
    }
    pinned_[b] = reason;
    b->pins++;
    return OARLOCK_OK;
}

oarlock_status Pool::unpin(uint64_t addr) {
    if (gone()) {
        return OARLOCK_OK;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    Block* b = pointers_.find(addr);
    if (b == nullptr || b->pins == 0) {
        last_message = "not a pinned allocation of this pool";
        return OARLOCK_INVALID_ARGUMENT;
    }
    if (--b->pins == 0) {
        pinned_.erase(b);
        if (b->state == State::kHeld) {
            if (recorder_.on()) {
                recorder_.unpinned(b);
                recorder_.complete(streams_, 0, 0);
            }
            release_block(b);
        }
    }
    return OARLOCK_OK;
}

void Pool::set_pressure(oarlock_pressure callback, void* user) {
    if (gone()) {
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    pressure_ = callback;
    pressure_user_ = user;
}

}  // namespace oarlock::memory
