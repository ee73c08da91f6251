// `CopyBarrier`: asynchronous bulk copies from global to shared memory (Hopper's copy engine) and the mbarrier in
// shared memory that signals their completion. The copies use no registers and block no threads.
//
// Usage: one thread calls make() on the barrier and fence_made(), then __syncthreads(). For each use, one thread calls
// expect() with the number of bytes and starts the copies; all threads call wait() with the phase: 0 at the first use,
// 1 at the second, 0 again. Addresses and sizes are multiples of 16. Memory that threads have read may be overwritten
// by a copy only after a barrier of the block; memory that they have written, only if each has called fence_written()
// before that barrier.
//
// Needs compute capability 9.0. Kernels that use it compile for earlier GPUs, too, but trap there.
#pragma once

#include <cstdint>

#if __CUDA_ARCH__ >= 900
#define HAWSER_HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#else
#define HAWSER_HOPPER_ASM(...) __trap()
#endif

namespace hawser::ops::cuda {

struct CopyBarrier {
  std::uint64_t state;

  __device__ __forceinline__ unsigned address() const {
    return static_cast<unsigned>(__cvta_generic_to_shared(&state));
  }
  __device__ __forceinline__ void make() {
    HAWSER_HOPPER_ASM("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address()));
  }
  static __device__ __forceinline__ void fence_made() {
    HAWSER_HOPPER_ASM("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
  }
  static __device__ __forceinline__ void fence_written() {
    HAWSER_HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __device__ __forceinline__ void expect(unsigned bytes) {
    HAWSER_HOPPER_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  __device__ __forceinline__ void copy(void* to, const void* from, unsigned bytes) {
    HAWSER_HOPPER_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                          static_cast<unsigned>(__cvta_generic_to_shared(to))),
                      "l"(from), "r"(bytes), "r"(address())
                      : "memory");
  }
  __device__ __forceinline__ void wait(unsigned phase) {
    HAWSER_HOPPER_ASM(
        "{\n\t.reg .pred done;\n"
        "again:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@!done bra again;\n\t}" ::"r"(address()),
        "r"(phase)
        : "memory");
  }
};

}  // namespace hawser::ops::cuda

#undef HAWSER_HOPPER_ASM
