// Pages of the host's anonymous memory. A page lives at some address from its first mapping on; mremap carries it over.
#include <cerrno>
#include <unordered_map>
#include <vector>

#include "memory/host_memory_driver.h"

#if defined(__linux__)
#include <sys/mman.h>
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#endif

namespace oarlock::memory {

#if defined(__linux__)
namespace {

class HostDriver final : public HostMemoryDriver {
  public:
    using HostMemoryDriver::HostMemoryDriver;

    // Memory comes with the first touch.
    bool create(uint64_t* page) override {
        if (unused_.empty()) {
            pages_.push_back({});
            unused_.push_back(pages_.size());
        }
        *page = unused_.back();
        unused_.pop_back();
        return true;
    }

    bool release(uint64_t page) override {
        Page& p = pages_[page - 1];
        if (p.addr != 0) {
            if (madvise(pointer(p.addr), page_bytes_, MADV_DONTNEED) != 0) {
                return fail(system_error("madvise"));
            }
            close_off(p.addr);
            sitting_.erase(p.addr);
            p.addr = 0;
        }
        unused_.push_back(page);
        return true;
    }

    bool map(uint64_t addr, uint64_t page) override {
        Page& p = pages_[page - 1];
        const auto sitting = sitting_.find(addr);
        if (p.addr == addr) {
            p.mapped = true;
            return true;
        }
        if (sitting != sitting_.end() && p.addr == 0) {
            // An unmapped page still sits there: its memory passes to this one.
            pages_[sitting->second - 1].addr = 0;
        } else if (p.addr == 0 || !carry(p.addr, addr)) {
            // Also where the kernel cannot carry it over: free pages have no contents to lose.
            if (mprotect(pointer(addr), page_bytes_, PROT_READ | PROT_WRITE) != 0) {
                return fail(system_error("mprotect"));
            }
            if (p.addr != 0) {
                madvise(pointer(p.addr), page_bytes_, MADV_DONTNEED);
                close_off(p.addr);
            }
        } else if (sitting != sitting_.end()) {
            pages_[sitting->second - 1].addr = 0;  // overwritten
        }
        if (p.addr != 0) {
            sitting_.erase(p.addr);
        }
        sitting_[addr] = page;
        p = {addr, true};
        return true;
    }

    // The page stays where it is until it is mapped elsewhere or released: then one system call moves it.
    bool unmap(uint64_t addr, uint64_t bytes) override {
        for (uint64_t a = addr; a < addr + bytes; a += page_bytes_) {
            pages_[sitting_.at(a) - 1].mapped = false;
        }
        return true;
    }

    bool holds(uint64_t addr, uint64_t page) const override {
        const Page& p = pages_[page - 1];
        return p.addr == addr && p.mapped;
    }

  private:
    struct Page {
        uint64_t addr = 0;  // 0: nowhere yet
        bool mapped = false;
    };

    bool carry(uint64_t from, uint64_t to) {
        // DONTUNMAP: no moment in which another thread's mmap could take the address that is left.
        const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
        if (mremap(pointer(from), page_bytes_, page_bytes_, flags, pointer(to)) == MAP_FAILED) {
            return false;
        }
        close_off(from);
        return true;
    }

    // Only so that a stray access is seen; without it the address is merely empty.
    void close_off(uint64_t addr) { mprotect(pointer(addr), page_bytes_, PROT_NONE); }

    std::vector<Page> pages_;
    std::vector<uint64_t> unused_;
    std::unordered_map<uint64_t, uint64_t> sitting_;  // address -> page
};

}  // namespace

std::unique_ptr<Driver> make_host_driver(uint64_t page_bytes, std::string*) {
    return std::make_unique<HostDriver>(page_bytes);
}

#else

std::unique_ptr<Driver> make_host_driver(uint64_t, std::string* why) {
    *why = "the host driver needs mremap, which only Linux has; use the simulated driver";
    return nullptr;
}

#endif

}  // namespace oarlock::memory
