// torch's allocators.
#include <algorithm>

#include "memory/replay.h"

namespace oarlock::memory {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSmallSegment = 2 * kMiB;

uint64_t round_up(uint64_t size, uint64_t unit) {
    return (size + unit - 1) / unit * unit;
}

bool is_large(uint32_t pool) {
    return pool % 2 == 1;
}

// torch's rules, as of 2.13: c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp

uint64_t torch_size(uint64_t size) {
    return round_up(std::max<uint64_t>(size, 1), 512);
}

uint32_t torch_pool(uint64_t size, uint32_t stream) {
    return 2 * stream + (size > kMiB ? 1 : 0);
}

class CachingModel final : public PeerModel {
  public:
    CachingModel(uint64_t capacity, uint64_t lag, uint64_t large_segment)
        : PeerModel(capacity, lag), large_segment_(large_segment) {}

    bool malloc(uint32_t id, uint64_t requested, uint32_t stream) override {
        const uint64_t size = torch_size(requested);
        const uint32_t pool = torch_pool(size, stream);
        FreeSet& free = free_of(pool);
        Piece wanted;
        wanted.size = size;
        const auto found = free.lower_bound(&wanted);
        Piece* piece = nullptr;
        if (found != free.end()) {
            piece = *found;
            free.erase(found);
        } else {
            const uint64_t segment = !is_large(pool)    ? kSmallSegment
                                     : size < 10 * kMiB ? large_segment_
                                                        : round_up(size, 2 * kMiB);
            if (!counters_.reserve(segment, capacity_)) {
                flush();
                if (!counters_.reserve(segment, capacity_)) {
                    return false;
                }
            }
            piece = make(next_addr_, segment, pool);
            next_addr_ += segment + kMiB;
        }
        const uint64_t rest = piece->size - size;
        if (is_large(pool) ? rest > kMiB : rest >= 512) {
            free.insert(split(piece, size));
        }
        piece->free = false;
        live_[id] = piece;
        return true;
    }

  private:
    // Gives every segment back that nothing lies in: cudaFree waits for the device.
    void flush() {
        counters_.num_device_syncs++;
        counters_.num_rounds++;
        finish_pending(true);
        for (auto& [pool, free] : free_) {
            for (auto it = free.begin(); it != free.end();) {
                Piece* piece = *it;
                if (piece->prev == nullptr && piece->next == nullptr) {
                    counters_.give_back(piece->size);
                    it = free.erase(it);
                } else {
                    ++it;
                }
            }
        }
    }

    const uint64_t large_segment_;
    uint64_t next_addr_ = kMiB;
};

class ExpandableModel final : public PeerModel {
  public:
    ExpandableModel(uint64_t capacity, uint64_t lag, uint64_t large_page)
        : PeerModel(capacity, lag), large_page_(large_page) {}

    bool malloc(uint32_t id, uint64_t requested, uint32_t stream) override {
        const uint64_t size = torch_size(requested);
        const uint32_t pool = torch_pool(size, stream);
        FreeSet& free = free_of(pool);
        Piece* piece = cached(free, size);
        if (piece == nullptr) {
            piece = expand(pool, size);
            if (piece == nullptr) {
                flush();
                piece = expand(pool, size);
            }
            if (piece == nullptr) {
                return false;
            }
        }
        free.erase(piece);
        if (piece->size - size >= 512) {
            free.insert(split(piece, size));
        }
        piece->free = false;
        live_[id] = piece;
        return true;
    }

  private:
    using AddressSet = std::set<Piece*, ByAddress>;

    uint64_t page_of(uint32_t pool) const { return is_large(pool) ? large_page_ : kSmallSegment; }

    // The smallest that holds it; of those, the one that leaves the most room to expand to others.
    static Piece* cached(const FreeSet& free, uint64_t size) {
        Piece wanted;
        wanted.size = size;
        auto it = free.lower_bound(&wanted);
        if (it == free.end()) {
            return nullptr;
        }
        const auto expandable = [](const Piece* p) {
            return p->size + (p->next != nullptr && !p->next->mapped ? p->next->size : 0);
        };
        for (auto next = std::next(it); next != free.end() && expandable(*next) < expandable(*it); ++next) {
            it = next;
        }
        return *it;
    }

    // At the lowest unmapped address that has room, mapped as far as needed. Null: the device has not enough.
    Piece* expand(uint32_t pool, uint64_t size) {
        Piece* piece = nullptr;
        for (Piece* hole : unmapped_[pool]) {
            Piece* first = hole->prev != nullptr && hole->prev->free ? hole->prev : hole;
            uint64_t room = 0;
            for (const Piece* p = first; p != nullptr && p->free && room < size; p = p->next) {
                room += p->size;
            }
            if (room >= size) {
                piece = first;
                break;
            }
        }
        if (piece == nullptr) {
            const uint64_t page = page_of(pool);
            piece = make(round_up(next_addr_, page), round_up(capacity_ + capacity_ / 8 + size, page), pool);
            piece->mapped = false;
            next_addr_ = piece->addr + piece->size + page;
            unmapped_[pool].insert(piece);
        }
        if (!piece->mapped && (piece = map(piece, std::min(piece->size, size))) == nullptr) {
            return nullptr;
        }
        while (piece->size < size) {
            // Never mapped: two free neighbours that both are would be one.
            if ((piece = map(piece->next, std::min(size - piece->size, piece->next->size))) == nullptr) {
                return nullptr;
            }
        }
        return piece;
    }

    // Maps the first `size` bytes of a hole, rounded to pages, and joins them with their neighbours.
    Piece* map(Piece* hole, uint64_t size) {
        const uint64_t bytes = std::min(round_up(size, page_of(hole->pool)), hole->size);
        if (!counters_.reserve(bytes, capacity_)) {
            return nullptr;
        }
        unmapped_[hole->pool].erase(hole);
        if (bytes < hole->size) {
            unmapped_[hole->pool].insert(split(hole, bytes));
        }
        hole->mapped = true;
        return enter(hole);
    }

    // Joins a free piece, in no set, with its neighbours of the same kind.
    Piece* enter(Piece* piece) {
        const auto same = [&](const Piece* p) { return p != nullptr && p->free && p->mapped == piece->mapped; };
        const auto leave = [&](Piece* p) {
            if (p->mapped) {
                free_of(p->pool).erase(p);
            } else {
                unmapped_[p->pool].erase(p);
            }
        };
        if (same(piece->prev)) {
            Piece* left = piece->prev;
            leave(left);
            absorb(left, piece);
            piece = left;
        }
        if (same(piece->next)) {
            leave(piece->next);
            absorb(piece, piece->next);
        }
        if (piece->mapped) {
            free_of(piece->pool).insert(piece);
        } else {
            unmapped_[piece->pool].insert(piece);
        }
        return piece;
    }

    void release(Piece* piece) override {
        piece->free = true;
        enter(piece);
    }

    // Unmaps every page that nothing lies on, once the streams of the segments are done.
    void flush() {
        counters_.num_rounds++;
        finish_pending(true);
        for (auto& [pool, free] : free_) {
            const uint64_t page = page_of(pool);
            const std::vector<Piece*> pieces(free.begin(), free.end());
            bool waited = false;
            for (Piece* piece : pieces) {
                const uint64_t from = round_up(piece->addr, page);
                const uint64_t to = (piece->addr + piece->size) / page * page;
                if (to <= from) {
                    continue;
                }
                waited = true;
                free.erase(piece);
                if (from > piece->addr) {
                    Piece* right = split(piece, from - piece->addr);
                    free.insert(piece);
                    piece = right;
                }
                if (to < piece->addr + piece->size) {
                    free.insert(split(piece, to - piece->addr));
                }
                counters_.give_back(piece->size);
                piece->mapped = false;
                enter(piece);
            }
            counters_.num_stream_syncs += waited ? 1 : 0;
        }
    }

    const uint64_t large_page_;
    uint64_t next_addr_ = 0;
    std::map<uint32_t, AddressSet> unmapped_;
};

}  // namespace

std::unique_ptr<Model> make_caching_model(uint64_t capacity, uint64_t lag, uint64_t large_segment_bytes) {
    return std::make_unique<CachingModel>(capacity, lag, large_segment_bytes);
}

std::unique_ptr<Model> make_expandable_model(uint64_t capacity, uint64_t lag, uint64_t large_page_bytes) {
    return std::make_unique<ExpandableModel>(capacity, lag, large_page_bytes);
}

}  // namespace oarlock::memory
