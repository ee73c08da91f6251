// A group: some ranks that talk to each other, and what they can say.
//
// Collectives are enqueued on a stream and return at once; views may be read or overwritten when the stream has reached
// that point. Every member enqueues the same collectives of one group in the same order (program/'s checker proves it).
// Two groups never wait for each other: traffic that must not queue behind other traffic gets a duplicate().
//
//   mesh.shard_gather().all_gather(gather_stream, piece, whole);            // piece [n], whole [size * n]
//   mesh.shard_reduce().reduce_scatter(reduce_stream, gradient, shard, /*accumulate=*/true, workspace);
//
// Views are dense, on the stream's device, and taken as flat runs of elements, whatever their shape; n may be 0. Sums
// add the members in the order of their indices, in float32, and are rounded once, so that a result depends on nothing
// but the inputs; every member gets the same bits. No call allocates memory that grows with n: scratch is the caller's
// `workspace`, any dense view of at least the bytes that the *_workspace function says; it is free again when the
// stream gets there.
//
// OpRecord: each call records one piece of work with its accesses and a CollectiveNote. A group of one member moves
// nothing between ranks: it records a plain copy where one is needed, and nothing where data already lies right.
//
// Errors: a broken promise about views throws InternalError at once. A member that does not come within the group's
// time limit, or a broken link, ends every rank (comm/mpi/world.h); it is not reported through the stream.
// A stream that has failed drops its collectives like all else, and the other members wait: its owner ends the run.
// A group outlives the work enqueued on it, and is used from one host thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace hawser::comm {

enum class Reduction { sum, max };
const char* to_string(Reduction reduction);

// Bytes of workspace, upper bounds that hold for every implementation on `device` (of a stream: its target()). `n` as
// in the call: elements of recv for reduce_scatter, of data for all_reduce. Bounded, however large n is: at most 2 *
// (size - 1) * kReduceChunkBytes on the CPU, kCudaReduceBytes on a GPU, where a sum waits for
// the end of whatever GEMM is under way, and a transfer should not wait for the sum.
constexpr std::int64_t kReduceChunkBytes = std::int64_t{1} << 20;
constexpr std::int64_t kCudaReduceBytes = std::int64_t{384} << 20;
constexpr std::int64_t kGatherReduceBytes = std::int64_t{64} << 10;  // all_reduce: up to here everybody sums everything
std::int64_t reduce_scatter_workspace(std::int64_t n, DType reduce_dtype, int size, DeviceKind device);
std::int64_t all_reduce_workspace(std::int64_t n, DType dtype, int size, DeviceKind device);

class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int size() const { return size_; }
  int index() const { return index_; }  // this member, in [0, size)
  // The same on every member and different for every group of a run: "shard:0-3/gather".
  const std::string& name() const { return name_; }

  // recv[i * n + k] = member i's send[k]. send [n], recv [size * n], one dtype (any). send may be the part of recv that
  // it fills (recv at index * n); else they do not overlap.
  void all_gather(Stream& stream, const TensorView& send, const TensorView& recv);

  // recv[k] (+)= sum over members i, in order, of member i's send[index * n + k]. send [size * n] float32 or bf16 (the
  // wire); recv [n] float32 or the wire's dtype. accumulate adds the finished sum to what recv holds. Without
  // accumulate, recv may be the part of send at index * n (same dtype); else nothing overlaps. send is left as it is.
  void reduce_scatter(Stream& stream, const TensorView& send, const TensorView& recv, bool accumulate,
                      const TensorView& workspace);

  // data[k] = sum (or largest) over members of data[k], in place. float32 or bf16. max of a NaN is a NaN.
  void all_reduce(Stream& stream, const TensorView& data, Reduction reduction, const TensorView& workspace);

  // recv[i * n + k] = member i's send[index * n + k]. Both [size * n], one dtype (any), no overlap.
  void all_to_all(Stream& stream, const TensorView& send, const TensorView& recv);

  // data becomes member root's data on every member. Any dtype.
  void broadcast(Stream& stream, const TensorView& data, int root);

  // The k-th send to a peer meets the peer's k-th receive from here; sizes are equal. A send may wait for its receive,
  // and on a GPU for what the host enqueued on the group before, on any stream: in a ring, neighbours take turns.
  // peer is another member's index. Any dtype.
  void send(Stream& stream, const TensorView& data, int peer);
  void receive(Stream& stream, const TensorView& data, int peer);

  // The stream goes on when every member's stream has got here.
  void barrier(Stream& stream);

  // A group of the same members that does not wait for this one; its name is name() + "/" + suffix. Every rank of the
  // run calls it, in the same order among its other calls that make groups.
  virtual std::unique_ptr<Group> duplicate(const std::string& suffix) = 0;

  // See Mesh::register_memory; what came of it on this group, empty where it makes no difference.
  virtual std::string register_memory(std::byte*, std::int64_t) { return {}; }
  virtual void unregister_memory(std::byte*) {}

 protected:
  Group(std::string name, int size, int index);

  // Each returns what the stream's worker does when it gets there (cuda: at once, with what it enqueues on; elsewhere
  // null); called on the host in the order of the calls above, with checked arguments and n > 0. Empty: there is
  // nothing to do and nothing is recorded.
  using Work = std::function<void(const CudaNative* native)>;
  virtual Work all_gather_work(const TensorView& send, const TensorView& recv) = 0;
  virtual Work reduce_scatter_work(const TensorView& send, const TensorView& recv, bool accumulate,
                                   const TensorView& workspace) = 0;
  virtual Work all_reduce_work(const TensorView& data, Reduction reduction, const TensorView& workspace) = 0;
  virtual Work all_to_all_work(const TensorView& send, const TensorView& recv) = 0;
  virtual Work broadcast_work(const TensorView& data, int root) = 0;
  virtual Work send_work(const TensorView& data, int peer) = 0;
  virtual Work receive_work(const TensorView& data, int peer) = 0;
  virtual Work barrier_work() = 0;

 private:
  void launch(Stream& stream, CollectiveKind kind, std::int64_t bytes, int peer, std::vector<Access> accesses,
              Work work);

  std::string name_;
  int size_, index_;
};

}  // namespace hawser::comm
