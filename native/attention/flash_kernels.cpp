#include "attention/flash.h"
#include "common/isa.h"

namespace oarlock {
namespace {

const FlashKernels& choose() noexcept {
    const FlashKernels* chosen = nullptr;
    switch (isa()) {
        case Isa::kAvx512:
            chosen = flash_kernels_avx512();
            break;
        case Isa::kAvx2:
            chosen = flash_kernels_avx2();
            break;
        case Isa::kBaseline:
            break;
    }
    return chosen != nullptr ? *chosen : *flash_kernels_baseline();
}

}  // namespace

const FlashKernels& flash_kernels() noexcept {
    static const FlashKernels& chosen = choose();
    return chosen;
}

}  // namespace oarlock
