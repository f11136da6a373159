// The instruction set that this process uses: the widest one that the CPU has, or the one that OARLOCK_ISA names.
#pragma once

namespace oarlock {

enum class Isa { kBaseline, kAvx2, kAvx512 };

// Chosen once. The baseline where OARLOCK_ISA names a set that is unknown or that the CPU lacks (oarlock_isa() is
// null).
Isa isa() noexcept;

}  // namespace oarlock
