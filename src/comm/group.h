// `Group`: a communicator over some ranks, with the collectives that run on it.
//
// Collectives are enqueued on a stream and return at once; a view may be read or overwritten when the stream has
// reached that point. Every member enqueues the same collectives of a group in the same order (program/checker.h checks
// it). Groups never wait for each other: traffic that must not queue after other traffic gets a duplicate().
//
//   mesh.shard_gather().all_gather(gather_stream, shard, full);             // shard [n], full [size * n]
//   mesh.shard_reduce().reduce_scatter(reduce_stream, gradient, shard, /*accumulate=*/true, workspace);
//
// Views are dense, on the stream's device, and used as flat ranges of elements, whatever their shape; n may be 0. Sums
// add the members in the order of their indices, in float32, and round once. The result depends only on the inputs, and
// every member gets the same bits. No call allocates memory that grows with n: scratch is the caller's `workspace`, any
// dense view of at least the bytes that the *_workspace function returns. It is free again when the stream has reached
// that point.
//
// OpRecord: each call records one op with its accesses and a CollectiveNote. A group of one member moves nothing
// between ranks: it records a plain copy where one is needed, and nothing where the data is already in place.
//
// Errors: a view that breaks the contract throws InternalError at once. A member that does not arrive within the
// group's time limit, or a broken link, ends every rank (comm/mpi/world.h); it is not reported through the stream.
// A failed stream drops its collectives like all other work, and the other members wait: the stream's owner must end
// the run. A group must outlive the work enqueued on it, and is used from one host thread at a time.
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

// Bytes of workspace: upper bounds for every implementation on `device` (of a stream: its target()). `n` is the number
// of elements of recv for reduce_scatter, of data for all_reduce. Bounded for any n: at most
//   2 * (size - 1) * kReduceChunkBytes   on the CPU
//   kCudaReduceBytes                     on a GPU
// The GPU's is large because a sum may wait for a running GEMM to end, and transfers should not wait for the sum.
constexpr std::int64_t kReduceChunkBytes = std::int64_t{1} << 20;
constexpr std::int64_t kCudaReduceBytes = std::int64_t{384} << 20;
constexpr std::int64_t kGatherReduceBytes = std::int64_t{64} << 10;  // all_reduce: up to this size all sum all
std::int64_t reduce_scatter_workspace(std::int64_t n, DType reduce_dtype, int size, DeviceKind device);
std::int64_t all_reduce_workspace(std::int64_t n, DType dtype, int size, DeviceKind device);

class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int size() const { return size_; }
  int index() const { return index_; }  // this member, in [0, size)
  // Equal on every member, and different for every group of a run: "shard:0-3/gather".
  const std::string& name() const { return name_; }

  //   recv[i * n + k] = member i's send[k]
  // send [n], recv [size * n], one dtype (any). send may be its own part of recv (recv at index * n); otherwise they do
  // not overlap.
  void all_gather(Stream& stream, const TensorView& send, const TensorView& recv);

  //   recv[k] (+)= sum over members i, in order, of member i's send[index * n + k]
  // send [size * n] is float32 or bf16 (the reduce_dtype); recv [n] is float32 or of send's dtype. accumulate adds the
  // finished sum to recv. Without accumulate, recv may be the part of send at index * n (same dtype); otherwise nothing
  // overlaps. send is not changed.
  void reduce_scatter(Stream& stream, const TensorView& send, const TensorView& recv, bool accumulate,
                      const TensorView& workspace);

  //   data[k] = sum (or max) over members of data[k]
  // In place. float32 or bf16. max of a NaN is a NaN.
  void all_reduce(Stream& stream, const TensorView& data, Reduction reduction, const TensorView& workspace);

  //   recv[i * n + k] = member i's send[index * n + k]
  // Both [size * n], one dtype (any), no overlap.
  void all_to_all(Stream& stream, const TensorView& send, const TensorView& recv);

  // data becomes member root's data on every member. Any dtype.
  void broadcast(Stream& stream, const TensorView& data, int root);

  // The k-th send to a peer matches the peer's k-th receive from this member; sizes are equal. A send may block until
  // its receive, and on a GPU until earlier work of the group on any stream is done: in a ring, neighbours must
  // alternate. peer is another member's index. Any dtype.
  void send(Stream& stream, const TensorView& data, int peer);
  void receive(Stream& stream, const TensorView& data, int peer);

  // The stream continues when every member's stream has reached the barrier.
  void barrier(Stream& stream);

  // A group of the same members that does not wait for this one; its name is name() + "/" + suffix. Every rank of the
  // run calls it, in the same order relative to its other calls that create groups.
  virtual std::unique_ptr<Group> duplicate(const std::string& suffix) = 0;

  // See Mesh::register_memory. Returns this group's log line; empty if the region is registered or nothing is to do.
  virtual std::string register_memory(std::byte*, std::int64_t) { return {}; }
  virtual void unregister_memory(std::byte*) {}

 protected:
  Group(std::string name, int size, int index);

  // Each returns the work that the stream's worker runs; on cuda it runs at once and enqueues on `native`, elsewhere
  // `native` is null. Called on the host in the order of the calls above, with checked arguments and n > 0. An empty
  // function means that there is nothing to do; then nothing is recorded.
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
