// `CopyBarrier`: asynchronous bulk copies from global to shared memory (Hopper's copy engine) and the mbarrier in
// shared memory that signals their completion. The copies use no registers and block no threads.
//
// Usage: one thread calls make() on the barrier and fence_made(), then __syncthreads(). For each use, one thread calls
// expect() with the number of bytes and starts the copies; all threads call wait() with the phase: 0 at the first use,
// 1 at the second, 0 again. Addresses and sizes are multiples of 16. Memory that threads have read may be overwritten
// by a copy only after a barrier of the block; memory that they have written, only if each has called fence_written()
// before that barrier.
#pragma once

#include <cstdint>

namespace hawser::ops::cuda {

struct CopyBarrier {
  std::uint64_t state;

  __device__ __forceinline__ unsigned address() const {
    return static_cast<unsigned>(__cvta_generic_to_shared(&state));
  }
  __device__ __forceinline__ void make() { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address())); }
  static __device__ __forceinline__ void fence_made() {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
  }
  static __device__ __forceinline__ void fence_written() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __device__ __forceinline__ void expect(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  __device__ __forceinline__ void copy(void* to, const void* from, unsigned bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(to))),
                 "l"(from), "r"(bytes), "r"(address())
                 : "memory");
  }
  __device__ __forceinline__ void wait(unsigned phase) {
    asm volatile(
        "{\n\t.reg .pred done;\n"
        "again:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@!done bra again;\n\t}" ::"r"(address()),
        "r"(phase)
        : "memory");
  }
};

}  // namespace hawser::ops::cuda
