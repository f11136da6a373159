// A driver whose chosen calls fail: wraps any other one.
#pragma once

#include <atomic>
#include <utility>

#include "memory/driver.h"

namespace oarlock::memory {

class FaultyDriver final : public Driver {
  public:
    explicit FaultyDriver(std::unique_ptr<Driver> inner) : inner_(std::move(inner)) { error_ = "injected fault"; }

    Driver& inner() { return *inner_; }
    uint64_t num_calls() const { return calls_; }
    // Of the calls from now on, those numbered first, first + 1, ..., first + count - 1 fail.
    void fail_calls(uint64_t first, uint64_t count) {
        calls_ = 0;
        first_ = first;
        count_ = count;
    }

    uint64_t granularity() const override { return inner_->granularity(); }
    bool has_streams() const override { return inner_->has_streams(); }
    bool reserve(uint64_t bytes, uint64_t* addr) override { return passes() && inner_->reserve(bytes, addr); }
    void unreserve(uint64_t addr, uint64_t bytes) override { inner_->unreserve(addr, bytes); }
    bool create(uint64_t* page) override { return passes() && inner_->create(page); }
    bool release(uint64_t page) override { return passes() && inner_->release(page); }
    bool map(uint64_t addr, uint64_t page) override { return passes() && inner_->map(addr, page); }
    bool set_access(uint64_t addr, uint64_t bytes) override { return passes() && inner_->set_access(addr, bytes); }
    bool unmap(uint64_t addr, uint64_t bytes) override { return passes() && inner_->unmap(addr, bytes); }
    bool record(uint64_t stream, uint64_t* event) override { return passes() && inner_->record(stream, event); }
    bool done(uint64_t event) override { return passes() && inner_->done(event); }
    bool wait(uint64_t event) override { return passes() && inner_->wait(event); }
    void forget(uint64_t event) override { inner_->forget(event); }
    bool stream_wait(uint64_t stream, uint64_t event) override {
        return passes() && inner_->stream_wait(stream, event);
    }
    bool save(void* to, uint64_t from, uint64_t bytes) override { return passes() && inner_->save(to, from, bytes); }
    bool load(uint64_t to, const void* from, uint64_t bytes) override {
        return passes() && inner_->load(to, from, bytes);
    }
    bool add_peer(int32_t device) override { return passes() && inner_->add_peer(device); }
    void remove_peer() override { inner_->remove_peer(); }
    bool holds(uint64_t addr, uint64_t page) const override { return inner_->holds(addr, page); }
    const std::string& error() const override { return injected_ ? error_ : inner_->error(); }

  private:
    bool passes() {
        const uint64_t call = calls_++;
        injected_ = call >= first_ && call - first_ < count_;
        return !injected_;
    }
    std::unique_ptr<Driver> inner_;
    // Atomic because wait() is called without the pool's lock.
    std::atomic<uint64_t> calls_{0}, first_{0}, count_{0};
    std::atomic<bool> injected_{false};
};

}  // namespace oarlock::memory
