// All row kernels of the instruction set that the including file is compiled for.
#pragma once

#include "ops/rms_norm_rows.h"
#include "ops/swiglu_rows.h"

namespace oarlock {
namespace {

constexpr RowKernels kRowKernels = {
    rms_norm_forward,
    rms_norm_backward,
    swiglu_forward,
    swiglu_backward,
};

}  // namespace
}  // namespace oarlock
