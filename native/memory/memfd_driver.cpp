// Pages of a memory file, mapped shared. A child process does not inherit the mappings.
#include <unordered_map>
#include <vector>

#include "memory/host_memory_driver.h"

#if defined(__linux__)
#include <fcntl.h>
#endif

namespace oarlock::memory {

#if defined(__linux__)
namespace {

class MemfdDriver final : public HostMemoryDriver {
  public:
    MemfdDriver(uint64_t page_bytes, int file) : HostMemoryDriver(page_bytes), file_(file) {}
    ~MemfdDriver() override { close(file_); }

    bool create(uint64_t* page) override {
        if (unused_.empty()) {
            if (ftruncate(file_, static_cast<off_t>((num_pages_ + 1) * page_bytes_)) != 0) {
                return fail(system_error("ftruncate"));
            }
            unused_.push_back(++num_pages_);
        }
        *page = unused_.back();
        unused_.pop_back();
        return true;
    }

    bool release(uint64_t page) override {
        if (fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset(page),
                      static_cast<off_t>(page_bytes_)) != 0) {
            return fail(system_error("fallocate"));
        }
        unused_.push_back(page);
        return true;
    }

    bool map(uint64_t addr, uint64_t page) override {
        if (mmap(pointer(addr), page_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, offset(page)) ==
            MAP_FAILED) {
            return fail(system_error("mmap"));
        }
        // A child would write into the parent's memory.
        madvise(pointer(addr), page_bytes_, MADV_DONTFORK);
        mapped_[addr] = page;
        return true;
    }

    bool unmap(uint64_t addr, uint64_t bytes) override {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
        if (mmap(pointer(addr), bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED) {
            return fail(system_error("mmap"));
        }
        for (uint64_t a = addr; a < addr + bytes; a += page_bytes_) {
            mapped_.erase(a);
        }
        return true;
    }

    bool holds(uint64_t addr, uint64_t page) const override {
        const auto it = mapped_.find(addr);
        return it != mapped_.end() && it->second == page;
    }

  private:
    off_t offset(uint64_t page) const { return static_cast<off_t>((page - 1) * page_bytes_); }

    const int file_;
    uint64_t num_pages_ = 0;
    std::vector<uint64_t> unused_;
    std::unordered_map<uint64_t, uint64_t> mapped_;  // address -> page
};

}  // namespace

std::unique_ptr<Driver> make_memfd_driver(uint64_t page_bytes, std::string* why) {
    const int file = memfd_create("oarlock-pool", MFD_CLOEXEC);
    if (file < 0) {
        *why = system_error("memfd_create");
        return nullptr;
    }
    return std::make_unique<MemfdDriver>(page_bytes, file);
}

#else

std::unique_ptr<Driver> make_memfd_driver(uint64_t, std::string* why) {
    *why = "the memfd driver needs memfd_create, which only Linux has; use the simulated driver";
    return nullptr;
}

#endif

}  // namespace oarlock::memory
