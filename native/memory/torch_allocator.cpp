// The functions that torch's pluggable allocator calls: by device, without a handle of the pool.
#include <array>
#include <atomic>
#include <new>
#include <string>

#include "oarlock.h"

namespace {

constexpr int32_t kMaxDevices = 64;
std::array<std::atomic<oarlock_pool*>, kMaxDevices> pools{};

class OutOfMemory final : public std::bad_alloc {
  public:
    explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
    const char* what() const noexcept override { return message_.c_str(); }

  private:
    std::string message_;
};

oarlock_pool* pool_of(int32_t device) {
    return device >= 0 && device < kMaxDevices ? pools[static_cast<size_t>(device)].load() : nullptr;
}

}  // namespace

oarlock_status oarlock_torch_attach(int32_t device, oarlock_pool* pool) {
    if (device < 0 || device >= kMaxDevices) {
        return OARLOCK_INVALID_ARGUMENT;
    }
    oarlock_pool* none = nullptr;
    return pools[static_cast<size_t>(device)].compare_exchange_strong(none, pool) ? OARLOCK_OK
                                                                                   : OARLOCK_INVALID_ARGUMENT;
}

void* oarlock_torch_malloc(int64_t size, int32_t device, void* stream) {
    oarlock_pool* pool = pool_of(device);
    if (pool == nullptr) {
        throw OutOfMemory("no memory pool serves device " + std::to_string(device));
    }
    uint64_t addr = 0;
    if (oarlock_pool_malloc(pool, static_cast<uint64_t>(size), reinterpret_cast<uint64_t>(stream), 0, &addr) !=
        OARLOCK_OK) {
        throw OutOfMemory(oarlock_pool_message());
    }
    return reinterpret_cast<void*>(addr);
}

void oarlock_torch_free(void* ptr, uint64_t, int32_t device, void* stream) {
    if (oarlock_pool* pool = pool_of(device)) {
        oarlock_pool_free(pool, reinterpret_cast<uint64_t>(ptr), reinterpret_cast<uint64_t>(stream));
    }
}

// Torch does not say on which device; an address belongs to one pool.
void oarlock_torch_record_stream(void* ptr, void* stream) {
    for (const auto& pool : pools) {
        if (pool.load() != nullptr && oarlock_pool_record_stream(pool.load(), reinterpret_cast<uint64_t>(ptr),
                                                                 reinterpret_cast<uint64_t>(stream)) == OARLOCK_OK) {
            return;
        }
    }
}
