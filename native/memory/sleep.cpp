// Sleep and wake: the pages of one tag go back to the device while its blocks keep their addresses.
#include <algorithm>

#include "memory/pool.h"

namespace oarlock::memory {

bool Pool::release_spare() {
    while (!spare_.empty()) {
        if (!driver_->release(spare_.back())) {
            return false;
        }
        spare_.pop_back();
        num_created_--;
    }
    return true;
}

// Whole free pages become spare; on failure they stay where they are.
bool Pool::drop_whole_pages(Heap& h) {
    Moves moves;
    h.index.each(page_bytes_, [&](Block* b) {
        if (is_donor(b)) {
            const uint64_t last = (b->end() - b->arena->addr) / page_bytes_;
            moves.from.push_back({b, last - whole_pages(b), whole_pages(b)});
        }
    });
    store_.reserve(2 * moves.from.size() + 4);
    if (move_pages(moves) != Moved::kDone) {
        return false;
    }
    commit(moves);
    return true;
}

// Runs of pages under blocks of any kind but holes that are mapped, or not; without those that pinned, held or lost
// blocks lie on.
std::vector<Run> Pool::sleeping_pages(Heap& h, bool mapped) const {
    std::vector<Run> runs;
    for (Arena& arena : h.arenas) {
        uint64_t next = 0;   // pages before it are dealt with
        uint64_t fixed = 0;  // pages before it must stay
        for (Block* b = arena.first; b != nullptr; b = b->next) {
            if (b->state == State::kHole) {
                continue;
            }
            const uint64_t last = (b->end() - 1 - arena.addr) / page_bytes_;
            if (mapped && (b->pins > 0 || b->state == State::kLost)) {
                // The page that it shares with the block before may have been taken.
                const uint64_t first = arena.page_of(b->addr);
                if (!runs.empty() && runs.back().block->arena == &arena &&
                    runs.back().page + runs.back().count == first + 1 && --runs.back().count == 0) {
                    runs.pop_back();
                }
                fixed = last + 1;
            }
            for (uint64_t page = std::max({arena.page_of(b->addr), next, fixed}); page <= last; page++) {
                if ((arena.pages[page] != 0) != mapped) {
                    continue;
                }
                if (!runs.empty() && runs.back().block->arena == &arena &&
                    runs.back().page + runs.back().count == page) {
                    runs.back().count++;
                } else {
                    runs.push_back({b, page, 1});
                }
            }
            next = std::max(next, last + 1);
        }
    }
    return runs;
}

oarlock_status Pool::sleep(uint32_t tag, bool keep) {
    if (gone()) {
        return OARLOCK_OK;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = heaps_.find(tag);
    if (it == heaps_.end()) {
        last_message = "nothing was ever allocated under tag " + std::to_string(tag);
        return OARLOCK_INVALID_ARGUMENT;
    }
    if (!streams_.wait_all()) {
        last_message = fault();
        return OARLOCK_DRIVER_FAILED;
    }
    for (Heap* h : {&it->second.first, &it->second.second}) {
        if (h->asleep) {
            continue;
        }
        if (!drop_whole_pages(*h)) {
            last_message = fault();
            return OARLOCK_DRIVER_FAILED;
        }
        std::vector<SavedBlock> saved;
        for (Arena& arena : h->arenas) {
            for (Block* b = arena.first; keep && b != nullptr; b = b->next) {
                if (b->state != State::kLive || b->pins > 0) {
                    continue;
                }
                saved.push_back({b->addr, b->requested, std::make_unique<char[]>(b->requested)});
                if (!driver_->save(saved.back().bytes.get(), b->addr, b->requested)) {
                    last_message = fault();
                    return OARLOCK_DRIVER_FAILED;
                }
            }
        }
        Moves moves;
        moves.from = sleeping_pages(*h, true);
        const bool moved = move_pages(moves) == Moved::kDone;
        // Where the driver took pages away and would not give them back, only wake() can help.
        h->asleep = moved || !sleeping_pages(*h, false).empty();
        h->saved = std::move(saved);
        if (!moved) {
            last_message = fault();
            return OARLOCK_DRIVER_FAILED;
        }
    }
    release_spare();  // what the device does not take back stays spare
    return OARLOCK_OK;
}

oarlock_status Pool::wake(uint32_t tag) {
    if (gone()) {
        return OARLOCK_OK;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    const auto it = heaps_.find(tag);
    if (it == heaps_.end()) {
        last_message = "nothing was ever allocated under tag " + std::to_string(tag);
        return OARLOCK_INVALID_ARGUMENT;
    }
    const uint32_t stream = streams_.index(0);
    int rounds = 0;
    uint64_t create_limit = limit_;
    for (Heap* h : {&it->second.first, &it->second.second}) {
        while (h->asleep) {
            streams_.poll();
            give_up_freed_pages(*h);
            Moves moves;
            moves.to = sleeping_pages(*h, false);
            uint64_t num_pages = 0;
            for (const Run& run : moves.to) {
                num_pages += run.count;
            }
            if (num_pages > spare_.size() + creatable(create_limit) + num_donor_pages()) {
                if (relieve(lock, num_pages * page_bytes_, stream, &rounds)) {
                    if (closed_) {
                        return OARLOCK_OK;
                    }
                    create_limit = limit_;
                    continue;
                }
                last_message = explain(*h, num_pages * page_bytes_, stream);
                stats_.num_out_of_memory++;
                return OARLOCK_OUT_OF_MEMORY;
            }
            plan_sources(num_pages, create_limit, nullptr, 0, &moves);
            store_.reserve(2 * moves.from.size() + 4);
            const Moved moved = move_pages(moves);
            if (moved == Moved::kNotCreated) {
                create_limit = num_created_ + moves.num_got;
                continue;
            }
            if (moved == Moved::kFailed) {
                last_message = fault();
                return OARLOCK_DRIVER_FAILED;
            }
            moves.to.clear();  // no block changes there
            commit(moves);
            // Once more for pages that an earlier attempt mapped and could not take back.
            for (const Run& run : sleeping_pages(*h, true)) {
                if (!driver_->set_access(run.addr(), run.count * page_bytes_)) {
                    last_message = fault();
                    return OARLOCK_DRIVER_FAILED;
                }
            }
            for (const SavedBlock& saved : h->saved) {
                const Block* b = pointers_.find(saved.addr);
                if (b != nullptr && b->state == State::kLive && b->requested == saved.size &&
                    !driver_->load(saved.addr, saved.bytes.get(), saved.size)) {
                    last_message = fault();
                    return OARLOCK_DRIVER_FAILED;
                }
            }
            h->saved.clear();
            h->asleep = false;
        }
    }
    return OARLOCK_OK;
}

// What was freed while its pages were away becomes hole, as far as it covers them.
void Pool::give_up_freed_pages(Heap& h) {
    std::vector<Block*> freed;
    h.index.each(page_bytes_, [&](Block* b) {
        if (whole_pages(b) > 0) {
            freed.push_back(b);
        }
    });
    for (Block* b : freed) {
        Arena& arena = *b->arena;
        const uint64_t first = (b->addr - arena.addr + page_bytes_ - 1) / page_bytes_;
        for (uint64_t page = first + whole_pages(b); page > first; page--) {
            if (arena.pages[page - 1] == 0) {
                // Backwards, so that the block left of the page stays the one that is cut.
                store_.reserve(4);
                Block* hole = h.carve(b, arena.page_addr(page - 1), arena.page_addr(page), State::kHole);
                hole->uses.clear();
                if (hole == b) {  // nothing is left of it
                    h.merge(hole);
                    break;
                }
                h.merge(hole);
            }
        }
    }
}

// All that is mapped is opened to the device, and all that will be.
oarlock_status Pool::allow_peer(int32_t device) {
    if (gone()) {
        return OARLOCK_OK;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    bool done = driver_->add_peer(device);
    if (!done) {
        last_message = fault();
        return OARLOCK_DRIVER_FAILED;
    }
    each_block([&](const Heap&, const Block* b) {
        Arena& arena = *b->arena;
        for (uint64_t page = arena.page_of(b->addr);
             done && b->state != State::kHole && b->state != State::kLost && page <= arena.page_of(b->end() - 1);
             page++) {
            done = arena.pages[page] == 0 || driver_->set_access(arena.page_addr(page), page_bytes_);
        }
    });
    if (!done) {
        driver_->remove_peer();
        last_message = fault();
        return OARLOCK_DRIVER_FAILED;
    }
    return OARLOCK_OK;
}

oarlock_status Pool::trim() {
    if (gone()) {
        return OARLOCK_OK;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.poll();
    bool done = true;
    each_heap([&](Heap& h) { done = done && (h.asleep || drop_whole_pages(h)); });
    if (!done || !release_spare()) {
        last_message = fault();
        return OARLOCK_DRIVER_FAILED;
    }
    return OARLOCK_OK;
}

}  // namespace oarlock::memory
