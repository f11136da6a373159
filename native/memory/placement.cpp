// Where a request goes, and whose pages it takes.
#include <algorithm>

#include "memory/pool.h"

namespace oarlock::memory {

bool Pool::is_donor(const Block* b) const {
    return streams_.done(b->uses) && whole_pages(b) > 0;
}

uint64_t Pool::num_donor_pages() const {
    uint64_t count = 0;
    each_heap([&](Heap& h) {
        if (!h.asleep) {
            h.index.each(page_bytes_, [&](Block* b) { count += is_donor(b) ? whole_pages(b) : 0; });
        }
    });
    return count;
}

// Tries windows around every hole: from the free block before it (or its own start) to the right, and from the end of
// the free block behind it to the left. Keeps the one that needs the fewest pages, then the smallest hole, of those for
// which `num_pages` suffice once the window's own pages are left out.
bool Pool::find_window(Heap& h, uint64_t size, uint32_t stream, uint64_t num_pages, Window* best) const {
    const auto fits = [&](const Block* b) {
        return b != nullptr &&
               (b->state == State::kHole || (b->state == State::kFree && streams_.usable(b->uses, stream)));
    };
    bool found = false;
    const auto offer = [&](const Window& w) {
        const bool better = !found || w.num_pages < best->num_pages ||
                            (w.num_pages == best->num_pages && w.hole_bytes < best->hole_bytes);
        if (better && w.num_pages + w.num_donors <= num_pages) {
            *best = w;
            found = true;
        }
    };
    const auto count = [&](const Block* b, uint64_t used, Window* w) {
        if (b->state == State::kHole) {
            w->num_pages += (used + page_bytes_ - 1) / page_bytes_;
            w->hole_bytes += b->size;
        } else if (is_donor(b)) {
            w->num_donors += whole_pages(b);
        }
    };
    for (Block* hole = h.holes; hole != nullptr; hole = hole->after) {
        Window right;
        right.first =
            hole->prev != nullptr && hole->prev->state == State::kFree && fits(hole->prev) ? hole->prev : hole;
        right.start = right.first->addr;
        uint64_t left = size;
        for (Block* b = right.first; left > 0 && fits(b); b = b->next) {
            const uint64_t used = std::min(left, b->size);
            count(b, used, &right);
            left -= used;
        }
        if (left == 0) {
            offer(right);
        }
        if (!fits(hole->next)) {
            continue;
        }
        Window ending;
        left = size;
        for (Block* b = hole->next; left > 0 && fits(b); b = b->prev) {
            const uint64_t used = std::min(left, b->size);
            count(b, used, &ending);
            left -= used;
            ending.first = b;
            ending.start = b->end() - used;
        }
        if (left == 0) {
            offer(ending);
        }
    }
    return found;
}

// The smallest free block that holds `size`, once the stream was made to wait for the others that still use it.
Block* Pool::find_ordered(Heap& h, uint64_t size, uint32_t stream) {
    Block* best = nullptr;
    h.index.each(size, [&](Block* b) {
        if (b->size >= size && (best == nullptr || b->size < best->size)) {
            best = b;
        }
    });
    if (best == nullptr || !streams_.order(best->uses, stream)) {
        return nullptr;
    }
    stats_.num_ordered++;
    return best;
}

bool Pool::reserve(Heap& h, uint64_t bytes) {
    for (uint64_t wanted = std::max(bytes, reserve_bytes_);; wanted = std::max(bytes, round_up(wanted / 2))) {
        uint64_t addr = 0;
        if (driver_->reserve(wanted, &addr)) {
            h.add(addr, wanted, page_bytes_);
            return true;
        }
        if (wanted == bytes) {
            return false;
        }
    }
}

void Pool::plan_destinations(const Window& window, uint64_t size, Moves* moves) const {
    const uint64_t end = window.start + size;
    for (Block* b = window.first; b != nullptr && b->addr < end; b = b->next) {
        if (b->state == State::kHole) {
            const uint64_t from = b->arena->page_of(std::max(b->addr, window.start));
            const uint64_t to = (std::min(b->end(), end) - b->arena->addr + page_bytes_ - 1) / page_bytes_;
            moves->to.push_back({b, from, to - from});
        }
    }
}

void Pool::plan_sources(uint64_t num_pages, uint64_t create_limit, const Window* window, uint64_t size,
                        Moves* moves) const {
    const auto take = [&num_pages](uint64_t available) {
        const uint64_t taken = std::min(num_pages, available);
        num_pages -= taken;
        return taken;
    };
    moves->num_spare = take(spare_.size());
    moves->num_create = take(creatable(std::min(create_limit, soft_limit_)));
    if (num_pages > 0) {
        std::vector<Block*> donors;
        each_heap([&](Heap& h) {
            if (h.asleep) {
                return;
            }
            h.index.each(page_bytes_, [&](Block* b) {
                const bool own = window != nullptr && b->addr < window->start + size && window->start < b->end();
                if (!own && is_donor(b)) {
                    donors.push_back(b);
                }
            });
        });
        std::sort(donors.begin(), donors.end(), [&](const Block* a, const Block* b) {
            const uint64_t pages_a = whole_pages(a);
            const uint64_t pages_b = whole_pages(b);
            return pages_a != pages_b ? pages_a < pages_b : a->addr < b->addr;
        });
        for (Block* b : donors) {
            if (num_pages == 0) {
                break;
            }
            // From its end: what stays is one piece, next to what the block was cut from.
            const uint64_t taken = take(whole_pages(b));
            const uint64_t last = (b->end() - b->arena->addr) / page_bytes_;
            moves->from.push_back({b, last - taken, taken});
        }
    }
    moves->num_create += take(creatable(create_limit) - moves->num_create);
}

}  // namespace oarlock::memory
