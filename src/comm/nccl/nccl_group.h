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
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/nccl/nccl_mesh.h"
#include "comm/nccl/peer_memory.h"
#include "comm/nccl/watchdog.h"

namespace hawser::comm {

// State that the groups of a mesh share.
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
  // Collective over the run: every rank creates a group at this point, this one or another.
  // `lender`: a group of the same ranks that outlives this one and shares its communicator; calls of both are then
  // ordered as the host makes them. Null: the group gets its own communicator.
  NcclGroup(std::shared_ptr<NcclRun> run, std::string name, std::vector<int> ranks, int index,
            const NcclGroup* lender = nullptr);
  ~NcclGroup() override;

  std::unique_ptr<Group> duplicate(const std::string& suffix) override;
  std::string register_memory(std::byte* data, std::int64_t bytes) override;
  void unregister_memory(std::byte* data) override;

  ncclComm* communicator() const { return comm_; }  // for measurements
  // True if a group of this name only ever sums a few numbers (comm/mesh.h): it needs no bandwidth and may lend.
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
  struct FreeShared {  // frees memory that other processes can map
    void operator()(std::byte* data) const;
  };
  struct Sums;  // the stream on which sums run, and its events

  void connect(const NcclGroup* lender);
  void connect_pairs();
  // Work that enqueues `enqueue(native)` on the stream, watched by the watchdog.
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
  std::unique_ptr<std::byte, FreeShared> small_;  // the signals of peers_, then a barrier's tokens, one byte a member
  std::map<std::byte*, void*> windows_;           // registered regions
  PeerMemory peers_;
  bool signals_work_ = false;
  bool borrowed_ = false;  // the communicator is the lender's
  bool pairs_ = false;     // every pair of members is connected
};

}  // namespace hawser::comm
