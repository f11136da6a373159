// What drivers of memory that this process can touch have in common: addresses, no streams, plain copies.
#pragma once

#include "memory/driver.h"
#include "memory/host_addresses.h"

#if defined(__linux__)
#include <sys/mman.h>

#include <cstring>

namespace oarlock::memory {

class HostMemoryDriver : public Driver {
  public:
    explicit HostMemoryDriver(uint64_t page_bytes) : page_bytes_(page_bytes) {}

    uint64_t granularity() const override { return host_page_bytes(); }
    bool has_streams() const override { return false; }

    bool reserve(uint64_t bytes, uint64_t* addr) override {
        return reserve_addresses(bytes, page_bytes_, addr) || fail(system_error("mmap"));
    }
    void unreserve(uint64_t addr, uint64_t bytes) override { munmap(pointer(addr), bytes); }

    bool set_access(uint64_t, uint64_t) override { return true; }

    bool record(uint64_t, uint64_t*) override { return false; }
    bool done(uint64_t) override { return true; }
    bool wait(uint64_t) override { return true; }
    void forget(uint64_t) override {}
    bool stream_wait(uint64_t, uint64_t) override { return true; }

    bool save(void* to, uint64_t from, uint64_t bytes) override {
        std::memcpy(to, pointer(from), bytes);
        return true;
    }
    bool load(uint64_t to, const void* from, uint64_t bytes) override {
        std::memcpy(pointer(to), from, bytes);
        return true;
    }

  protected:
    const uint64_t page_bytes_;
};

}  // namespace oarlock::memory
#endif
