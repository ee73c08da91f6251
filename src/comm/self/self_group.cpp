#include "comm/self/self_group.h"

#include <cstring>

#include "comm/reduce.h"

namespace hawser::comm {

Group::Work SelfGroup::all_gather_work(const TensorView& send, const TensorView& recv) {
  if (send.raw() == recv.raw()) return {};
  return [send, recv] { std::memcpy(recv.raw(), send.raw(), static_cast<std::size_t>(send.bytes())); };
}

Group::Work SelfGroup::reduce_scatter_work(const TensorView& send, const TensorView& recv, bool accumulate,
                                           const TensorView&) {
  if (send.raw() == recv.raw()) return {};
  return [send, recv, accumulate] {
    const std::byte* const members[] = {send.raw()};
    reduce_members(members, send.dtype(), Reduction::sum, send.elements(), recv.raw(), recv.dtype(), accumulate);
  };
}

}  // namespace hawser::comm
