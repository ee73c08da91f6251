// A group over NCCL: one communicator a group, sums by a kernel of ours.
//
// NCCL moves bytes; it never adds. A reduction brings each part to its owner, chunk by chunk into the workspace, and
// the owner adds the members in order (comm/cuda/reduce_cuda.h) on a stream of its own, so that one chunk is summed
// while the next arrives: the bits are the CPU's, where NCCL's own order depends on its choice of algorithm and a ring
// rounds at every hop. Out of registered memory the owner fetches the parts by its copy engines (peer_memory.h); else
// their holders send them, and a GEMM beside them lacks the SMs that send.
//
// Communicators block the host: a non-blocking one starts a thread a call. That nothing waits for ever is the
// watchdog's part, which also sees to the time the host spends in NCCL (members connect at their first need).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/nccl/nccl_mesh.h"
#include "comm/nccl/peer_memory.h"
#include "comm/nccl/watchdog.h"

namespace hawser::comm {

// What the groups of a mesh share.
struct NcclRun {
  NcclRun(World& run, Device& gpu, int gpu_ordinal, double timeout_s, const NcclOptions& how);

  World& world;
  Device& device;
  int ordinal;
  NcclOptions options;
  Watchdog watchdog;
};

class NcclGroup : public Group {
 public:
  // Collective over the run: every rank makes a group, or, in the same place, another one of its own.
  // `lender`: a group of the same ranks that outlives this one and lends it its communicator, whose calls then follow
  // one another in the order in which the host makes them; null: it gets its own.
  NcclGroup(std::shared_ptr<NcclRun> run, std::string name, std::vector<int> ranks, int index,
            const NcclGroup* lender = nullptr);
  ~NcclGroup() override;

  std::unique_ptr<Group> duplicate(const std::string& suffix) override;
  std::string register_memory(std::byte* data, std::int64_t bytes) override;
  void unregister_memory(std::byte* data) override;

  ncclComm* communicator() const { return comm_; }  // for measurements
  // Whether a group of this name only ever sums a few numbers (comm/mesh.h): it needs no bandwidth, and may lend.
  static bool sums_numbers(const std::string& name);

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
  struct Parts;
  struct FreeShared {  // memory that other processes can map
    void operator()(std::byte* data) const;
  };
  struct Sums;  // the stream of the sums, and its events

  void connect(const NcclGroup* lender);
  void connect_pairs();
  // A work that puts `enqueue(native)` on the stream under watch.
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
  bool fetches(void* window, std::byte* data, std::int64_t bytes);
  std::byte* token(int member) const;
  void expect(int result, const char* what) const;  // an ncclResult_t

  std::shared_ptr<NcclRun> run_;
  std::vector<int> ranks_;
  std::shared_ptr<Watchdog::Line> line_;
  ncclComm* comm_ = nullptr;
  std::unique_ptr<Sums> sums_;
  std::unique_ptr<std::byte, FreeShared>
      small_;                            // the signals of peers_; behind them what a barrier sends, a byte a member
  std::map<std::byte*, void*> windows_;  // registered regions
  PeerMemory peers_;
  bool signals_work_ = false;
  bool borrowed_ = false;  // the communicator is a lender's
  bool pairs_ = false;     // members are connected one with another
};

}  // namespace hawser::comm
