// Pages change their addresses all together or not at all.
#include <algorithm>

#include "memory/pool.h"

namespace oarlock::memory {
namespace {

// Whether the page lies inside a free block or hole: one of a block that sleeps need not.
bool covers(const Block* b, const Arena* arena, uint64_t page) {
    return (b->state == State::kFree || b->state == State::kHole) && b->addr <= arena->page_addr(page) &&
           arena->page_addr(page + 1) <= b->end();
}

}  // namespace

// The page tables and the pool's page counts after it are right in every case; blocks are changed by commit(), and
// where a roll-back itself fails by roll_back().
Moved Pool::move_pages(Moves& moves) {
    std::vector<uint64_t> handles(spare_.end() - static_cast<std::ptrdiff_t>(moves.num_spare), spare_.end());
    for (moves.num_got = 0; moves.num_got < moves.num_create; moves.num_got++) {
        uint64_t handle = 0;
        if (!driver_->create(&handle)) {
            const uint64_t got = moves.num_got;
            roll_back(moves, 0, 0, handles, moves.num_spare);
            moves.num_got = got;
            return Moved::kNotCreated;
        }
        handles.push_back(handle);
    }
    const uint64_t first_created = moves.num_spare;
    for (size_t i = 0; i < moves.from.size(); i++) {
        const Run& run = moves.from[i];
        if (!driver_->unmap(run.addr(), run.count * page_bytes_)) {
            return roll_back(moves, i, 0, handles, first_created);
        }
        for (uint64_t page = run.page; page < run.page + run.count; page++) {
            handles.push_back(run.block->arena->pages[page]);
        }
    }
    size_t next = 0;
    for (const Run& run : moves.to) {
        for (uint64_t page = run.page; page < run.page + run.count; page++, next++) {
            if (!driver_->map(run.block->arena->page_addr(page), handles[next])) {
                return roll_back(moves, moves.from.size(), next, handles, first_created);
            }
        }
    }
    for (const Run& run : moves.to) {
        if (!driver_->set_access(run.addr(), run.count * page_bytes_)) {
            return roll_back(moves, moves.from.size(), next, handles, first_created);
        }
    }
    for (const Run& run : moves.from) {
        std::fill_n(&run.block->arena->pages[run.page], run.count, uint64_t{0});
        stats_.moved_pages += moves.to.empty() ? 0 : static_cast<int64_t>(run.count);
    }
    next = 0;
    for (const Run& run : moves.to) {
        for (uint64_t page = run.page; page < run.page + run.count; page++) {
            run.block->arena->pages[page] = handles[next++];
        }
    }
    if (recorder_.on()) {
        note_moves(moves);
    }
    spare_.resize(spare_.size() - moves.num_spare);
    spare_.insert(spare_.end(), handles.begin() + static_cast<std::ptrdiff_t>(next), handles.end());
    num_created_ += moves.num_create;
    stats_.num_moves += moves.from.empty() || moves.to.empty() ? 0 : 1;
    stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, static_cast<int64_t>(num_created_ * page_bytes_));
    return Moved::kDone;
}

// What left and what came; pages that come from elsewhere in the pool apart from the others.
void Pool::note_moves(const Moves& moves) {
    const auto note = [&](oarlock_pool_action action, const Run& run, uint64_t page, uint64_t count, bool moved) {
        const Arena* arena = run.block->arena;
        if (count > 0) {
            recorder_.note(action, arena->page_addr(page), count * page_bytes_, 0, arena->heap->tag, context,
                           moved ? 1 : 0);
        }
    };
    for (const Run& run : moves.from) {
        note(OARLOCK_UNMAP, run, run.page, run.count, !moves.to.empty());
    }
    uint64_t num_fresh = moves.num_spare + moves.num_create;
    for (const Run& run : moves.to) {
        const uint64_t fresh = std::min(num_fresh, run.count);
        num_fresh -= fresh;
        note(OARLOCK_MAP, run, run.page, fresh, false);
        note(OARLOCK_MAP, run, run.page + fresh, run.count - fresh, true);
    }
}

void Pool::note_page(oarlock_pool_action action, const Arena* arena, uint64_t page) {
    if (recorder_.on()) {
        recorder_.note(action, arena->page_addr(page), page_bytes_, 0, arena->heap->tag, {}, 0);
    }
}

// The first block of the destinations, joined with its free neighbours.
Block* Pool::commit(const Moves& moves) {
    std::vector<Block*> graveyard;
    std::vector<Block*> changed;
    for (const Run& run : moves.from) {
        Block* b =
            run.block->arena->heap->carve(run.block, run.addr(), run.addr() + run.count * page_bytes_, State::kHole);
        b->uses.clear();
        changed.push_back(b);
    }
    const size_t first = changed.size();
    for (const Run& run : moves.to) {
        changed.push_back(
            run.block->arena->heap->carve(run.block, run.addr(), run.addr() + run.count * page_bytes_, State::kFree));
    }
    // Only now: until here the runs' blocks must stay what they were.
    for (Block* b : changed) {
        b->arena->heap->enter(b);
    }
    for (Block* b : changed) {
        if (b->state != State::kMerged) {
            b->arena->heap->leave(b);
            b->arena->heap->merge(b, &graveyard);
        }
    }
    Block* result = changed.size() > first ? changed[first] : nullptr;
    while (result != nullptr && result->state == State::kMerged) {
        result = result->prev;
    }
    for (Block* b : graveyard) {
        store_.give(b);
    }
    return result;
}

Block* Pool::block_at(Arena* arena, uint64_t addr) const {
    Block* b = arena->first;
    while (b->end() <= addr) {
        b = b->next;
    }
    return b;
}

// A page stuck at an address: mapped, perhaps, but neither usable nor movable.
void Pool::lose(Arena* arena, uint64_t page) {
    store_.reserve(4);
    Block* b = block_at(arena, arena->page_addr(page));
    if (covers(b, arena, page)) {
        Block* lost = arena->heap->carve(b, arena->page_addr(page), arena->page_addr(page + 1), State::kLost);
        lost->uses.clear();
        stats_.lost_bytes += static_cast<int64_t>(page_bytes_);
    }
}

// Maps a page back to where it was; if the driver refuses, the page is spare and its address a hole.
bool Pool::put_back(const Run& run, uint64_t page, uint64_t handle) {
    Arena* arena = run.block->arena;
    const uint64_t addr = arena->page_addr(page);
    const bool mapped = driver_->map(addr, handle);
    if (mapped && driver_->set_access(addr, page_bytes_)) {
        return true;
    }
    if (mapped && !driver_->unmap(addr, page_bytes_)) {
        return false;
    }
    arena->pages[page] = 0;
    spare_.push_back(handle);
    return false;
}

Moved Pool::roll_back(const Moves& moves, uint64_t num_unmapped_runs, uint64_t num_mapped,
                      std::vector<uint64_t>& handles, uint64_t first_created) {
    const std::string reason = driver_->error();
    std::vector<std::pair<Arena*, uint64_t>> lost;   // pages
    std::vector<std::pair<Arena*, uint64_t>> holes;  // pages
    // Destinations: what cannot be unmapped stays there for good.
    std::vector<bool> stuck(handles.size(), false);
    size_t next = 0;
    for (const Run& run : moves.to) {
        for (uint64_t page = run.page; page < run.page + run.count && next < num_mapped; page++, next++) {
            Arena* arena = run.block->arena;
            if (!driver_->unmap(arena->page_addr(page), page_bytes_)) {
                stuck[next] = true;
                arena->pages[page] = handles[next];
                note_page(OARLOCK_MAP, arena, page);
                lost.emplace_back(arena, page);
            }
        }
    }
    // Sources.
    size_t source = first_created + moves.num_got;
    for (size_t i = 0; i < num_unmapped_runs; i++) {
        const Run& run = moves.from[i];
        for (uint64_t page = run.page; page < run.page + run.count; page++, source++) {
            Arena* arena = run.block->arena;
            if (stuck[source]) {
                arena->pages[page] = 0;
                holes.emplace_back(arena, page);
            } else if (!put_back(run, page, handles[source])) {
                (arena->pages[page] == 0 ? holes : lost).emplace_back(arena, page);
            }
        }
    }
    // Spare pages: only the stuck ones are spare no longer.
    for (size_t i = 0; i < first_created; i++) {
        if (stuck[i]) {
            spare_.erase(std::find(spare_.begin(), spare_.end(), handles[i]));
        }
    }
    // New pages: the device has them again, or the pool keeps them.
    for (size_t i = first_created; i < first_created + moves.num_got; i++) {
        if (stuck[i]) {
            num_created_++;
        } else if (!driver_->release(handles[i])) {
            num_created_++;
            spare_.push_back(handles[i]);
        }
    }
    for (const auto& [arena, page] : lost) {
        lose(arena, page);
    }
    for (const auto& [arena, page] : holes) {
        note_page(OARLOCK_UNMAP, arena, page);
        store_.reserve(4);
        Block* b = block_at(arena, arena->page_addr(page));
        if (b->state == State::kFree && covers(b, arena, page)) {
            b = arena->heap->carve(b, arena->page_addr(page), arena->page_addr(page + 1), State::kHole);
            b->uses.clear();
            arena->heap->merge(b);
        }
    }
    stats_.num_rollbacks++;
    rollback_reason_ = reason;
    return Moved::kFailed;
}

}  // namespace oarlock::memory
