// Pages of a CUDA device, through the driver API: found by dlopen, so that the core builds and loads without CUDA.
#include <vector>

#include "memory/driver.h"

#if defined(__linux__)
#include <dlfcn.h>
#endif

namespace oarlock::memory {

#if defined(__linux__)
namespace {

// The driver's ABI, as far as it is used here (CUDA 11.2 and later).
using Result = int;
using Address = unsigned long long;
using Context = void*;
using Event = void*;
using Stream = void*;
struct Location {
    int type;  // 1: a device
    int id;
};
struct AllocationProperties {
    int type;  // 1: pinned device memory
    int handle_types;
    Location location;
    void* reserved_pointer;
    unsigned char compression;
    unsigned char gpu_direct_rdma;
    unsigned short usage;
    unsigned char reserved[4];
};
struct Access {
    Location location;
    int flags;  // 3: read and write
};
constexpr Result kSuccess = 0;
constexpr Result kNotReady = 600;
constexpr unsigned kNoTiming = 2;

struct Api {
    Result (*cuInit)(unsigned);
    Result (*cuGetErrorString)(Result, const char**);
    Result (*cuDeviceGet)(int*, int);
    Result (*cuDevicePrimaryCtxRetain)(Context*, int);
    Result (*cuCtxPushCurrent)(Context);
    Result (*cuCtxPopCurrent)(Context*);
    Result (*cuMemGetAllocationGranularity)(size_t*, const AllocationProperties*, int);
    Result (*cuMemAddressReserve)(Address*, size_t, size_t, Address, unsigned long long);
    Result (*cuMemAddressFree)(Address, size_t);
    Result (*cuMemCreate)(unsigned long long*, size_t, const AllocationProperties*, unsigned long long);
    Result (*cuMemRelease)(unsigned long long);
    Result (*cuMemMap)(Address, size_t, size_t, unsigned long long, unsigned long long);
    Result (*cuMemSetAccess)(Address, size_t, const Access*, size_t);
    Result (*cuMemUnmap)(Address, size_t);
    Result (*cuEventCreate)(Event*, unsigned);
    Result (*cuEventRecord)(Event, Stream);
    Result (*cuEventQuery)(Event);
    Result (*cuEventSynchronize)(Event);
    Result (*cuEventDestroy)(Event);
    Result (*cuStreamWaitEvent)(Stream, Event, unsigned);
    Result (*cuMemcpyDtoH)(void*, Address, size_t);
    Result (*cuMemcpyHtoD)(Address, const void*, size_t);
};

bool load(Api* api, std::string* why) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        *why = std::string("the cuda driver needs NVIDIA's driver library: ") + dlerror();
        return false;
    }
    const auto find = [&](auto* function, const char* name) {
        *reinterpret_cast<void**>(function) = dlsym(library, name);
        if (*function == nullptr && why->empty()) {
            *why = std::string("libcuda.so.1 has no ") + name + ": CUDA 11.2 or later is needed";
        }
    };
    find(&api->cuInit, "cuInit");
    find(&api->cuGetErrorString, "cuGetErrorString");
    find(&api->cuDeviceGet, "cuDeviceGet");
    find(&api->cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    find(&api->cuCtxPushCurrent, "cuCtxPushCurrent_v2");
    find(&api->cuCtxPopCurrent, "cuCtxPopCurrent_v2");
    find(&api->cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity");
    find(&api->cuMemAddressReserve, "cuMemAddressReserve");
    find(&api->cuMemAddressFree, "cuMemAddressFree");
    find(&api->cuMemCreate, "cuMemCreate");
    find(&api->cuMemRelease, "cuMemRelease");
    find(&api->cuMemMap, "cuMemMap");
    find(&api->cuMemSetAccess, "cuMemSetAccess");
    find(&api->cuMemUnmap, "cuMemUnmap");
    find(&api->cuEventCreate, "cuEventCreate");
    find(&api->cuEventRecord, "cuEventRecord");
    find(&api->cuEventQuery, "cuEventQuery");
    find(&api->cuEventSynchronize, "cuEventSynchronize");
    find(&api->cuEventDestroy, "cuEventDestroy_v2");
    find(&api->cuStreamWaitEvent, "cuStreamWaitEvent");
    find(&api->cuMemcpyDtoH, "cuMemcpyDtoH_v2");
    find(&api->cuMemcpyHtoD, "cuMemcpyHtoD_v2");
    return why->empty();
}

class CudaDriver final : public Driver {
  public:
    CudaDriver(const Api& api, uint64_t page_bytes, int device, Context context)
        : api_(api), page_bytes_(page_bytes), context_(context), properties_{1, 0, {1, device}, nullptr, 0, 0, 0, {}} {
        access_.push_back({{1, device}, 3});
    }

    // 0 if the driver will not say.
    uint64_t granularity() const override {
        const Current current(*this);
        size_t bytes = 0;
        return api_.cuMemGetAllocationGranularity(&bytes, &properties_, 0) == kSuccess ? bytes : 0;
    }
    bool has_streams() const override { return true; }

    bool reserve(uint64_t bytes, uint64_t* addr) override {
        const Current current(*this);
        Address found = 0;
        const bool done = passed("cuMemAddressReserve", api_.cuMemAddressReserve(&found, bytes, page_bytes_, 0, 0));
        *addr = found;
        return done;
    }
    void unreserve(uint64_t addr, uint64_t bytes) override {
        const Current current(*this);
        api_.cuMemAddressFree(addr, bytes);
    }

    bool create(uint64_t* page) override {
        const Current current(*this);
        unsigned long long handle = 0;
        const bool done = passed("cuMemCreate", api_.cuMemCreate(&handle, page_bytes_, &properties_, 0));
        *page = handle;
        return done;
    }
    bool release(uint64_t page) override {
        const Current current(*this);
        return passed("cuMemRelease", api_.cuMemRelease(page));
    }
    bool map(uint64_t addr, uint64_t page) override {
        const Current current(*this);
        return passed("cuMemMap", api_.cuMemMap(addr, page_bytes_, 0, page, 0));
    }
    bool set_access(uint64_t addr, uint64_t bytes) override {
        const Current current(*this);
        return passed("cuMemSetAccess", api_.cuMemSetAccess(addr, bytes, access_.data(), access_.size()));
    }
    bool unmap(uint64_t addr, uint64_t bytes) override {
        const Current current(*this);
        return passed("cuMemUnmap", api_.cuMemUnmap(addr, bytes));
    }

    bool record(uint64_t stream, uint64_t* event) override {
        const Current current(*this);
        Event made = nullptr;
        if (!passed("cuEventCreate", api_.cuEventCreate(&made, kNoTiming))) {
            return false;
        }
        if (!passed("cuEventRecord", api_.cuEventRecord(made, reinterpret_cast<Stream>(stream)))) {
            api_.cuEventDestroy(made);
            return false;
        }
        *event = reinterpret_cast<uint64_t>(made);
        return true;
    }
    bool done(uint64_t event) override {
        const Current current(*this);
        const Result result = api_.cuEventQuery(reinterpret_cast<Event>(event));
        return result != kNotReady && passed("cuEventQuery", result);
    }
    bool wait(uint64_t event) override {
        const Current current(*this);
        return passed("cuEventSynchronize", api_.cuEventSynchronize(reinterpret_cast<Event>(event)));
    }
    void forget(uint64_t event) override {
        const Current current(*this);
        api_.cuEventDestroy(reinterpret_cast<Event>(event));
    }

    bool stream_wait(uint64_t stream, uint64_t event) override {
        const Current current(*this);
        return passed("cuStreamWaitEvent", api_.cuStreamWaitEvent(reinterpret_cast<Stream>(stream),
                                                                  reinterpret_cast<Event>(event), 0));
    }

    bool save(void* to, uint64_t from, uint64_t bytes) override {
        const Current current(*this);
        return passed("cuMemcpyDtoH", api_.cuMemcpyDtoH(to, from, bytes));
    }
    bool load(uint64_t to, const void* from, uint64_t bytes) override {
        const Current current(*this);
        return passed("cuMemcpyHtoD", api_.cuMemcpyHtoD(to, from, bytes));
    }

    // CUDA does not say what is mapped.
    bool holds(uint64_t, uint64_t) const override { return true; }

    bool add_peer(int32_t device) override {
        access_.push_back({{1, device}, 3});
        return true;
    }
    void remove_peer() override { access_.pop_back(); }

  private:
    // Whatever device the calling thread has current, the calls act on this one.
    class Current {
      public:
        explicit Current(const CudaDriver& driver) : driver_(driver) {
            driver_.api_.cuCtxPushCurrent(driver_.context_);
        }
        ~Current() {
            Context popped = nullptr;
            driver_.api_.cuCtxPopCurrent(&popped);
        }
        Current(const Current&) = delete;
        Current& operator=(const Current&) = delete;

      private:
        const CudaDriver& driver_;
    };

    bool passed(const char* call, Result result) {
        if (result == kSuccess) {
            return true;
        }
        const char* text = nullptr;
        api_.cuGetErrorString(result, &text);
        return fail(std::string(call) + ": " + (text != nullptr ? text : std::to_string(result)));
    }

    const Api api_;
    const uint64_t page_bytes_;
    const Context context_;
    const AllocationProperties properties_;
    std::vector<Access> access_;
};

}  // namespace

std::unique_ptr<Driver> make_cuda_driver(uint64_t page_bytes, int32_t device, std::string* why) {
    Api api{};
    if (!load(&api, why)) {
        return nullptr;
    }
    int found = 0;
    Context context = nullptr;
    Result result = api.cuInit(0);
    result = result != kSuccess ? result : api.cuDeviceGet(&found, device);
    result = result != kSuccess ? result : api.cuDevicePrimaryCtxRetain(&context, found);
    if (result != kSuccess) {
        const char* text = nullptr;
        api.cuGetErrorString(result, &text);
        *why = "no CUDA device " + std::to_string(device) + ": " + (text != nullptr ? text : std::to_string(result));
        return nullptr;
    }
    return std::make_unique<CudaDriver>(api, page_bytes, found, context);
}

#else

std::unique_ptr<Driver> make_cuda_driver(uint64_t, int32_t, std::string* why) {
    *why = "the cuda driver needs libcuda.so.1, which is looked for on Linux only";
    return nullptr;
}

#endif

}  // namespace oarlock::memory
