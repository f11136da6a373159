// malloc.h first: it defines __GLIBC__.
#if defined(__linux__)
#include <malloc.h>
#include <sys/mman.h>
#endif

#include <cstdint>
#include <cstdlib>

#include "oarlock.h"

#if defined(__GLIBC__)
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t reserved = std::size_t{4} << 30;

// Stretches the heap's top, untouched and so without any memory behind it, and asks for huge pages there: a matrix
// product that streams its operands from memory spends a tenth of its time on the address translation of small ones.
// Without the address space, or on a kernel without huge pages, the heap merely stays as it was.
void ask_for_huge_pages() {
    void* block = std::malloc(reserved);
    if (block == nullptr) {
        return;
    }
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(block);
    const std::uintptr_t first = (begin + huge_page - 1) / huge_page * huge_page;
    const std::uintptr_t last = (begin + reserved) / huge_page * huge_page;
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
    std::free(block);
}

}  // namespace
#endif

int32_t oarlock_keep_freed_memory(void) {
#if defined(__GLIBC__)
    static const bool applied = [] {
        // Large blocks come from the heap and not from mmap, and the heap's top is never given back: a freed block is
        // used again without a page fault per 4 KiB.
        if (mallopt(M_MMAP_MAX, 0) == 0 || mallopt(M_TRIM_THRESHOLD, -1) == 0) {
            return false;
        }
        ask_for_huge_pages();
        return true;
    }();
    return applied ? 1 : 0;
#else
    return 0;
#endif
}
