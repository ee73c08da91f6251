#include "ops/cpu/bf16_units.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "ops/cpu/levels.h"

namespace hawser::ops {

namespace {

// Linux enables the AMX tile registers of a process on request.
bool amx_permitted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Bf16Units detect_units() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512bf16")) return Bf16Units::none;
  if (__builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && amx_permitted()) {
    return Bf16Units::amx;
  }
  return Bf16Units::avx512_bf16;
}

Bf16Units units_of_cpu() {
  static const Bf16Units units = detect_units();
  return units;
}

std::atomic<Bf16Units>& chosen_units() {
  static std::atomic<Bf16Units> units = units_of_cpu();
  return units;
}

}  // namespace

Bf16Units best_bf16_units() {
  return vector_level() == VectorLevel::avx512 ? units_of_cpu() : Bf16Units::none;
}

Bf16Units bf16_units() {
  return std::min(chosen_units().load(std::memory_order_relaxed), best_bf16_units());
}

void set_bf16_units(Bf16Units units) {
  HAWSER_CHECK(units <= units_of_cpu(), "the CPU does not support these bf16 units");
  chosen_units() = units;
}

}  // namespace hawser::ops
