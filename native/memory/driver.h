// What the pool asks of a device: address ranges, physical pages, their mapping, and events that order streams.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace oarlock::memory {

// Calls that return false have done nothing and left their reason in error(). Not thread-safe: the pool holds its lock,
// except around wait().
class Driver {
  public:
    virtual ~Driver() = default;

    // The page size must be a multiple of it.
    virtual uint64_t granularity() const = 0;
    // False: memory is free to reuse as soon as it is freed, and no event is ever asked for.
    virtual bool has_streams() const = 0;

    // Addresses without memory behind them, aligned to the page size.
    virtual bool reserve(uint64_t bytes, uint64_t* addr) = 0;
    virtual void unreserve(uint64_t addr, uint64_t bytes) = 0;

    // One physical page; never 0.
    virtual bool create(uint64_t* page) = 0;
    virtual bool release(uint64_t page) = 0;
    virtual bool map(uint64_t addr, uint64_t page) = 0;
    virtual bool set_access(uint64_t addr, uint64_t bytes) = 0;
    // Mapped pages that lie side by side. The pages themselves stay.
    virtual bool unmap(uint64_t addr, uint64_t bytes) = 0;

    // An event behind all work queued on the stream so far.
    virtual bool record(uint64_t stream, uint64_t* event) = 0;
    virtual bool done(uint64_t event) = 0;
    virtual bool wait(uint64_t event) = 0;
    virtual void forget(uint64_t event) = 0;
    // What is queued on the stream from now on begins after the event; the host goes on.
    virtual bool stream_wait(uint64_t stream, uint64_t event) = 0;

    // Contents out of and into mapped memory.
    virtual bool save(void* to, uint64_t from, uint64_t bytes) = 0;
    virtual bool load(uint64_t to, const void* from, uint64_t bytes) = 0;

    // Another device that set_access() opens memory to from now on; and the last one no longer.
    virtual bool add_peer(int32_t) { return fail("this driver has no other devices"); }
    virtual void remove_peer() {}

    // Whether `page` is mapped at `addr`, as far as the driver can tell: for the pool's self-check.
    virtual bool holds(uint64_t addr, uint64_t page) const = 0;

    virtual const std::string& error() const { return error_; }

  protected:
    bool fail(std::string reason) {
        error_ = std::move(reason);
        return false;
    }
    std::string error_;
};

// Each makes a driver for pages of `page_bytes`, or returns null and says why.
std::unique_ptr<Driver> make_host_driver(uint64_t page_bytes, std::string* why);
std::unique_ptr<Driver> make_memfd_driver(uint64_t page_bytes, std::string* why);
std::unique_ptr<Driver> make_cuda_driver(uint64_t page_bytes, int32_t device, std::string* why);

}  // namespace oarlock::memory
