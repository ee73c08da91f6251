// The grid of ranks, and the groups that the parallel rooms talk in.
//
//   auto mesh = comm::make_mpi_mesh(world, comm::mesh_sizes(world.size(), hybrid_shard_degree, context), 120.0);
//   mesh->shard().size();    // parts that a flat buffer is cut into
//
// With MeshSizes{.context = 2, .shard = 2, .replicate = 2} on 8 ranks, rank 5 = (context 1, shard 0, replicate 1) is in
//   context 4,5   shard 4,5,6,7   replicate 1,5   data 0..7   world 0..7
// Names and members are the same from every factory, so traces of meta and of real ranks compare. Groups whose members
// are evenly spaced ranks print as first-last or first-last:step, "shard:4-7", "replicate:1-5:4".
#pragma once

#include <array>
#include <memory>

#include "base/units.h"
#include "comm/group.h"
#include "tensor/layout.h"

namespace hawser::comm {

class World;

// The grid of a recipe without tensor and pipeline parallelism. hybrid_shard_degree counts ranks of shard x context:
//   0            over all: {context, shard = world / context, replicate = 1}
//   1            no sharding: {context, shard = 1, replicate = world / context, shard_context = false}
//   k * context  {context, shard = k, replicate = world / (k * context)}
// Throws InternalError where the degrees do not divide; the recipe's checks say it to the user first.
MeshSizes mesh_sizes(int world, int hybrid_shard_degree, int context);

class Mesh {
 public:
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  const MeshSizes& sizes() const { return sizes_; }
  const MeshPlace& place() const { return place_; }
  Rank rank() const { return rank_; }

  // One sequence is split over these; index = place().context.
  Group& context() { return *groups_[kContext]; }
  // A flat buffer is cut over these; index = shard * contexts + context. One member when sizes().shard_context is
  // false (hybrid degree 1): parameters are whole everywhere.
  Group& shard() { return *groups_[kShard]; }
  // The same ranks, so that gathers and reductions of shards do not queue behind each other.
  Group& shard_gather() { return *groups_[kShardGather]; }
  Group& shard_reduce() { return *groups_[kShardReduce]; }
  // The ranks that hold the same piece of a flat buffer: gradients are summed over them last. index = replicate, or
  // replicate * contexts + context when sizes().shard_context is false. shard().size() * replicate().size() is always
  // data().size().
  Group& replicate() { return *groups_[kReplicate]; }
  // All that share one loss: shard x context x replicate, context innermost, replicate outermost.
  Group& data() { return *groups_[kData]; }
  Group& world() { return *groups_[kWorld]; }

  // Tells the groups of large traffic that their views will lie in this region: on GPUs a gather within registered
  // memory is done by the copy engines and takes no SM, and sums fetch parts without a copy between.
  // Every rank calls it, outside steps, with regions of one size that `device` allocated after the mesh was made, and
  // with views at equal offsets. Returns a line for the log where the region could not be registered (all goes on
  // without), the same on every rank; else, and on all other devices, nothing. The region outlives the mesh, or is
  // taken back first, by every rank.
  std::string register_memory(std::byte* data, std::int64_t bytes);
  void unregister_memory(std::byte* data);

 private:
  friend struct MeshBuilder;
  enum Which { kContext, kShard, kShardGather, kShardReduce, kReplicate, kData, kWorld, kGroups };
  static constexpr std::array kTraffic = {kShardGather, kShardReduce, kContext, kReplicate};  // of more than numbers

  Mesh(const MeshSizes& sizes, Rank rank);

  MeshSizes sizes_;
  Rank rank_;
  MeshPlace place_;
  std::array<std::unique_ptr<Group>, kGroups> groups_;
};

// One rank, no messages.
std::unique_ptr<Mesh> make_self_mesh();

// Real ranks. sizes.world() is world.size(). Called by every rank with the same sizes (checked: InternalError on all);
// `world` outlives the mesh. Every collective of its groups gets timeout_s seconds from its start on the stream.
std::unique_ptr<Mesh> make_mpi_mesh(World& world, const MeshSizes& sizes, double timeout_s);

// Real ranks, one GPU each; all of the above, and: `device` is this rank's cuda device and outlives the mesh; a rank
// that was built without CUDA throws UserError. Large regions of `device` can be registered from here on.
std::unique_ptr<Mesh> make_nccl_mesh(World& world, const MeshSizes& sizes, double timeout_s, Device& device);

// What `rank` of such a run would see; records only (meta streams), any world size, no processes.
std::unique_ptr<Mesh> make_meta_mesh(const MeshSizes& sizes, Rank rank);

}  // namespace hawser::comm
