#include "attention/flash_schedule.h"

#include <algorithm>
#include <numeric>

namespace oarlock {
namespace {

using Costs = std::vector<int64_t>;  // per tile

Costs tile_costs(const MaskClasses& mask, const oarlock_attention& call, const FlashKernels& kernels) {
    const Costs per_vector = mask.chunks_per_group(kernels.vector_rows, call.seqlen_q);
    const int64_t vectors_per_tile = kernels.tile_rows / kernels.vector_rows;
    Costs costs(static_cast<size_t>((call.seqlen_q + kernels.tile_rows - 1) / kernels.tile_rows), 0);
    for (size_t v = 0; v < per_vector.size(); ++v) {
        costs[v / static_cast<size_t>(vectors_per_tile)] += per_vector[v];
    }
    return costs;
}

// The masks of the query heads that share a key head, each with the number of heads it stands for.
struct GroupMask {
    size_t index;
    int64_t num_heads;
};

std::vector<GroupMask> masks_of(const oarlock_attention& call, int64_t batch, int64_t key_head) {
    std::vector<GroupMask> masks;
    const int64_t group = call.num_heads_q / call.num_heads_k;
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
        const int64_t mask_batch = call.mask_batch == 1 ? 0 : batch;
        const auto index =
            static_cast<size_t>(mask_batch * call.mask_heads + head * call.mask_heads / call.num_heads_q);
        if (!masks.empty() && masks.back().index == index) {
            ++masks.back().num_heads;
        } else {
            masks.push_back({index, 1});
        }
    }
    return masks;
}

// The blocks of keys that the item needs.
void set_blocks(FlashItem& item, const std::vector<GroupMask>& group, const std::vector<MaskClasses>& masks,
                int64_t tile_rows) {
    const auto num_blocks = static_cast<int64_t>(masks[group[0].index].hulls().size());
    std::vector<int64_t> first_live(static_cast<size_t>(item.tile_end - item.tile_begin), num_blocks);
    item.block_begin = num_blocks;
    for (int64_t block = 0; block < num_blocks; ++block) {
        RowRange hull = {INT32_MAX, 0};
        for (const GroupMask& mask : group) {
            const RowRange rows = masks[mask.index].hulls()[static_cast<size_t>(block)];
            hull = {std::min(hull.begin, rows.begin), std::max(hull.end, rows.end)};
        }
        if (hull.begin >= hull.end) {
            continue;
        }
        const int64_t first = std::max(hull.begin / tile_rows, item.tile_begin);
        const int64_t last = std::min((hull.end - 1) / tile_rows, item.tile_end - 1);
        for (int64_t tile = std::max(first - 1, item.tile_begin); tile <= last; ++tile) {
            int64_t& oldest = first_live[static_cast<size_t>(tile - item.tile_begin)];
            oldest = std::min(oldest, block);
            item.span = std::max(item.span, block + 1 - oldest);
        }
        if (first <= last) {
            item.block_begin = std::min(item.block_begin, block);
            item.block_end = block + 1;
        }
    }
    item.block_begin = std::min(item.block_begin, item.block_end);
}

}  // namespace

Schedule make_schedule(const oarlock_attention& call, const std::vector<MaskClasses>& masks,
                       const FlashKernels& kernels, int64_t num_wanted) {
    std::vector<Costs> costs_of_mask;
    for (const MaskClasses& mask : masks) {
        costs_of_mask.push_back(tile_costs(mask, call, kernels));
    }
    const auto num_tiles = (call.seqlen_q + kernels.tile_rows - 1) / kernels.tile_rows;
    std::vector<Costs> costs_of_head;
    int64_t total = 0;
    for (int64_t pair = 0; pair < call.batch * call.num_heads_k; ++pair) {
        Costs costs(static_cast<size_t>(num_tiles), 0);
        for (const GroupMask& mask : masks_of(call, pair / call.num_heads_k, pair % call.num_heads_k)) {
            for (size_t tile = 0; tile < costs.size(); ++tile) {
                costs[tile] += mask.num_heads * costs_of_mask[mask.index][tile];
            }
        }
        total += std::accumulate(costs.begin(), costs.end(), int64_t{0});
        costs_of_head.push_back(std::move(costs));
    }

    Schedule schedule;
    // Rounded up, so that heads of equal cost stay whole if their number is a multiple of the items wanted.
    const int64_t target = std::max<int64_t>((total + num_wanted - 1) / num_wanted, 1);
    for (int64_t pair = 0; pair < call.batch * call.num_heads_k; ++pair) {
        const Costs& costs = costs_of_head[static_cast<size_t>(pair)];
        const int64_t cost = std::accumulate(costs.begin(), costs.end(), int64_t{0});
        const int64_t num_parts = std::clamp<int64_t>((cost + target - 1) / target, 1, num_tiles);
        schedule.first_item.push_back(schedule.items.size());
        FlashItem item = {};
        item.batch = pair / call.num_heads_k;
        item.key_head = pair % call.num_heads_k;
        int64_t part = 0;
        int64_t done = 0;
        for (int64_t tile = 0; tile < num_tiles; ++tile) {
            item.cost += costs[static_cast<size_t>(tile)];
            item.tile_end = tile + 1;
            if ((done + item.cost) * num_parts >= cost * (part + 1) && item.tile_end < num_tiles) {
                done += item.cost;
                schedule.items.push_back(item);
                item.tile_begin = item.tile_end;
                item.cost = 0;
                ++part;
            }
        }
        schedule.items.push_back(item);
    }
    schedule.first_item.push_back(schedule.items.size());

    for (FlashItem& item : schedule.items) {
        set_blocks(item, masks_of(call, item.batch, item.key_head), masks, kernels.tile_rows);
    }
    schedule.by_cost.resize(schedule.items.size());
    std::iota(schedule.by_cost.begin(), schedule.by_cost.end(), size_t{0});
    std::stable_sort(schedule.by_cost.begin(), schedule.by_cost.end(),
                     [&](size_t a, size_t b) { return schedule.items[a].cost > schedule.items[b].cost; });
    return schedule;
}

}  // namespace oarlock
