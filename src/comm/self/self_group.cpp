#include "comm/self/self_group.h"

#include <cstring>

#include "comm/counted_slots.h"
#include "comm/cuda/counted_rows_cuda.h"
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

Group::Work SelfGroup::all_to_all_v_work(const CountedRows& send, const CountedRows& recv, std::int64_t bound,
                                         const TensorView&) {
  return [send, recv, bound](const CudaNative* native) {
    if (native != nullptr) {
      const CountedSource from[] = {{send.rows.raw(), send.offsets.data<std::int32_t>()}};
      copy_counted_rows_cuda(native->stream, from, send.rows.size(0), recv, bound);
      return;
    }
    const CountedSlots from(send, bound), to(recv, bound);
    copy_counted(from, to, 0, from.slots());
  };
}

}  // namespace hawser::comm
