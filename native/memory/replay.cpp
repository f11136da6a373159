#include "memory/replay.h"

#include <new>

#include "memory/pool.h"
#include "memory/sim_driver.h"

namespace oarlock::memory {
namespace {

class PoolModel final : public Model {
  public:
    PoolModel(uint64_t capacity, uint64_t lag, uint64_t page_bytes)
        : Model(capacity), page_bytes_(page_bytes) {
        auto sim = std::make_unique<SimDriver>(page_bytes);
        sim_ = sim.get();
        sim_->set_lag(lag);
        pool_ = std::make_unique<Pool>(
            oarlock_pool_config{capacity, capacity, page_bytes, 8, OARLOCK_DRIVER_SIM, 0}, std::move(sim));
    }

    bool malloc(uint32_t id, uint64_t size, uint32_t stream) override {
        if (addresses_.size() <= id) {
            addresses_.resize(id + 1);
        }
        return pool_->malloc(size, stream, 0, &addresses_[id]) == OARLOCK_OK;
    }
    void free(uint32_t id, uint32_t stream) override { pool_->free(addresses_[id], stream); }
    void use(uint32_t id, uint32_t stream) override { pool_->record_stream(addresses_[id], stream); }
    void tick() override { sim_->tick(); }
    Counters counters() const override {
        oarlock_pool_stats stats;
        pool_->stats(&stats);
        const auto bytes = [](int64_t n) { return static_cast<uint64_t>(n); };
        const uint64_t moved = bytes(stats.moved_pages) * page_bytes_;
        Counters counters;
        counters.reserved = bytes(stats.reserved_bytes);
        counters.peak_reserved = bytes(stats.peak_reserved_bytes);
        counters.mapped = counters.reserved + moved;
        counters.unmapped = moved;
        counters.num_stream_syncs = bytes(stats.num_waits);
        counters.num_rounds = bytes(stats.num_moves);
        return counters;
    }

  private:
    const uint64_t page_bytes_;
    SimDriver* sim_;  // the pool owns it
    std::unique_ptr<Pool> pool_;
    std::vector<uint64_t> addresses_;
};

std::unique_ptr<Model> make_model(const oarlock_replay_config& config) {
    switch (config.allocator) {
        case OARLOCK_ALLOCATOR_POOL:
            return std::make_unique<PoolModel>(config.capacity, config.lag, config.page_bytes);
        case OARLOCK_ALLOCATOR_CACHING:
            return make_caching_model(config.capacity, config.lag, config.page_bytes);
        case OARLOCK_ALLOCATOR_EXPANDABLE:
            return make_expandable_model(config.capacity, config.lag, config.page_bytes);
        case OARLOCK_ALLOCATOR_MEMMOVE:
            return make_memmove_model(config.capacity, config.lag, config.page_bytes);
        default:
            return nullptr;
    }
}

}  // namespace
}  // namespace oarlock::memory

oarlock_status oarlock_replay(const uint8_t* actions, const uint32_t* ids, const int64_t* sizes,
                              const uint32_t* streams, int64_t count, const oarlock_replay_config* config,
                              oarlock_replay_result* result) {
    try {
        const std::unique_ptr<oarlock::memory::Model> model = oarlock::memory::make_model(*config);
        if (model == nullptr) {
            return OARLOCK_INVALID_ARGUMENT;
        }
        int64_t failed_at = -1;
        for (int64_t i = 0; i < count && failed_at < 0; i++) {
            if (actions[i] == 1) {
                model->free(ids[i], streams[i]);
            } else if (actions[i] == 2) {
                model->use(ids[i], streams[i]);
            } else if (!model->malloc(ids[i], static_cast<uint64_t>(sizes[i]), streams[i])) {
                failed_at = i;
            }
            model->tick();
        }
        const oarlock::memory::Counters counters = model->counters();
        const auto number = [](uint64_t n) { return static_cast<int64_t>(n); };
        *result = {failed_at,
                   number(counters.peak_reserved),
                   number(counters.mapped),
                   number(counters.unmapped),
                   number(counters.copied),
                   number(counters.num_device_syncs),
                   number(counters.num_stream_syncs),
                   number(counters.num_rounds)};
        return OARLOCK_OK;
    } catch (const std::bad_alloc&) {
        return OARLOCK_OUT_OF_MEMORY;
    }
}
