// `Mesh`: the grid of ranks, and the groups that the parallel modules communicate in.
//
//   auto mesh = comm::make_mpi_mesh(world, comm::mesh_sizes(world.size(), hybrid_shard_degree, context), 120.0);
//   mesh->shard().size();    // number of shards of a flat buffer
//
// With MeshSizes{.context = 2, .shard = 2, .replicate = 2} on 8 ranks, rank 5 = (context 1, shard 0, replicate 1) is in
//   context 4,5   shard 4,5,6,7   replicate 1,5   data 0..7   world 0..7
// and with .pipeline = 2 on 16 ranks, rank 5 is in stage 0 and rank 13 has its place in stage 1:
//   lane(0, forward) 5,13   model 4..7,12..15
// With MeshSizes{.context = 2, .shard = 4, .expert = 4}, rank 5 has part 1 of four of the experts and is in
//   expert 4,5,6,7   shard(Domain::expert) 1,5
// With MeshSizes{.tensor = 2, .shard = 4, .expert = 8, .expert_over_tensor = true}, rank 5 has part 5 of
// eight and is in
//   expert 0..7   shard(Domain::expert) 5
// With MeshSizes{.context = 8, .context_heads = 2}, rank 5 is in
//   context_heads 4,5   context 1,3,5,7
// Names and members are the same from every factory, so traces of meta and of real ranks can be compared. Groups whose
// members are evenly spaced ranks print as first-last or first-last:step, "shard:4-7", "replicate:1-5:4".
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/direction.h"
#include "base/domain.h"
#include "base/units.h"
#include "comm/group.h"
#include "comm/mesh_sizes.h"

namespace hawser::comm {

class Channel;
class World;

// The mesh of a recipe without tensor and pipeline parallelism. hybrid_shard_degree counts ranks of shard x context:
//   0            over all: {context, shard = world / context, replicate = 1}
//   1            no sharding: {context, shard = 1, replicate = world / context, shard_context = false}
//   k * context  {context, shard = k, replicate = world / (k * context)}
// Throws InternalError if the degrees do not divide; the recipe's checks report that to the user earlier.
MeshSizes mesh_sizes(int world, int hybrid_shard_degree, int context);

class Mesh {
 public:
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // A group's name without its ranks, equal on all ranks: "shard/gather" for "shard:0-3/gather".
  static std::string kind_of(const std::string& group);

  const MeshSizes& sizes() const { return sizes_; }
  const MeshCoordinate& coordinate() const { return coordinate_; }
  Rank rank() const { return rank_; }
  Channel* channel() const { return channel_; }  // between all ranks of the run; null: the rank is alone, or on meta

  // Of the ranks that share one sequence, those with the same heads of different rows in attention; index =
  // coordinate().context / MeshSizes::context_heads.
  Group& context() { return *groups_[kContext]; }
  // And those with different heads of the same rows; index = coordinate().context % MeshSizes::context_heads.
  Group& context_heads() { return *groups_[kContextHeads]; }
  // The ranks that have different slices of a layer's weights; index = coordinate().tensor.
  Group& tensor() { return *groups_[kTensor]; }
  // The ranks that have different experts; index = expert_part().
  Group& expert() { return *groups_[kExpert]; }
  // The ranks that a flat buffer of a domain is sharded over.
  // Sliced: index = shard * contexts + context; one member when sizes().shard_context is false (hybrid degree 1):
  // parameters are unsharded.
  // Replicated: these ranks for every tensor rank, index = (shard * contexts + context) * tensors + tensor. Copies are
  // sharded like everything else, so that the gradients' sum, the global norm and checkpoints have each element once.
  // Expert: those of the replicated ones that have the same experts, in the same order.
  // Copies of key-value heads: those of the replicated ones that have the same slice, in the same order.
  // Without tensor and expert parallelism all are equal.
  Group& shard(Domain domain = Domain::sliced) { return of(domain, kShard); }
  // Two more groups of the same ranks as shard(), so that gathers and reductions of shards do not queue after each
  // other.
  Group& shard_gather(Domain domain = Domain::sliced) { return of(domain, kShardGather); }
  Group& shard_reduce(Domain domain = Domain::sliced) { return of(domain, kShardReduce); }
  // The ranks that hold the same shard of a flat buffer; gradients are reduced over them last. index = replicate, or
  // replicate * contexts + context when sizes().shard_context is false.
  //   shard().size() * replicate().size() == data().size()
  Group& replicate() { return *groups_[kReplicate]; }
  // The ranks of a stage with different tokens: shard x context x replicate, context innermost, replicate outermost.
  Group& data() { return *groups_[kData]; }
  Group& world() { return *groups_[kWorld]; }

  // Pipeline parallelism; without it, loss() is data() and model() shard(Domain::replicated). Ranks at the same place
  // in different stages run different programs, so that no group over stages fetches from peer memory.
  // The ranks whose losses make the step's: data() of all stages.
  Group& loss() { return *groups_[sizes_.pipeline > 1 ? kLoss : kData]; }
  // The ranks of one copy of the model: shard(Domain::replicated) of all stages. They have each element of each
  // parameter once.
  Group& model() { return sizes_.pipeline > 1 ? *groups_[kModel] : shard(Domain::replicated); }
  // Those of them that have the same parameters of a domain, each element once: of Domain::expert, the ranks with the
  // same experts, shard(Domain::expert) of all stages. Of the other domains, model(). For sums of one parameter.
  Group& model(Domain domain) {
    if (domain != Domain::expert || sizes_.expert == 1) return model();
    return sizes_.pipeline > 1 ? *groups_[kExpertModel] : shard(Domain::expert);
  }
  // The two ranks at this rank's place in the stages of an edge (MeshSizes::edges), index 0 in the lower stage. Each
  // direction has a group of its own, so that activations do not wait for gradients. InternalError if this rank's stage
  // is not at the edge.
  Group& lane(int edge, Direction direction);
  // The ranks at this rank's place in the stages MeshSizes::tied[i]. InternalError if this rank's stage is not in them.
  Group& tied(int i);

  // Announces a region to the groups with large traffic. On GPUs, gathers within registered memory use copy engines and
  // no SMs, and sums fetch the members' parts without an intermediate copy.
  // Every rank calls it, outside of steps, with a region that `device` allocated after the mesh was made. Members of a
  // group whose regions differ in size do without. Returns a log line if the region could not be registered with a
  // group (everything works without); otherwise, and on all other devices, an empty string. The region outlives the
  // mesh, or every rank calls unregister_memory first.
  std::string register_memory(std::byte* data, std::int64_t bytes);
  void unregister_memory(std::byte* data);
  // What a member reads of another one's registered memory is at its own offset: right only if all members have their
  // views at equal offsets. Every rank calls it after register_memory, outside of steps, with a hash of the offsets of
  // the views that it uses on each of its groups, by kind_of(name). Groups whose members' hashes differ forget the
  // registered regions: from then on they send and receive. Returns their names.
  std::vector<std::string> compare_offsets(const std::map<std::string, std::uint64_t>& hashes, Device& device);

 private:
  friend struct MeshBuilder;
  enum Which {
    kContext,
    kShard,  // this and the two below; those of the other domains are in the same order
    kShardGather,
    kShardReduce,
    kReplicate,
    kData,
    kWorld,
    kTensor,
    kTensorShard,  // this and the two below: null without tensor parallelism
    kTensorShardGather,
    kTensorShardReduce,
    kLoss,  // this and the one below: null without pipeline parallelism
    kModel,
    kExpert,
    kExpertShard,  // this and the two below: null without expert parallelism
    kExpertShardGather,
    kExpertShardReduce,
    kKvShard,  // this and the two below: null without copies of key-value heads
    kKvShardGather,
    kKvShardReduce,
    kContextHeads,
    kExpertModel,  // null without expert and pipeline parallelism
    kGroups
  };
  // The groups that transfer large buffers.
  static constexpr std::array kTraffic = {kShardGather,       kShardReduce,       kContext,       kReplicate,
                                          kTensorShardGather, kTensorShardReduce, kTensor,        kExpert,
                                          kExpertShardGather, kExpertShardReduce, kKvShardGather, kKvShardReduce,
                                          kContextHeads};

  Mesh(const MeshSizes& sizes, Rank rank);
  Group& of(Domain domain, Which sliced);

  MeshSizes sizes_;
  Rank rank_;
  Channel* channel_ = nullptr;
  MeshCoordinate coordinate_;
  std::array<std::unique_ptr<Group>, kGroups> groups_;
  std::array<std::vector<std::unique_ptr<Group>>, 2> lanes_;  // by direction and edge; null: of other stages
  std::vector<std::unique_ptr<Group>> tied_;                  // null: of other stages
};

// One rank, no communication.
std::unique_ptr<Mesh> make_self_mesh();

// Ranks over MPI. sizes.world() is world.size(). Every rank calls it with the same sizes (otherwise InternalError on
// all); `world` outlives the mesh. Every collective has timeout_s seconds from its start on the stream.
std::unique_ptr<Mesh> make_mpi_mesh(World& world, const MeshSizes& sizes, double timeout_s);

// Ranks over NCCL, one GPU each. As make_mpi_mesh, and: `device` is this rank's cuda device and outlives the mesh; a
// build without CUDA throws UserError. Large regions of `device` can be registered from here on.
std::unique_ptr<Mesh> make_nccl_mesh(World& world, const MeshSizes& sizes, double timeout_s, Device& device);

// The mesh as `rank` of such a run sees it; records only (meta streams), any world size, no processes.
std::unique_ptr<Mesh> make_meta_mesh(const MeshSizes& sizes, Rank rank);

}  // namespace hawser::comm
