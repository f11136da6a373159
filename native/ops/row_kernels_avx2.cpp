// CMake compiles this file for AVX2 and FMA on x86-64.
#if defined(__AVX2__) && defined(__FMA__)
#include "ops/row_kernels_table.h"

const oarlock::RowKernels* oarlock::row_kernels_avx2() noexcept {
    return &kRowKernels;
}
#else
#include "ops/row_kernels.h"

const oarlock::RowKernels* oarlock::row_kernels_avx2() noexcept {
    return nullptr;
}
#endif
