#include "comm/self/self_group.h"

#include <cstring>

#include "comm/cuda/reduce_cuda.h"
#include "comm/reduce.h"
#include "device/cuda/native.h"

namespace hawser::comm {

Group::Work SelfGroup::all_gather_work(const TensorView& send, const TensorView& recv) {
  if (send.raw() == recv.raw()) return {};
  return [send, recv](const CudaNative* native) {
    if (native != nullptr) {
      cuda::copy_async(*native, recv.raw(), send.raw(), send.bytes());
    } else {
      std::memcpy(recv.raw(), send.raw(), static_cast<std::size_t>(send.bytes()));
    }
  };
}

Group::Work SelfGroup::reduce_scatter_work(const TensorView& send, const TensorView& recv, bool accumulate,
                                           const TensorView&) {
  if (send.raw() == recv.raw()) return {};
  return [send, recv, accumulate](const CudaNative* native) {
    if (native != nullptr) {
      reduce_members_cuda(native->stream, native->sm_count, {.own = send.raw(), .count = 1}, send.dtype(),
                          Reduction::sum, send.elements(), recv.raw(), recv.dtype(), accumulate);
      return;
    }
    const std::byte* const members[] = {send.raw()};
    reduce_members(members, send.dtype(), Reduction::sum, send.elements(), recv.raw(), recv.dtype(), accumulate);
  };
}

}  // namespace hawser::comm
