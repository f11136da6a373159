// CMake compiles this file for AVX-512 (F, BW, DQ, VL) on x86-64.
#if defined(__AVX512F__)
#include "attention/flash_kernels_table.h"

const oarlock::FlashKernels* oarlock::flash_kernels_avx512() noexcept {
    return &kFlashKernels;
}
#else
#include "attention/flash.h"

const oarlock::FlashKernels* oarlock::flash_kernels_avx512() noexcept {
    return nullptr;
}
#endif
