#include "ops/row_kernels.h"

#include "common/isa.h"

namespace oarlock {
namespace {

const RowKernels& choose() noexcept {
    const RowKernels* chosen = nullptr;
    switch (isa()) {
        case Isa::kAvx512:
            chosen = row_kernels_avx512();
            break;
        case Isa::kAvx2:
            chosen = row_kernels_avx2();
            break;
        case Isa::kBaseline:
            break;
    }
    return chosen != nullptr ? *chosen : *row_kernels_baseline();
}

}  // namespace

const RowKernels& row_kernels() noexcept {
    static const RowKernels& chosen = choose();
    return chosen;
}

}  // namespace oarlock
