// A group over MPI: every collective as direct messages between members, reductions summed on the stream's worker.
//
// Operations are numbered on the host as they are enqueued, and the number is in the tag: what belongs together meets
// whatever the streams' timing. all_gather, all_to_all and broadcast send each part straight to its place; reductions
// send each part to its owner (large ones in chunks, so that scratch is bounded and the sum of one chunk runs while the
// next arrives), who adds in member order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/mpi/service.h"

namespace hawser::comm {

class MpiGroup : public Group {
 public:
  // `ranks` by member index. Every rank of the run makes its groups in the same order (the number of a group is in the
  // tags of its messages); `service` outlives the group.
  MpiGroup(Service& service, std::string name, std::vector<int> ranks, int index, double timeout_s);

  std::unique_ptr<Group> duplicate(const std::string& suffix) override;

 protected:
  Work all_gather_work(const TensorView& send, const TensorView& recv) override;
  Work reduce_scatter_work(const TensorView& send, const TensorView& recv, bool accumulate,
                           const TensorView& workspace) override;
  Work all_reduce_work(const TensorView& data, Reduction reduction, const TensorView& workspace) override;
  Work all_to_all_work(const TensorView& send, const TensorView& recv) override;
  Work broadcast_work(const TensorView& data, int root) override;
  Work send_work(const TensorView& data, int peer) override;
  Work receive_work(const TensorView& data, int peer) override;
  Work barrier_work() override;

 private:
  class Call;    // an operation under way on a worker
  struct Parts;  // a flat buffer's cut over the members

  // An operation as the host enqueued it: its name for a failure line, and its tag.
  struct Ticket {
    Operation operation;
    int tag = 0;
  };
  Ticket ticket(CollectiveKind kind, std::int64_t bytes);
  Ticket pair_ticket(CollectiveKind kind, std::int64_t bytes, int peer);

  static void gather_parts(Call& call, std::byte* data, const Parts& parts);
  static void reduce_parts(Call& call, std::byte* send, const Parts& parts, Reduction reduction, std::byte* recv,
                           DType recv_dtype, bool accumulate, std::byte* workspace);
  static void reduce_full(Call& call, const TensorView& data, Reduction reduction, std::byte* workspace);

  Service& service_;
  std::vector<int> ranks_;
  double timeout_s_;
  int id_;
  std::uint64_t collectives_ = 0;               // enqueued so far
  std::vector<std::uint64_t> sent_, received_;  // to and from each member
};

}  // namespace hawser::comm
