#include "ops/cpu/levels.h"

#include <atomic>

#include "base/error.h"

namespace hawser::ops {

namespace {

VectorLevel detect() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return VectorLevel::avx512;
  if (__builtin_cpu_supports("x86-64-v3")) return VectorLevel::avx2;
  return VectorLevel::baseline;
}

std::atomic<VectorLevel>& chosen() {
  static std::atomic<VectorLevel> level = detect();
  return level;
}

}  // namespace

VectorLevel best_vector_level() {
  static const VectorLevel level = detect();
  return level;
}

VectorLevel vector_level() {
  return chosen().load(std::memory_order_relaxed);
}

void set_vector_level(VectorLevel level) {
  HAWSER_CHECK(level <= best_vector_level(), "the CPU does not support this vector level");
  chosen() = level;
}

}  // namespace hawser::ops
