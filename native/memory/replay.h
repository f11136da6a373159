// Models of allocators, to replay a trace of allocations against: arithmetic only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

namespace oarlock::memory {

struct Counters {
    uint64_t reserved = 0;
    uint64_t peak_reserved = 0;
    uint64_t mapped = 0;    // bytes of pages or segments that the device was asked for or mapped anew
    uint64_t unmapped = 0;  // bytes taken away from where they were
    uint64_t copied = 0;    // bytes of live data
    uint64_t num_device_syncs = 0;
    uint64_t num_stream_syncs = 0;  // waits for one stream or one event
    uint64_t num_rounds = 0;        // requests that needed more than new memory

    bool reserve(uint64_t bytes, uint64_t capacity) {
        if (bytes > capacity - reserved) {
            return false;
        }
        reserved += bytes;
        mapped += bytes;
        peak_reserved = peak_reserved < reserved ? reserved : peak_reserved;
        return true;
    }
    void give_back(uint64_t bytes) {
        reserved -= bytes;
        unmapped += bytes;
    }
};

// Work is done `lag` events after it was queued, or once somebody waited for it.
class Model {
  public:
    explicit Model(uint64_t capacity) : capacity_(capacity) {}
    virtual ~Model() = default;
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    virtual bool malloc(uint32_t id, uint64_t size, uint32_t stream) = 0;  // false: out of memory
    virtual void free(uint32_t id, uint32_t stream) = 0;
    virtual void use(uint32_t id, uint32_t stream) = 0;
    virtual void tick() = 0;  // an event has passed
    virtual Counters counters() const { return counters_; }

  protected:
    const uint64_t capacity_;
    Counters counters_;
};

// A piece of a segment of one of the peers.
struct Piece {
    uint64_t addr = 0;
    uint64_t size = 0;
    uint32_t pool = 0;  // whose free pieces are kept together; for torch 2 * stream, + 1 for large ones
    bool free = true;
    bool mapped = true;
    bool shared = false;  // another stream uses it
    Piece* prev = nullptr;
    Piece* next = nullptr;
};

struct BySize {
    bool operator()(const Piece* a, const Piece* b) const {
        return a->size != b->size ? a->size < b->size : a->addr < b->addr;
    }
};
struct ByAddress {
    bool operator()(const Piece* a, const Piece* b) const { return a->addr < b->addr; }
};

// What the peers have in common: a list of pieces per segment, free ones by size, frees that wait for other streams.
class PeerModel : public Model {
  public:
    PeerModel(uint64_t capacity, uint64_t lag) : Model(capacity), lag_(lag) {}
    void free(uint32_t id, uint32_t stream) final;
    void use(uint32_t id, uint32_t stream) final;
    void tick() final;

  protected:
    using FreeSet = std::set<Piece*, BySize>;

    virtual void release(Piece* piece);  // joins it with its free neighbours and enters it
    void finish_pending(bool all);
    Piece* make(uint64_t addr, uint64_t size, uint32_t pool);
    // Cuts a piece that is in no set; the right part has the same state.
    Piece* split(Piece* piece, uint64_t size);
    // Takes the right neighbour, which is in no set, into the left one.
    virtual void absorb(Piece* left, Piece* right);
    FreeSet& free_of(uint32_t pool) { return free_[pool]; }

    std::map<uint32_t, FreeSet> free_;
    std::unordered_map<uint32_t, Piece*> live_;

  private:
    struct Pending {
        uint64_t due;
        Piece* piece;
    };
    const uint64_t lag_;
    uint64_t clock_ = 0;
    std::deque<Pending> pending_;
    std::deque<Piece> store_;
    std::vector<Piece*> spare_;
};

// torch's caching allocator without expandable segments.
std::unique_ptr<Model> make_caching_model(uint64_t capacity, uint64_t lag, uint64_t large_segment_bytes);
// torch's expandable segments, whose pages for large requests have this size.
std::unique_ptr<Model> make_expandable_model(uint64_t capacity, uint64_t lag, uint64_t large_page_bytes);
// Paddle 3.3's compaction: one growing range per stream; where it cannot grow, the first stream's live data is moved
// together.
std::unique_ptr<Model> make_memmove_model(uint64_t capacity, uint64_t lag, uint64_t page_bytes);

}  // namespace oarlock::memory
