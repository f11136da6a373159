#include "attention/flash_workspace.h"

#include <new>

namespace oarlock {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

Workspace::~Workspace() {
    ::operator delete[](data_, kAlignment);
}

float* Workspace::get(int64_t count) {
    if (capacity_ < count) {
        ::operator delete[](data_, kAlignment);
        data_ = nullptr;
        capacity_ = 0;
        data_ = static_cast<float*>(::operator new[](static_cast<size_t>(count) * sizeof(float), kAlignment));
        capacity_ = count;
    }
    return data_;
}

Workspace& own_workspace() {
    thread_local Workspace workspace;
    return workspace;
}

Workspace& shared_workspace() {
    thread_local Workspace workspace;
    return workspace;
}

}  // namespace oarlock
