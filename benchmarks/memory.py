"""The memory pool: what an allocation and its free cost, and how little capacity it needs beyond what is live.

    python benchmarks/memory.py [--quick] [--json PATH]

| id           | value                                                                                             |
|--------------|---------------------------------------------------------------------------------------------------|
| alloc_vs_map | time of an allocation and its free in the pool / in a best-fit core on std::map and std::set      |
| cmin_max     | smallest workable capacity / peak live bytes, the worst of the traces of memory_traces.py         |
| cmin_geomean | the same, geometric mean                                                                          |
| churn_103    | bytes mapped and unmapped beyond the first maps at 1.03 x peak live, pool / expandable segments   |
| works_101    | share of the traces that the pool finishes at 1.01 x peak live                                    |

The last four are simulated: replays against models, of traces that the first run records (a minute or two) and keeps
under build/. For the first, both cores replay the same seeded trace of a mixture-of-experts training step (weights
stay; activations live from forward to backward; expert loads vary; temporaries are freed at once; a GPU's sizes)
through a C++ program that is compiled here, in turns, one thread, memory simulated: no page is mapped after the first
pass. Minima count. The peer is what one would write in an afternoon, with the pool's rules: 512-byte units, best fit,
both neighbours joined on free, one lock.
What recording costs is measured in memory_recorder.py.
"""

import argparse
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import memory_headroom
import memory_recorder
from oarlock import _native

ROOT = Path(__file__).parents[1]
CAPACITY = 256 << 30

HARNESS = r"""
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <vector>
#include <dlfcn.h>
#include "oarlock.h"

struct MapCore {
    struct Block {
        uint64_t size;
        bool free;
    };
    std::map<uint64_t, Block> blocks;
    std::set<std::pair<uint64_t, uint64_t>> holes;
    std::mutex mutex;
    explicit MapCore(uint64_t capacity) {
        blocks[512] = {capacity, true};
        holes.insert({capacity, 512});
    }
    uint64_t malloc(uint64_t size) {
        const std::lock_guard<std::mutex> lock(mutex);
        size = (size + 511) / 512 * 512;
        const auto hole = holes.lower_bound({size, 0});
        if (hole == holes.end()) std::abort();
        const auto [available, addr] = *hole;
        holes.erase(hole);
        const auto it = blocks.find(addr);
        it->second = {size, false};
        if (available > size) {
            blocks.emplace_hint(std::next(it), addr + size, Block{available - size, true});
            holes.insert({available - size, addr + size});
        }
        return addr;
    }
    void free(uint64_t addr) {
        const std::lock_guard<std::mutex> lock(mutex);
        auto it = blocks.find(addr);
        it->second.free = true;
        const auto next = std::next(it);
        if (next != blocks.end() && next->second.free) {
            holes.erase({next->second.size, next->first});
            it->second.size += next->second.size;
            blocks.erase(next);
        }
        if (it != blocks.begin() && std::prev(it)->second.free) {
            const auto before = std::prev(it);
            holes.erase({before->second.size, before->first});
            before->second.size += it->second.size;
            blocks.erase(it);
            it = before;
        }
        holes.insert({it->second.size, it->first});
    }
};

struct PoolCore {
    oarlock_pool* pool = nullptr;
    decltype(&oarlock_pool_malloc) pool_malloc;
    decltype(&oarlock_pool_free) pool_free;
    PoolCore(void* library, uint64_t capacity) {
        const auto open = reinterpret_cast<decltype(&oarlock_pool_open)>(dlsym(library, "oarlock_pool_open"));
        pool_malloc = reinterpret_cast<decltype(&oarlock_pool_malloc)>(dlsym(library, "oarlock_pool_malloc"));
        pool_free = reinterpret_cast<decltype(&oarlock_pool_free)>(dlsym(library, "oarlock_pool_free"));
        const oarlock_pool_config config = {capacity, capacity, 2 << 20, 2, OARLOCK_DRIVER_SIM, 0};
        if (open(&config, &pool) != OARLOCK_OK) std::abort();
    }
    uint64_t malloc(uint64_t size) {
        uint64_t addr = 0;
        if (pool_malloc(pool, size, 0, 0, &addr) != OARLOCK_OK) std::abort();
        return addr;
    }
    void free(uint64_t addr) { pool_free(pool, addr, 0); }
};

// Events: id << 1 with a size is an allocation, id << 1 | 1 a free.
template <typename Core>
double replay(Core& core, const std::vector<uint64_t>& events, std::vector<uint64_t>& where) {
    const auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < events.size(); i += 2) {
        if (events[i] & 1) {
            core.free(where[events[i] >> 1]);
        } else {
            where[events[i] >> 1] = core.malloc(events[i + 1]);
        }
    }
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

int main(int, char** argv) {
    std::ifstream file(argv[2], std::ios::binary | std::ios::ate);
    std::vector<uint64_t> events(static_cast<size_t>(file.tellg()) / 8);
    file.seekg(0);
    file.read(reinterpret_cast<char*>(events.data()), static_cast<std::streamsize>(events.size() * 8));
    std::vector<uint64_t> where(events.size());
    void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const uint64_t capacity = std::strtoull(argv[3], nullptr, 10);
    PoolCore pool(library, capacity);
    MapCore map(capacity);
    double best[2] = {1e300, 1e300};
    for (int turn = 0; turn < std::atoi(argv[4]) + 1; turn++) {
        const double ours = replay(pool, events, where);
        const double theirs = replay(map, events, where);
        if (turn > 0) {  // the first maps pages and fills caches
            best[0] = std::min(best[0], ours);
            best[1] = std::min(best[1], theirs);
        }
    }
    const double pairs = static_cast<double>(events.size()) / 4;
    std::printf("%.3f %.3f\n", best[0] / pairs, best[1] / pairs);
}
"""


def trace(seed: int, num_steps: int) -> list[tuple[int, int]]:
    """Allocations (id << 1, bytes) and frees (id << 1 | 1, 0) of a few training steps; all is freed in the end."""
    choose = random.Random(seed)
    events: list[tuple[int, int]] = []
    count = 0

    def alloc(size: int) -> int:
        nonlocal count
        events.append((count << 1, max(size, 1)))
        count += 1
        return count - 1

    def free(*ids: int) -> None:
        events.extend((i << 1 | 1, 0) for i in ids)

    tokens, width, num_layers, num_experts = 8192, 2048, 24, 32
    weights = [alloc(2 * width * width // 2) for _ in range(num_layers * 8)]
    for _ in range(num_steps):
        gradients: list[int] = []
        for _ in range(4):
            saved: list[list[int]] = []
            for _ in range(num_layers):
                layer = [alloc(2 * tokens * width) for _ in range(5)]
                layer += [alloc(4 * tokens) for _ in range(3)]
                free(alloc(2 * tokens * width * 3))
                shares = [choose.lognormvariate(0, 0.5) for _ in range(num_experts)]
                for share in shares:
                    rows = int(2 * tokens * share / sum(shares))
                    scratch = alloc(2 * rows * width)
                    layer += [alloc(2 * rows * 1024), alloc(2 * rows * 1024)]
                    free(scratch, alloc(4 * num_experts))
                saved.append(layer)
            logits = alloc(4 * tokens * 4096)
            while saved:
                layer = saved.pop()
                flowing = alloc(2 * tokens * width)
                for i in reversed(layer):
                    scratch = alloc(choose.choice((4 * tokens, 2 * tokens * width, 2 * 1024 * width)))
                    free(i, scratch)
                free(flowing)
                if len(gradients) < num_layers * 8:
                    gradients += [alloc(2 * width * width // 2) for _ in range(8)]
            free(logits)
        for i in gradients:
            free(alloc(4 * width * width // 2), i)
    free(*weights)
    return events


def alloc_row(num_steps: int, num_turns: int) -> dict[str, Any]:
    """Nanoseconds for an allocation and its free in both cores."""
    events = trace(0, num_steps)
    with tempfile.TemporaryDirectory() as folder:
        source, program, data = (Path(folder) / name for name in ("replay.cpp", "replay", "trace"))
        source.write_text(HARNESS)
        data.write_bytes(b"".join(struct.pack("<QQ", *event) for event in events))
        subprocess.run(
            ["g++", "-std=c++17", "-O3", "-DNDEBUG", "-pthread", f"-I{ROOT / 'native'}", source, "-o", program, "-ldl"],
            check=True,
        )
        command = [program, _native.library_path(), data, str(CAPACITY), str(num_turns)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    ours, theirs = map(float, done.stdout.split())
    return {
        "figure": "alloc_vs_map",
        "value": round(ours / theirs, 4),
        "detail": f"{ours:.0f} ns / {theirs:.0f} ns, {len(events) // 2} pairs, minimum of {num_turns}",
    }


def main() -> None:
    """Measure, print a table, and write rows {figure, value, detail} if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="under 50 s: fewer turns, replays only if the traces are recorded already"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there")
    args = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, 1 thread, core {_native.library_path()}")
    rows = [alloc_row(num_steps=2, num_turns=10 if args.quick else 40), *memory_headroom.rows(quick=args.quick)]
    rows += memory_recorder.rows(HARNESS, trace(0, 1), CAPACITY, quick=args.quick)
    for row in rows:
        print(f"{row['figure']:22s} {row['value']:8.3f}   {row['detail']}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
