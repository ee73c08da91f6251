// `SelfGroup`: a group of one member. Copies where data must move, otherwise does nothing. Runs on cpu and cuda
// streams, records on meta streams.
#pragma once

#include <string>

#include "comm/group.h"

namespace hawser::comm {

class SelfGroup : public Group {
 public:
  explicit SelfGroup(std::string name) : Group(std::move(name), 1, 0) {}

 protected:
  Work all_gather_work(const TensorView& send, const TensorView& recv) override;
  Work reduce_scatter_work(const TensorView& send, const TensorView& recv, bool accumulate,
                           const TensorView& workspace) override;
  Work all_reduce_work(const TensorView&, Reduction, const TensorView&) override { return {}; }
  Work all_to_all_work(const TensorView& send, const TensorView& recv) override { return all_gather_work(send, recv); }
  Work all_to_all_v_work(const CountedRows& send, const CountedRows& recv, std::int64_t bound,
                         const TensorView& workspace) override;
  Work broadcast_work(const TensorView&, int) override { return {}; }
  Work send_work(const TensorView&, int) override { return {}; }     // no other member: rejected earlier
  Work receive_work(const TensorView&, int) override { return {}; }  // no other member: rejected earlier
  Work exchange_work(const TensorView&, int, const TensorView&, int) override { return {}; }  // the same
  Work barrier_work() override { return {}; }
};

}  // namespace hawser::comm
