// A pool of device memory that never moves live data: what lacks a hole long enough gets whole free pages mapped to
// one.
#pragma once

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory/heap.h"
#include "memory/pointer_map.h"
#include "memory/recorder.h"
#include "oarlock.h"

namespace oarlock::memory {

// Consecutive pages of an arena, inside one block.
struct Run {
    Block* block;
    uint64_t page;
    uint64_t count;

    uint64_t addr() const { return block->arena->page_addr(page); }
};

// Pages that are to lie in the runs `to`: spare ones, new ones, and those of `from`. `to` may be shorter: the rest
// becomes spare.
struct Moves {
    std::vector<Run> to;
    std::vector<Run> from;
    uint64_t num_spare = 0;
    uint64_t num_create = 0;
    uint64_t num_got = 0;  // out: pages that the device had when it refused one
};

enum class Moved : uint8_t { kDone, kNotCreated, kFailed };

// Where a request may go: consecutive free blocks and holes, and the pages that the holes need.
struct Window {
    uint64_t start = 0;
    Block* first = nullptr;
    uint64_t num_pages = 0;
    uint64_t num_donors = 0;  // whole pages of its own free blocks, which cannot serve as donors too
    uint64_t hole_bytes = 0;
};

// Why the calling thread's last call failed.
inline thread_local std::string last_message;

class Pool {
  public:
    Pool(const oarlock_pool_config& config, std::unique_ptr<Driver> driver);

    oarlock_status malloc(uint64_t size, uint64_t stream, uint32_t tag, uint64_t* addr);
    oarlock_status free(uint64_t addr, uint64_t stream);
    oarlock_status record_stream(uint64_t addr, uint64_t stream);
    oarlock_status pin(uint64_t addr, const char* reason);
    oarlock_status unpin(uint64_t addr);
    oarlock_status sleep(uint32_t tag, bool keep);
    oarlock_status wake(uint32_t tag);
    oarlock_status trim();
    oarlock_status allow_peer(int32_t device);
    void set_pressure(oarlock_pressure callback, void* user);
    uint64_t largest(uint64_t stream, uint32_t tag);
    bool fits(const uint64_t* sizes, int64_t count, uint64_t stream, uint32_t tag);
    void stats(oarlock_pool_stats* out);
    int64_t walk(oarlock_pool_block* out, int64_t max);
    void record(uint64_t num_events);
    oarlock_status annotate(uint64_t addr, uint8_t detail);
    void snapshot(uint64_t first, oarlock_pool_event* events, int64_t max_events, uint64_t* begin, int64_t* num_events,
                  oarlock_pool_block* blocks, int64_t max_blocks, int64_t* num_blocks);
    int64_t streams(uint64_t* handles, int64_t max);
    oarlock_status check();
    void close();
    // Closed, or in a child process, whose memory is not this pool's.
    bool gone() const;

  private:
    Heap& heap(uint32_t tag, uint64_t size);
    uint64_t round_up(uint64_t size) const { return (size + page_bytes_ - 1) / page_bytes_ * page_bytes_; }
    uint64_t whole_pages(const Block* b) const;
    uint64_t creatable(uint64_t limit) const { return limit > num_created_ ? limit - num_created_ : 0; }
    bool is_donor(const Block* b) const;

    // pool.cpp
    oarlock_status slow_malloc(std::unique_lock<std::mutex>& lock, Heap& heap, uint64_t size, uint32_t stream,
                               Block** found, uint64_t* start);
    uint64_t hand_out(Block* b, uint64_t start, uint64_t size, uint64_t requested, uint32_t stream);
    void release_block(Block* b);
    bool relieve(std::unique_lock<std::mutex>& lock, uint64_t size, uint32_t stream, int* rounds);

    // placement.cpp
    bool find_window(Heap& heap, uint64_t size, uint32_t stream, uint64_t num_pages, Window* best) const;
    uint64_t num_donor_pages() const;
    Block* find_ordered(Heap& heap, uint64_t size, uint32_t stream);
    bool reserve(Heap& heap, uint64_t bytes);
    void plan_sources(uint64_t num_pages, uint64_t create_limit, const Window* window, uint64_t size,
                      Moves* moves) const;
    void plan_destinations(const Window& window, uint64_t size, Moves* moves) const;

    // transaction.cpp
    Moved move_pages(Moves& moves);
    Block* commit(const Moves& moves);
    void lose(Arena* arena, uint64_t page);
    bool put_back(const Run& run, uint64_t page, uint64_t handle);
    Moved roll_back(const Moves& moves, uint64_t num_unmapped_runs, uint64_t num_mapped, std::vector<uint64_t>& handles,
                    uint64_t first_created);
    Block* block_at(Arena* arena, uint64_t addr) const;
    void note_moves(const Moves& moves);
    void note_page(oarlock_pool_action action, const Arena* arena, uint64_t page);

    // sleep.cpp
    bool drop_whole_pages(Heap& heap);
    void give_up_freed_pages(Heap& heap);
    std::vector<Run> sleeping_pages(Heap& heap, bool mapped) const;
    bool release_spare();

    // report.cpp
    std::string explain(Heap& heap, uint64_t size, uint32_t stream);
    void survey(oarlock_pool_stats* out) const;
    int64_t walk_locked(oarlock_pool_block* out, int64_t max) const;
    uint64_t largest_locked(Heap& heap, uint32_t stream);
    std::string fault();

    // rehearsal.cpp
    std::unique_ptr<Pool> rehearsal() const;

    template <typename Body>
    void each_heap(const Body& body) const;
    template <typename Body>
    void each_block(const Body& body) const;

    std::mutex mutex_;
    std::unique_ptr<Driver> driver_;
    const uint64_t page_bytes_;
    const uint64_t limit_;       // pages, in all
    const uint64_t soft_limit_;  // pages, before free ones are moved
    const uint64_t reserve_bytes_;
    const uint64_t small_bytes_;
    const uint64_t generation_;
    bool closed_ = false;

    Streams streams_;
    BlockStore store_;
    PointerMap pointers_;
    std::unordered_map<uint32_t, std::pair<Heap, Heap>> heaps_;  // by tag: small, large
    std::pair<Heap, Heap>* default_heaps_;
    std::vector<uint64_t> spare_;  // pages that are mapped nowhere
    uint64_t num_created_ = 0;
    std::unordered_map<const Block*, std::string> pinned_;
    oarlock_pressure pressure_ = nullptr;
    void* pressure_user_ = nullptr;
    oarlock_pool_stats stats_{};
    Recorder recorder_;
    std::string rollback_reason_;
};

template <typename Body>
void Pool::each_heap(const Body& body) const {
    for (const auto& [tag, heaps] : heaps_) {
        body(const_cast<Heap&>(heaps.first));
        body(const_cast<Heap&>(heaps.second));
    }
}

template <typename Body>
void Pool::each_block(const Body& body) const {
    each_heap([&](Heap& heap) {
        for (Arena& arena : heap.arenas) {
            for (Block* b = arena.first; b != nullptr; b = b->next) {
                body(heap, b);
            }
        }
    });
}

}  // namespace oarlock::memory
