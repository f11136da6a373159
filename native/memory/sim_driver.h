// A device of arithmetic only: any size, streams that stand still when told to, and a check of every call's sense.
#pragma once

#include <mutex>
#include <unordered_map>
#include <vector>

#include "memory/driver.h"

namespace oarlock::memory {

class SimDriver final : public Driver {
  public:
    explicit SimDriver(uint64_t page_bytes) : page_bytes_(page_bytes) {}

    // While held, the stream's new events stay pending; letting go completes them.
    void hold(uint64_t stream, bool held);
    // From now on an event is done `lag` ticks after it was recorded, or once it was waited for.
    void set_lag(uint64_t lag) { lag_ = lag; }
    void tick() { clock_++; }

    uint64_t granularity() const override { return 512; }
    bool has_streams() const override { return true; }
    bool reserve(uint64_t bytes, uint64_t* addr) override;
    void unreserve(uint64_t, uint64_t) override {}
    bool create(uint64_t* page) override;
    bool release(uint64_t page) override;
    bool map(uint64_t addr, uint64_t page) override;
    bool set_access(uint64_t addr, uint64_t bytes) override;
    bool unmap(uint64_t addr, uint64_t bytes) override;
    bool record(uint64_t stream, uint64_t* event) override;
    bool done(uint64_t event) override;
    bool wait(uint64_t event) override;
    void forget(uint64_t event) override;
    bool stream_wait(uint64_t stream, uint64_t event) override;
    bool save(void*, uint64_t, uint64_t) override { return true; }
    bool load(uint64_t, const void*, uint64_t) override { return true; }
    bool add_peer(int32_t) override {
        num_devices_++;
        return true;
    }
    void remove_peer() override { num_devices_--; }
    bool holds(uint64_t addr, uint64_t page) const override;

  private:
    struct Mapping {
        uint64_t page;
        uint32_t access;  // devices
    };
    struct Marker {
        uint64_t stream;
        uint64_t due;
        bool pending;
        std::vector<uint64_t> after;  // events that it cannot be done before
    };
    bool is_done(uint64_t event);
    void finish(uint64_t event);
    const uint64_t page_bytes_;
    uint64_t next_addr_ = uint64_t{1} << 40;
    uint64_t next_page_ = 0;
    uint64_t next_event_ = 0;
    uint32_t num_devices_ = 1;
    uint64_t lag_ = 0;
    uint64_t clock_ = 0;
    std::unordered_map<uint64_t, uint64_t> where_;    // page -> address, 0 where it is mapped nowhere
    std::unordered_map<uint64_t, Mapping> mappings_;  // address -> page
    std::mutex events_mutex_;                         // wait() is called without the pool's lock
    std::unordered_map<uint64_t, Marker> events_;
    std::unordered_map<uint64_t, bool> held_;
    std::unordered_map<uint64_t, std::vector<uint64_t>> waits_;  // by stream
};

}  // namespace oarlock::memory
