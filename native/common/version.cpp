#include "oarlock.h"

int32_t oarlock_abi(void) {
    return OARLOCK_ABI;
}

const char* oarlock_version(void) {
    return OARLOCK_VERSION;
}
