// The fused attention for the instruction set that the including file is compiled for.
#pragma once

#include "attention/flash_backward.h"
#include "attention/flash_forward.h"

namespace oarlock {
namespace {

constexpr FlashKernels kFlashKernels = {
    kTileRows, kLanes, row_stride, forward_workspace, forward, backward_workspace, backward, add_parts,
};

}  // namespace
}  // namespace oarlock
