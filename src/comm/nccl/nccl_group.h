// `NcclGroup`: a group over NCCL, with one communicator per group and sums by our own kernel.
//
// NCCL moves bytes and never adds. A reduction brings each part to its owner, chunk by chunk into the workspace. The
// owner adds the members in order (comm/cuda/reduce_cuda.h) on a separate stream, so that one chunk is summed while the
// next arrives. The bits equal the CPU's; NCCL's own order depends on its choice of algorithm, and a ring rounds at
// every hop. From registered memory the owner fetches the parts by its copy engines (peer_memory.h); otherwise their
// holders send them, and a concurrent GEMM lacks the SMs that send.
//
// Communicators block the host: a non-blocking one starts a thread per call. The watchdog enforces the time limit, also
// for the time that the host spends inside NCCL (members connect at their first use).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/mesh_builder.h"
#include "comm/nccl/nccl_mesh.h"
#include "comm/nccl/peer_memory.h"
#include "comm/nccl/watchdog.h"

namespace hawser::comm {

// State that the groups of a mesh share, with a communicator of all ranks, of which those of the groups are split.
class NcclRun {
 public:
  // Collective over the run.
  NcclRun(World& run, Device& gpu, int gpu_ordinal, double timeout_s, const NcclOptions& how);
  ~NcclRun();
  NcclRun(const NcclRun&) = delete;
  NcclRun& operator=(const NcclRun&) = delete;

  ncclComm* all() const { return all_; }  // sums small data
  // A communicator of this rank's group; null if it has no place. Collective over the run.
  // A new communicator of this rank's group of a partition; null if it has none. Collective over the run.
  ncclComm* split(const GroupPartition& partition, const std::optional<GroupPartition::Place>& place);

  World& world;
  Device& device;
  int ordinal;
  NcclOptions options;
  Watchdog watchdog;

 private:
  std::shared_ptr<Watchdog::Line> line_;
  ncclComm* all_ = nullptr;
};

class NcclGroup : public Group {
 public:
  // Collective over the members. `comm`: of the members in this order. `owns`: the group destroys it; otherwise it
  // outlives the group, and calls of all groups that share it are ordered as the host makes them.
  NcclGroup(std::shared_ptr<NcclRun> run, std::string name, std::vector<int> ranks, int index, ncclComm* comm,
            bool owns);
  ~NcclGroup() override;

  std::string register_memory(std::byte* data, std::int64_t bytes) override;
  void unregister_memory(std::byte* data) override;
  void forget_memory() override;

  ncclComm* communicator() const { return comm_; }  // for measurements
  // True if a group of this name only ever sums a few numbers (comm/mesh.h): it needs no bandwidth and may lend.
  static bool sums_numbers(const std::string& name);
  // Its members are in different pipeline stages.
  static bool spans_stages(const std::string& name);

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
  struct Parts;
  struct FreeShared {  // frees memory that other processes can map
    void operator()(std::byte* data) const;
  };
  struct Sums;  // the stream on which sums run, and its events

  void connect();
  void connect_pairs();
  std::vector<std::uint64_t> all_gather_words(std::uint64_t mine) const;
  bool any_member(bool mine) const;
  // Work that enqueues `enqueue(native)` on the stream, watched by the watchdog.
  // all_to_all_v from registered memory, and without it.
  void fetch_counted_rows(const CudaNative& native, const PeerRegion& rows, const PeerRegion& offsets,
                          const CountedRows& send, const CountedRows& recv, std::int64_t bound);
  void send_counted_rows(const CudaNative& native, const CountedRows& send, const CountedRows& recv, std::int64_t bound,
                         const TensorView& workspace);
  template <class Enqueue>
  Work watched(CollectiveKind kind, std::int64_t bytes, Enqueue enqueue);
  template <class Do>
  void grouped(const Do& calls);
  template <class Do>
  void each_peer(const Do& act) const;
  void reduce_parts(const CudaNative& native, const std::byte* send, const Parts& parts, Reduction reduction,
                    std::byte* recv, DType recv_dtype, bool accumulate, std::byte* workspace);
  void reduce_full(const CudaNative& native, const TensorView& data, Reduction reduction, std::byte* workspace);
  void gather_parts(const CudaNative& native, std::byte* data, const Parts& parts);
  template <class Mine, class Theirs>
  void bring(cudaStream_t stream, const PeerRegion* region, const Mine& mine, const Theirs& theirs);
  std::string map_peers(void* window, std::byte* data, std::int64_t bytes);
  std::byte* token(int member) const;
  void expect(int result, const char* what) const;  // an ncclResult_t

  std::shared_ptr<NcclRun> run_;
  std::vector<int> ranks_;
  std::shared_ptr<Watchdog::Line> line_;
  ncclComm* comm_;
  bool owns_;
  std::unique_ptr<Sums> sums_;
  std::unique_ptr<std::byte, FreeShared> small_;  // the signals of peers_, then a barrier's tokens, one word a member
  std::map<std::byte*, void*> windows_;           // registered regions
  PeerMemory peers_;
  std::string no_signals_;  // why members cannot meet
  bool pairs_ = false;      // every pair of members is connected
};

}  // namespace hawser::comm
