// What the models of the peers have in common.
#include "memory/replay.h"

namespace oarlock::memory {

void PeerModel::free(uint32_t id, uint32_t) {
    const auto it = live_.find(id);
    Piece* piece = it->second;
    live_.erase(it);
    if (piece->shared) {
        piece->shared = false;
        pending_.push_back({clock_ + lag_, piece});
    } else {
        release(piece);
    }
}

void PeerModel::use(uint32_t id, uint32_t) {
    live_.at(id)->shared = true;
}

void PeerModel::tick() {
    clock_++;
    finish_pending(false);
}

void PeerModel::finish_pending(bool all) {
    while (!pending_.empty() && (all || pending_.front().due <= clock_)) {
        Piece* piece = pending_.front().piece;
        pending_.pop_front();
        release(piece);
    }
}

void PeerModel::release(Piece* piece) {
    piece->free = true;
    FreeSet& free = free_of(piece->pool);
    if (piece->prev != nullptr && piece->prev->free) {
        Piece* left = piece->prev;
        free.erase(left);
        absorb(left, piece);
        piece = left;
    }
    if (piece->next != nullptr && piece->next->free) {
        free.erase(piece->next);
        absorb(piece, piece->next);
    }
    free.insert(piece);
}

Piece* PeerModel::make(uint64_t addr, uint64_t size, uint32_t pool) {
    if (spare_.empty()) {
        spare_.push_back(&store_.emplace_back());
    }
    Piece* piece = spare_.back();
    spare_.pop_back();
    *piece = {};
    piece->addr = addr;
    piece->size = size;
    piece->pool = pool;
    return piece;
}

Piece* PeerModel::split(Piece* piece, uint64_t size) {
    Piece* right = make(piece->addr + size, piece->size - size, piece->pool);
    right->free = piece->free;
    right->mapped = piece->mapped;
    right->prev = piece;
    right->next = piece->next;
    if (piece->next != nullptr) {
        piece->next->prev = right;
    }
    piece->next = right;
    piece->size = size;
    return right;
}

void PeerModel::absorb(Piece* left, Piece* right) {
    left->size += right->size;
    left->next = right->next;
    if (right->next != nullptr) {
        right->next->prev = left;
    }
    spare_.push_back(right);
}

}  // namespace oarlock::memory
