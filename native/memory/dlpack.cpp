// An allocation as a DLPack tensor: whoever takes it frees it through the deleter, on any thread and at any time.
#include <new>

#include "oarlock.h"

namespace {

// DLPack's ABI, version 0 (DLManagedTensor).
struct DlTensor {
    void* data;
    int32_t device_type;  // 1: CPU
    int32_t device_id;
    int32_t ndim;
    uint8_t type_code;  // 1: unsigned integer
    uint8_t type_bits;
    uint16_t type_lanes;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};

struct DlManagedTensor {
    DlTensor tensor;
    void* context;
    void (*deleter)(DlManagedTensor*);
};

struct Owner {
    DlManagedTensor managed;
    oarlock_pool* pool;
    int64_t num_bytes;
    int64_t stride;
};

void release(DlManagedTensor* managed) {
    Owner* owner = static_cast<Owner*>(managed->context);
    oarlock_pool_free(owner->pool, reinterpret_cast<uint64_t>(managed->tensor.data), 0);
    delete owner;
}

}  // namespace

oarlock_status oarlock_pool_dlpack(oarlock_pool* pool, uint64_t addr, uint64_t num_bytes, void** managed) {
    Owner* owner = new (std::nothrow) Owner{};
    if (owner == nullptr) {
        return OARLOCK_OUT_OF_MEMORY;
    }
    owner->pool = pool;
    owner->num_bytes = static_cast<int64_t>(num_bytes);
    owner->stride = 1;
    owner->managed = {
        {reinterpret_cast<void*>(addr), 1, 0, 1, 1, 8, 1, &owner->num_bytes, &owner->stride, 0}, owner, &release};
    *managed = &owner->managed;
    return OARLOCK_OK;
}
