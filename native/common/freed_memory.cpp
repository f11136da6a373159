// malloc.h first: it defines __GLIBC__.
#if defined(__linux__)
#include <malloc.h>
#endif

#include "oarlock.h"

int32_t oarlock_keep_freed_memory(void) {
#if defined(__GLIBC__)
    // Large blocks come from the heap and not from mmap, and the heap's top is never given back: a freed block is used
    // again without a page fault per 4 KiB.
    return mallopt(M_MMAP_MAX, 0) != 0 && mallopt(M_TRIM_THRESHOLD, -1) != 0;
#else
    return 0;
#endif
}
