// CMake compiles this file for AVX2 and FMA on x86-64.
#if defined(__AVX2__) && defined(__FMA__)
#include "attention/flash_kernels_table.h"

const oarlock::FlashKernels* oarlock::flash_kernels_avx2() noexcept {
    return &kFlashKernels;
}
#else
#include "attention/flash.h"

const oarlock::FlashKernels* oarlock::flash_kernels_avx2() noexcept {
    return nullptr;
}
#endif
