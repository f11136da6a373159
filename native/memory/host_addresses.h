// Address ranges of this process without memory behind them (Linux).
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

namespace oarlock::memory {

inline void* pointer(uint64_t addr) {
    return reinterpret_cast<void*>(addr);
}

inline uint64_t host_page_bytes() {
    return static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

inline std::string system_error(const char* call) {
    return std::string(call) + ": " + std::strerror(errno);
}

inline bool reserve_addresses(uint64_t bytes, uint64_t align, uint64_t* addr) {
    void* range = mmap(nullptr, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
        return false;
    }
    const uint64_t begin = reinterpret_cast<uint64_t>(range);
    *addr = (begin + align - 1) / align * align;
    if (*addr > begin) {
        munmap(range, *addr - begin);
    }
    if (begin + align > *addr) {
        munmap(pointer(*addr + bytes), begin + align - *addr);
    }
    return true;
}

}  // namespace oarlock::memory
#endif
