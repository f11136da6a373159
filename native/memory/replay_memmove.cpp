// Paddle 3.3's rules: paddle/phi/core/memory, virtual_memory_auto_growth_best_fit_allocator.cc and mem_utils.cc.
#include <algorithm>

#include "memory/replay.h"

namespace oarlock::memory {
namespace {

uint64_t round_up(uint64_t size, uint64_t unit) {
    return (size + unit - 1) / unit * unit;
}

class MemmoveModel final : public PeerModel {
  public:
    MemmoveModel(uint64_t capacity, uint64_t lag, uint64_t page) : PeerModel(capacity, lag), page_(page) {}

    bool malloc(uint32_t id, uint64_t requested, uint32_t stream) override {
        const uint64_t size = round_up(std::max<uint64_t>(requested, 1), 256);
        Piece* piece = best_fit(stream, size);
        if (piece == nullptr && !grow(stream, size)) {
            finish_pending(true);
            compact();
            if (best_fit(stream, size) == nullptr && !grow(stream, size)) {
                return false;
            }
        }
        piece = best_fit(stream, size);
        free_of(stream).erase(piece);
        if (piece->size > size) {
            Piece* rest = split(piece, size);
            free_of(stream).insert(rest);
            if (tails_[stream] == piece) {
                tails_[stream] = rest;
            }
        }
        piece->free = false;
        live_[id] = piece;
        return true;
    }

  private:
    Piece* best_fit(uint32_t stream, uint64_t size) {
        Piece wanted;
        wanted.size = size;
        const auto found = free_of(stream).lower_bound(&wanted);
        return found == free_of(stream).end() ? nullptr : *found;
    }

    // At the end of the stream's range; what is free there already counts.
    bool grow(uint32_t stream, uint64_t size) {
        Piece*& tail = tails_[stream];
        const bool open = tail != nullptr && tail->free;
        const uint64_t bytes = round_up(size - (open ? tail->size : 0), page_);
        if (!counters_.reserve(bytes, capacity_)) {
            return false;
        }
        if (open) {
            free_of(stream).erase(tail);
            tail->size += bytes;
        } else {
            Piece* added = make(tail == nullptr ? uint64_t{stream + 1} << 48 : tail->addr + tail->size, bytes, stream);
            added->prev = tail;
            if (tail != nullptr) {
                tail->next = added;
            }
            tail = added;
        }
        free_of(stream).insert(tail);
        return true;
    }

    // Copies the live data of stream 0 together, with the whole device at rest before and after.
    void compact() {
        counters_.num_rounds++;
        counters_.num_device_syncs += 2;
        Piece* tail = tails_[0];
        if (tail == nullptr) {
            return;
        }
        Piece* piece = tail;
        while (piece->prev != nullptr) {
            piece = piece->prev;
        }
        free_of(0).clear();
        uint64_t addr = piece->addr;
        uint64_t free_bytes = 0;
        Piece* last = nullptr;
        while (piece != nullptr) {
            Piece* next = piece->next;
            if (piece->free) {
                free_bytes += piece->size;
            } else {
                counters_.copied += piece->addr != addr ? piece->size : 0;
                piece->addr = addr;
                addr += piece->size;
                piece->prev = last;
                piece->next = nullptr;
                if (last != nullptr) {
                    last->next = piece;
                }
                last = piece;
            }
            piece = next;
        }
        if (free_bytes > 0) {
            Piece* rest = make(addr, free_bytes, 0);
            rest->prev = last;
            if (last != nullptr) {
                last->next = rest;
            }
            last = rest;
            free_of(0).insert(rest);
        }
        tails_[0] = last;
    }

    void absorb(Piece* left, Piece* right) override {
        if (tails_[left->pool] == right) {
            tails_[left->pool] = left;
        }
        PeerModel::absorb(left, right);
    }

    const uint64_t page_;
    std::map<uint32_t, Piece*> tails_;  // by stream, which is the number of its pool too
};

}  // namespace

std::unique_ptr<Model> make_memmove_model(uint64_t capacity, uint64_t lag, uint64_t page_bytes) {
    return std::make_unique<MemmoveModel>(capacity, lag, page_bytes);
}

}  // namespace oarlock::memory
