// CMake compiles this file for AVX-512 (F, BW, DQ, VL) on x86-64.
#if defined(__AVX512F__)
#include "ops/row_kernels_table.h"

const oarlock::RowKernels* oarlock::row_kernels_avx512() noexcept {
    return &kRowKernels;
}
#else
#include "ops/row_kernels.h"

const oarlock::RowKernels* oarlock::row_kernels_avx512() noexcept {
    return nullptr;
}
#endif
