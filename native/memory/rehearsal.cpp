// Whether requests fit together, tried on a copy of the pool's books: no page moves, no call reaches the device.
#include <algorithm>
#include <unordered_map>

#include "memory/pool.h"

namespace oarlock::memory {
namespace {

// Agrees to everything; no event of a stream ever comes.
class PretendDriver final : public Driver {
  public:
    explicit PretendDriver(bool has_streams) : has_streams_(has_streams) {}
    uint64_t granularity() const override { return kAlignment; }
    bool has_streams() const override { return has_streams_; }
    bool reserve(uint64_t bytes, uint64_t* addr) override {
        *addr = next_addr_;
        next_addr_ += bytes;
        return true;
    }
    void unreserve(uint64_t, uint64_t) override {}
    bool create(uint64_t* page) override {
        *page = 1;
        return true;
    }
    bool release(uint64_t) override { return true; }
    bool map(uint64_t, uint64_t) override { return true; }
    bool set_access(uint64_t, uint64_t) override { return true; }
    bool unmap(uint64_t, uint64_t) override { return true; }
    bool record(uint64_t, uint64_t*) override { return false; }
    bool done(uint64_t) override { return false; }
    bool wait(uint64_t) override { return false; }
    void forget(uint64_t) override {}
    bool stream_wait(uint64_t, uint64_t) override { return true; }
    bool save(void*, uint64_t, uint64_t) override { return true; }
    bool load(uint64_t, const void*, uint64_t) override { return true; }
    bool holds(uint64_t, uint64_t) const override { return true; }

  private:
    const bool has_streams_;
    uint64_t next_addr_ = uint64_t{1} << 62;  // beyond what a process can have
};

}  // namespace

// The same blocks at the same addresses, found in the same order. The page tables stay empty: nothing asks them.
void Heap::copy(const Heap& from) {
    asleep = from.asleep;
    std::unordered_map<const Block*, Block*> copies;
    for (const Arena& arena : from.arenas) {
        add(arena.addr, arena.bytes, arena.page_bytes);
        Arena& made = arenas.back();
        leave(made.first);
        store.give(made.first);
        Block* last = nullptr;
        for (const Block* b = arena.first; b != nullptr; b = b->next) {
            store.reserve(1);
            Block* c = store.take();
            *c = *b;
            c->arena = &made;
            c->prev = last;
            c->next = nullptr;
            (last != nullptr ? last->next : made.first) = c;
            last = c;
            copies[b] = c;
        }
    }
    // Into their lists from the back, as each enters at the front.
    std::vector<Block*> listed;
    from.index.each(0, [&](const Block* b) { listed.push_back(copies[b]); });
    for (const Block* b = from.holes; b != nullptr; b = b->after) {
        listed.push_back(copies[b]);
    }
    std::for_each(listed.rbegin(), listed.rend(), [&](Block* b) { enter(b); });
}

std::unique_ptr<Pool> Pool::rehearsal() const {
    oarlock_pool_config config{};
    config.capacity = limit_ * page_bytes_;
    config.soft_capacity = soft_limit_ * page_bytes_;
    config.page_bytes = page_bytes_;
    config.reserve_factor = reserve_bytes_ / (limit_ * page_bytes_);
    auto copy = std::make_unique<Pool>(config, std::make_unique<PretendDriver>(driver_->has_streams()));
    copy->streams_.copy(streams_);
    copy->spare_.assign(spare_.size(), 1);
    copy->num_created_ = num_created_;
    for (const auto& [tag, heaps] : heaps_) {
        copy->heap(tag, 0).copy(heaps.first);
        copy->heap(tag, limit_ * page_bytes_).copy(heaps.second);
    }
    return copy;
}

bool Pool::fits(const uint64_t* sizes, int64_t count, uint64_t stream, uint32_t tag) {
    if (gone()) {
        return false;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.poll();
    const std::unique_ptr<Pool> copy = rehearsal();
    return std::all_of(sizes, sizes + count, [&](uint64_t size) {
        uint64_t addr = 0;
        return copy->malloc(size, stream, tag, &addr) == OARLOCK_OK;
    });
}

}  // namespace oarlock::memory
