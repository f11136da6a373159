#include "common/isa.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "oarlock.h"

namespace oarlock {
namespace {

bool is_supported(Isa isa) noexcept {
#if defined(__x86_64__)
    switch (isa) {
        case Isa::kBaseline:
            return true;
        case Isa::kAvx2:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        case Isa::kAvx512:
            return is_supported(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl");
    }
    return false;
#else
    return isa == Isa::kBaseline;
#endif
}

const char* name_of(Isa isa) noexcept {
    switch (isa) {
        case Isa::kBaseline:
            return "baseline";
        case Isa::kAvx2:
            return "avx2";
        case Isa::kAvx512:
            return "avx512";
    }
    return nullptr;
}

struct Choice {
    Isa isa;
    bool is_valid;
};

Choice choose() noexcept {
    const char* forced = std::getenv("OARLOCK_ISA");
    for (const Isa candidate : {Isa::kAvx512, Isa::kAvx2, Isa::kBaseline}) {
        const bool is_named = forced == nullptr || *forced == '\0' || std::strcmp(forced, name_of(candidate)) == 0;
        if (is_named && is_supported(candidate)) {
            return {candidate, true};
        }
    }
    return {Isa::kBaseline, false};
}

const Choice& choice() noexcept {
    static const Choice chosen = choose();
    return chosen;
}

}  // namespace

Isa isa() noexcept {
    return choice().isa;
}

}  // namespace oarlock

const char* oarlock_isa(void) {
    return oarlock::choice().is_valid ? oarlock::name_of(oarlock::choice().isa) : nullptr;
}
