// The pool behind the C interface: no exception leaves the library.
#include <new>

#include "memory/faults.h"
#include "memory/pool.h"
#include "memory/sim_driver.h"

using oarlock::memory::last_message;

struct oarlock_pool {
    oarlock_pool(const oarlock_pool_config& config, std::unique_ptr<oarlock::memory::FaultyDriver> driver,
                 oarlock::memory::SimDriver* sim_)
        : faults(driver.get()), sim(sim_), pool(config, std::move(driver)) {}
    oarlock::memory::FaultyDriver* faults;
    oarlock::memory::SimDriver* sim;
    oarlock::memory::Pool pool;
};

namespace {

oarlock_status refuse(std::string why) {
    last_message = std::move(why);
    return OARLOCK_INVALID_ARGUMENT;
}

template <typename Body>
oarlock_status guarded(const Body& body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        last_message = "the host has no memory left for the pool's own books";
        return OARLOCK_OUT_OF_MEMORY;
    }
}

}  // namespace

const char* oarlock_pool_message(void) {
    return last_message.c_str();
}

oarlock_status oarlock_pool_open(const oarlock_pool_config* config, oarlock_pool** pool) {
    return guarded([&] {
        const uint64_t page = config->page_bytes;
        if (page < oarlock::memory::kAlignment || (page & (page - 1)) != 0) {
            return refuse("page_bytes must be a power of two of at least 512, got " + std::to_string(page));
        }
        if (config->capacity < page || config->capacity / page > (uint64_t{1} << 40)) {
            return refuse("capacity must be at least a page of " + std::to_string(page) + " bytes, got " +
                          std::to_string(config->capacity));
        }
        std::string why;
        std::unique_ptr<oarlock::memory::Driver> driver;
        oarlock::memory::SimDriver* sim = nullptr;
        if (config->driver == OARLOCK_DRIVER_SIM) {
            auto simulated = std::make_unique<oarlock::memory::SimDriver>(page);
            sim = simulated.get();
            driver = std::move(simulated);
        } else if (config->driver == OARLOCK_DRIVER_HOST) {
            driver = oarlock::memory::make_host_driver(page, &why);
        } else if (config->driver == OARLOCK_DRIVER_MEMFD) {
            driver = oarlock::memory::make_memfd_driver(page, &why);
        } else if (config->driver == OARLOCK_DRIVER_CUDA) {
            driver = oarlock::memory::make_cuda_driver(page, config->device, &why);
        } else {
            why = "no driver has number " + std::to_string(config->driver);
        }
        if (driver == nullptr) {
            return refuse(why);
        }
        if (driver->granularity() == 0) {
            return refuse("the driver does not tell its granularity");
        }
        if (page % driver->granularity() != 0) {
            return refuse("page_bytes must be a multiple of " + std::to_string(driver->granularity()) + ", got " +
                          std::to_string(page));
        }
        auto faults = std::make_unique<oarlock::memory::FaultyDriver>(std::move(driver));
        *pool = new oarlock_pool(*config, std::move(faults), sim);
        return OARLOCK_OK;
    });
}

oarlock_status oarlock_pool_close(oarlock_pool* pool) {
    return guarded([&] {
        pool->pool.close();
        return OARLOCK_OK;
    });
}

oarlock_status oarlock_pool_malloc(oarlock_pool* pool, uint64_t size, uint64_t stream, uint32_t tag, uint64_t* addr) {
    return guarded([&] { return pool->pool.malloc(size, stream, tag, addr); });
}

oarlock_status oarlock_pool_free(oarlock_pool* pool, uint64_t addr, uint64_t stream) {
    return guarded([&] { return pool->pool.free(addr, stream); });
}

oarlock_status oarlock_pool_record_stream(oarlock_pool* pool, uint64_t addr, uint64_t stream) {
    return guarded([&] { return pool->pool.record_stream(addr, stream); });
}

oarlock_status oarlock_pool_pin(oarlock_pool* pool, uint64_t addr, const char* reason) {
    return guarded([&] { return pool->pool.pin(addr, reason); });
}

oarlock_status oarlock_pool_unpin(oarlock_pool* pool, uint64_t addr) {
    return guarded([&] { return pool->pool.unpin(addr); });
}

oarlock_status oarlock_pool_sleep(oarlock_pool* pool, uint32_t tag, int32_t keep) {
    return guarded([&] { return pool->pool.sleep(tag, keep != 0); });
}

oarlock_status oarlock_pool_wake(oarlock_pool* pool, uint32_t tag) {
    return guarded([&] { return pool->pool.wake(tag); });
}

oarlock_status oarlock_pool_trim(oarlock_pool* pool) {
    return guarded([&] { return pool->pool.trim(); });
}

oarlock_status oarlock_pool_allow_peer(oarlock_pool* pool, int32_t device) {
    return guarded([&] { return pool->pool.allow_peer(device); });
}

oarlock_status oarlock_pool_set_pressure(oarlock_pool* pool, oarlock_pressure callback, void* user) {
    pool->pool.set_pressure(callback, user);
    return OARLOCK_OK;
}

oarlock_status oarlock_pool_largest(oarlock_pool* pool, uint64_t stream, uint32_t tag, uint64_t* size) {
    return guarded([&] {
        *size = pool->pool.largest(stream, tag);
        return OARLOCK_OK;
    });
}

oarlock_status oarlock_pool_fits(oarlock_pool* pool, const uint64_t* sizes, int64_t count, uint64_t stream,
                                 uint32_t tag, int32_t* fits) {
    return guarded([&] {
        *fits = pool->pool.fits(sizes, count, stream, tag) ? 1 : 0;
        return OARLOCK_OK;
    });
}

oarlock_status oarlock_pool_get_stats(oarlock_pool* pool, oarlock_pool_stats* stats) {
    pool->pool.stats(stats);
    return OARLOCK_OK;
}

oarlock_status oarlock_pool_walk(oarlock_pool* pool, oarlock_pool_block* blocks, int64_t max, int64_t* count) {
    *count = pool->pool.walk(blocks, max);
    return OARLOCK_OK;
}

oarlock_status oarlock_pool_record(oarlock_pool* pool, uint64_t num_events) {
    if (num_events > uint64_t{1} << 32) {
        return refuse("at most 2^32 events can be kept, asked for " + std::to_string(num_events));
    }
    return guarded([&] {
        pool->pool.record(num_events);
        return OARLOCK_OK;
    });
}

void oarlock_pool_context(uint32_t stack, uint32_t name) {
    oarlock::memory::context = {stack, name};
}

oarlock_status oarlock_pool_annotate(oarlock_pool* pool, uint64_t addr, uint8_t detail) {
    return guarded([&] { return pool->pool.annotate(addr, detail); });
}

oarlock_status oarlock_pool_snapshot(oarlock_pool* pool, uint64_t first, oarlock_pool_event* events, int64_t max_events,
                                     uint64_t* begin, int64_t* num_events, oarlock_pool_block* blocks,
                                     int64_t max_blocks, int64_t* num_blocks) {
    return guarded([&] {
        pool->pool.snapshot(first, events, max_events, begin, num_events, blocks, max_blocks, num_blocks);
        return OARLOCK_OK;
    });
}

oarlock_status oarlock_pool_streams(oarlock_pool* pool, uint64_t* handles, int64_t max, int64_t* count) {
    *count = pool->pool.streams(handles, max);
    return OARLOCK_OK;
}

oarlock_status oarlock_pool_check(oarlock_pool* pool) {
    return pool->pool.check();
}

oarlock_status oarlock_pool_fail_calls(oarlock_pool* pool, uint64_t first, uint64_t count) {
    if (pool->pool.gone()) {
        return OARLOCK_OK;
    }
    pool->faults->fail_calls(first, count);
    return OARLOCK_OK;
}

oarlock_status oarlock_pool_num_calls(oarlock_pool* pool, uint64_t* count) {
    *count = pool->pool.gone() ? 0 : pool->faults->num_calls();
    return OARLOCK_OK;
}

oarlock_status oarlock_pool_sim_hold(oarlock_pool* pool, uint64_t stream, int32_t held) {
    if (pool->sim == nullptr) {
        return refuse("only the simulated driver holds streams");
    }
    if (!pool->pool.gone()) {
        pool->sim->hold(stream, held != 0);
    }
    return OARLOCK_OK;
}
