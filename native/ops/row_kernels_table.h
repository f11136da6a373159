// All row kernels of the instruction set that the including file is compiled for.
#pragma once

#include "ops/cross_entropy_rows.h"
#include "ops/rms_norm_rows.h"
#include "ops/rope_rows.h"
#include "ops/swiglu_rows.h"

namespace oarlock {
namespace {

constexpr RowKernels kRowKernels = {
    rms_norm_forward,  rms_norm_backward,  swiglu_forward, swiglu_backward, softmax_cross_entropy, rope,
    norm_rope_forward, norm_rope_backward,
};

}  // namespace
}  // namespace oarlock
