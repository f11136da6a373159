#include "attention/flash_kernels_table.h"

const oarlock::FlashKernels* oarlock::flash_kernels_baseline() noexcept {
    return &kFlashKernels;
}
