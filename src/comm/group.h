// `Group`: a communicator over some ranks (its members), with the collectives that run on it.
//
// A call enqueues the collective on a stream and returns at once. Its views may be read or overwritten when the stream
// has completed it. Every member enqueues the same collectives of a group in the same order, and the member's streams
// and events enforce that order on the device (program/checker.h: a run checks the plans of all pipeline stages
// together; tests check those of all ranks). Collectives of different groups do not wait for each other, so traffic
// that must not queue after other traffic of the same ranks gets a group of its own. There is one exception: over NCCL,
// mesh.shard(), data() and world() share a communicator if they have the same ranks, and then wait for each other. They
// carry small sums only, on the compute stream; weights and gradients use the duplicates mesh.shard_gather() and
// shard_reduce().
//
//   mesh.shard_gather().all_gather(gather_stream, shard, full);             // shard [n], full [size * n]
//   mesh.shard_reduce().reduce_scatter(reduce_stream, gradient, shard, /*accumulate=*/true, workspace);
//
// Views are dense, on the stream's device, and used as flat ranges of elements, whatever their shape; n may be 0. Sums
// add the members' elements in the order of the members' indices, in float32, and round once. The result depends only
// on the inputs. If several members get the same elements of a result, they get the same bits.
//
// No call allocates memory that grows with n. The caller provides scratch as `workspace`: a dense view of at least the
// number of bytes that reduce_scatter_workspace or all_reduce_workspace returns, reusable when the stream has completed
// the collective.
//
// OpRecord: each call records one op with its accesses and a CollectiveNote. A group of one member sends nothing. Its
// ops have no CollectiveNote: they copy (reduce_scatter may also convert or accumulate). No op is recorded if nothing
// is to be done.
//
// Errors: a view that breaks the contract throws InternalError at once. If a member does not reach a collective within
// the group's time limit, or a connection breaks, every rank is ended (comm/mpi/world.h); the stream does not report
// it. A failed stream drops its collectives like all other work. The other members then wait until the time limit ends
// every rank, unless the stream's owner ends the run earlier. A group must outlive the work enqueued on it, and is used
// from one host thread at a time.
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

// Bytes of `workspace` that a call needs, sufficient for every implementation on `device`: pass stream.target(). `n` is
// the number of elements of recv for reduce_scatter, of data for all_reduce. `size` is the number of members. For any n
// the result is at most
//   2 * (size - 1) * kReduceChunkBytes   on the CPU
//   kCudaReduceBytes                     on a GPU
// On a GPU, a reduction copies the members' parts into the workspace chunk by chunk, and a kernel sums each chunk. The
// workspace holds several chunks, so that copies continue while that kernel waits behind a GEMM.
constexpr std::int64_t kReduceChunkBytes = std::int64_t{1} << 20;
constexpr std::int64_t kCudaReduceBytes = std::int64_t{384} << 20;
// all_reduce of at most this many bytes of data: every member gathers all inputs and sums them itself.
constexpr std::int64_t kGatherReduceBytes = std::int64_t{64} << 10;
std::int64_t reduce_scatter_workspace(std::int64_t n, DType reduce_dtype, int size, DeviceKind device);
std::int64_t all_reduce_workspace(std::int64_t n, DType dtype, int size, DeviceKind device);

// Rows of which the device knows the numbers and the places, and the host how many all slots have together at most.
// Slot i, of member i / G, has rows [offsets[i], offsets[i] + counts[i]), which no other slot has. Rows between slots
// are neither read nor written: slots may be packed, one after another, or wherever the caller has their rows.
struct CountedRows {
  TensorView rows;     // [B, C], any dtype
  TensorView counts;   // i32 [size * G]
  TensorView offsets;  // i32 [size * G]
};
constexpr int kCountedCopyBlocks = 64;  // of the kernel that copies them on a GPU; at least one a slot
// Where registered memory is missing, all_to_all_v transfers this many bytes at a time, or a row of each slot.
constexpr std::int64_t kCountedBytes = std::int64_t{32} << 20;
// Rows of each slot that are then transferred at a time, of slots of at most `bound` rows.
std::int64_t counted_chunk(std::int64_t bound, std::int64_t slots, std::int64_t row_bytes);
// Bytes of `workspace` that all_to_all_v needs: on a GPU at most 2 * max(kCountedBytes, a row of each slot), else 0.
std::int64_t all_to_all_v_workspace(const CountedRows& rows, std::int64_t bound, int size, DeviceKind device);

class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int size() const { return size_; }
  int index() const { return index_; }  // this member, in [0, size)
  // The same on every member, and unique among the groups of a run: "shard:0-3/gather".
  const std::string& name() const { return name_; }

  //   recv[i * n + k] = member i's send[k]
  // send [n], recv [size * n], both of one dtype (any). send may be this member's own part of recv,
  // which starts at element index * n; otherwise they must not overlap.
  void all_gather(Stream& stream, const TensorView& send, const TensorView& recv);

  //   recv[k] (+)= sum over members i, in order, of member i's send[index * n + k]
  // send [size * n] is float32 or bf16 (the reduce_dtype); recv [n] is float32 or of send's dtype. With accumulate, the
  // finished sum is added to recv. Without it, recv may be this member's own part of send, which starts at element
  // index * n, if their dtypes are equal. Otherwise the views must not overlap. The rest of send is not changed.
  void reduce_scatter(Stream& stream, const TensorView& send, const TensorView& recv, bool accumulate,
                      const TensorView& workspace);

  //   data[k] = sum (or max) over members i, in order, of member i's data[k]
  // In place. float32 or bf16. If an element is NaN on any member, its max is NaN. `label` names what is reduced:
  // program/checker.h compares those of all members.
  void all_reduce(Stream& stream, const TensorView& data, Reduction reduction, const TensorView& workspace,
                  std::int64_t label = 0);

  //   recv[i * n + k] = member i's send[index * n + k]
  // Both [size * n], of one dtype (any); they must not overlap.
  void all_to_all(Stream& stream, const TensorView& send, const TensorView& recv);

  // All-to-all of counted rows (MPI_Alltoallv), with g < G and k < recv.counts[i, g]:
  //   row k of slot (i, g) of recv = row k of slot (index, g) of member i's send
  // send and recv have rows of one dtype and width, and G slots a member; on all members send.rows has one shape, and
  // so has recv.rows: each needs the rows that it can have, not size times those of a slot. recv.counts[i, g] is
  // member i's send.counts[index, g], at most `bound`: members exchange the counts before (all_to_all). Offsets are
  // each member's own. Both are read when the stream runs the call. What is written overlaps no other view.
  //   CPU: only counted rows are sent. A slot with more than `bound` rows, or outside of `rows`, throws on the stream.
  //   GPU: from registered memory (register_memory) a kernel of kCountedCopyBlocks blocks loads the counted rows from
  //        the other members, which takes SMs. Otherwise, as between nodes, NCCL sends `bound` rows of each slot: its
  //        sizes are the host's, which does not know the counts and never waits for them. Each member sends G * bound
  //        rows to each other one, whatever the counts, in ceil(bound / c) grouped sends through the workspace of c =
  //        counted_chunk rows of each slot, and receives as many, of which it copies the counted ones. So what matters
  //        there is G * bound: one slot for each member with the bound of all its rows is cheaper than one for each
  //        of its experts with a bound of its own. To send counted rows only, the host would have to wait for the
  //        counts in the middle of a step, or a kernel to write to the other node's memory. Slots are clamped to their
  //        bounds.
  // expected_rows: how many this member is expected to send, for the cost model where counted rows are sent; 0: all.
  void all_to_all_v(Stream& stream, const CountedRows& send, const CountedRows& recv, std::int64_t bound,
                    const TensorView& workspace, double expected_rows = 0);

  // Copies member root's data into every other member's data. Any dtype.
  void broadcast(Stream& stream, const TensorView& data, int root);

  // The k-th send to a peer matches the peer's k-th receive from this member; both must have the same size. peer is
  // another member's index. Any dtype. A send may block its stream until the peer's stream has reached the receive, and
  // on a GPU also until earlier calls on this group, on any stream, have completed. In a ring, therefore, even members
  // must send first and odd members receive first, or all call exchange(). `label` names what is sent:
  // program/checker.h compares those of both sides.
  void send(Stream& stream, const TensorView& data, int peer, std::int64_t label = 0);
  void receive(Stream& stream, const TensorView& data, int peer, std::int64_t label = 0);

  // One send and one receive that do not wait for each other, as in a ring: every member calls it. Each matches as
  // above. `to` and `from` may be the same member. send and recv have one size and do not overlap. `label`: of both.
  // On a GPU, what is sent from registered memory (register_memory) is fetched by copy engines.
  void exchange(Stream& stream, const TensorView& send, int to, const TensorView& recv, int from,
                std::int64_t label = 0);

  // The stream waits until every member's stream has reached the barrier. Does not block the host.
  void barrier(Stream& stream);

  // See Mesh::register_memory, which calls it. Returns a line for the log if registration failed. Returns an
  // empty string if it succeeded, or if this kind of group needs no registration.
  virtual std::string register_memory(std::byte*, std::int64_t) { return {}; }
  virtual void unregister_memory(std::byte*) {}
  // See Mesh::compare_offsets. Every member calls it; nothing is in progress on the group.
  virtual void forget_memory() {}

 protected:
  Group(std::string name, int size, int index);

  // Each returns the work of one collective, which Stream::launch runs: on cuda at once, where it enqueues on `native`;
  // on the CPU later on the stream's thread, with `native` null. Called on the host in the order of the calls above,
  // with checked arguments and n > 0. An empty function means that there is nothing to do; then nothing is recorded.
  using Work = std::function<void(const CudaNative* native)>;
  virtual Work all_gather_work(const TensorView& send, const TensorView& recv) = 0;
  virtual Work reduce_scatter_work(const TensorView& send, const TensorView& recv, bool accumulate,
                                   const TensorView& workspace) = 0;
  virtual Work all_reduce_work(const TensorView& data, Reduction reduction, const TensorView& workspace) = 0;
  virtual Work all_to_all_work(const TensorView& send, const TensorView& recv) = 0;
  virtual Work all_to_all_v_work(const CountedRows& send, const CountedRows& recv, std::int64_t bound,
                                 const TensorView& workspace) = 0;
  virtual Work broadcast_work(const TensorView& data, int root) = 0;
  virtual Work send_work(const TensorView& data, int peer) = 0;
  virtual Work receive_work(const TensorView& data, int peer) = 0;
  virtual Work exchange_work(const TensorView& send, int to, const TensorView& recv, int from) = 0;
  virtual Work barrier_work() = 0;

 private:
  void launch(Stream& stream, const CollectiveNote& note, std::vector<Access> accesses, Work work);

  std::string name_;
  int size_, index_;
};

}  // namespace hawser::comm
