// Puts all of torch's CPU tensors into a memory pool, or into one fixed range that a best-fit heap manages. Test only.
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

extern "C" {
// The core's; see native/oarlock.h.
using Malloc = void* (*)(int64_t, int32_t, void*);
using Free = void (*)(void*, uint64_t, int32_t, void*);
}

namespace {

Malloc pool_malloc = nullptr;
Free pool_free = nullptr;

void free_in_pool(void* ptr) {
    pool_free(ptr, 0, 0, nullptr);
}

// What malloc could do with `capacity` bytes: nothing moves, nothing is mapped elsewhere.
struct Fixed {
    struct Block {
        uint64_t size;
        bool free;
    };
    std::mutex mutex;
    char* base = nullptr;
    std::map<uint64_t, Block> blocks;

    void* malloc(uint64_t requested) {
        const std::lock_guard<std::mutex> lock(mutex);
        const uint64_t size = (requested + 511) / 512 * 512;
        auto best = blocks.end();
        for (auto it = blocks.begin(); it != blocks.end(); ++it) {
            if (it->second.free && it->second.size >= size &&
                (best == blocks.end() || it->second.size < best->second.size)) {
                best = it;
            }
        }
        if (best == blocks.end()) {
            return nullptr;
        }
        if (best->second.size > size) {
            blocks[best->first + size] = {best->second.size - size, true};
        }
        best->second = {size, false};
        return base + best->first;
    }
    void free(void* ptr) {
        const std::lock_guard<std::mutex> lock(mutex);
        auto it = blocks.find(static_cast<uint64_t>(static_cast<char*>(ptr) - base));
        it->second.free = true;
        const auto next = std::next(it);
        if (next != blocks.end() && next->second.free) {
            it->second.size += next->second.size;
            blocks.erase(next);
        }
        if (it != blocks.begin() && std::prev(it)->second.free) {
            std::prev(it)->second.size += it->second.size;
            blocks.erase(it);
        }
    }
};
Fixed* fixed = nullptr;

void free_in_fixed(void* ptr) {
    fixed->free(ptr);
}

class PoolAllocator final : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t size) override {
        void* ptr = size == 0 ? nullptr : pool_malloc(static_cast<int64_t>(size), 0, nullptr);  // throws
        return {ptr, ptr, raw_deleter(), c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &free_in_pool; }
    void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};

class FixedAllocator final : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t size) override {
        void* ptr = size == 0 ? nullptr : fixed->malloc(size);
        TORCH_CHECK(size == 0 || ptr != nullptr, "out of memory: no free block holds ", size, " bytes");
        return {ptr, ptr, raw_deleter(), c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &free_in_fixed; }
    void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};

}  // namespace

extern "C" void shim_use_pool(Malloc malloc, Free free) {
    pool_malloc = malloc;
    pool_free = free;
    c10::SetCPUAllocator(new PoolAllocator, 255);
}

extern "C" void shim_use_fixed(uint64_t capacity) {
    fixed = new Fixed;
    fixed->base = static_cast<char*>(
        mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    fixed->blocks[0] = {capacity, true};
    c10::SetCPUAllocator(new FixedAllocator, 255);
}
