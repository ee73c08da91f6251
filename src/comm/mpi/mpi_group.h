// `MpiGroup`: a group over MPI. Every collective is point-to-point messages; the stream's worker computes the
// reductions.
//
// The host numbers operations as it enqueues them, and the number is part of the message tag, so messages of one
// operation match whatever the streams' timing. all_gather, all_to_all and broadcast send each part directly to its
// destination. Reductions send each part to its owner, which adds in member order; large ones in chunks, so that
// scratch is bounded and one chunk is summed while the next arrives.
#pragma once

#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/mpi/service.h"

namespace hawser::comm {

class MpiGroup : public Group {
 public:
  // `id`: Service::new_group(), of which every rank of the run makes the same calls, those outside the group too: it is
  // part of the message tags. `ranks` by member index. `service` outlives the group.
  MpiGroup(Service& service, int id, std::string name, std::vector<int> ranks, int index, double timeout_s);

 protected:
  Work all_gather_work(const TensorView& send, const TensorView& recv) override;
  Work reduce_scatter_work(const TensorView& send, const TensorView& recv, bool accumulate,
                           const TensorView& workspace) override;
  Work all_reduce_work(const TensorView& data, Reduction reduction, const TensorView& workspace) override;
  Work all_to_all_work(const TensorView& send, const TensorView& recv) override;
  Work all_to_all_v_work(const CountedRows& send, const CountedRows& recv, std::int64_t bound,
                         const TensorView& workspace) override;
  Work broadcast_work(const TensorView& data, int root) override;
  Work send_work(const TensorView& data, int peer) override;
  Work receive_work(const TensorView& data, int peer) override;
  Work exchange_work(const TensorView& send, int to, const TensorView& recv, int from) override;
  Work barrier_work() override;

 private:
  class Call;    // an operation that runs on a worker
  struct Parts;  // how a flat buffer is split over the members

  // An operation as enqueued by the host: its name for a failure message, and its tag.
  struct Ticket {
    Operation operation;
    int tag = 0;
  };
  Ticket ticket(CollectiveKind kind, std::int64_t bytes);
  Ticket pair_ticket(CollectiveKind kind, std::int64_t bytes, int peer);
  int pair_tag(std::vector<std::uint64_t>& counts, int peer);

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
