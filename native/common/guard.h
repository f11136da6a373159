// Keeps C++ exceptions inside the library: a C caller must only ever see a status.
#pragma once

#include <new>

#include "oarlock.h"

namespace oarlock {

template <typename Body>
oarlock_status guarded(Body&& body) noexcept {
    try {
        body();
        return OARLOCK_OK;
    } catch (const std::bad_alloc&) {
        return OARLOCK_OUT_OF_MEMORY;
    }
}

}  // namespace oarlock
