#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "comm/mesh_builder.h"
#include "comm/meta/meta_group.h"

namespace hawser::comm {
namespace mesh_test {

TEST(Mesh, ContextIsInsideShardIsInsideReplicate) {
  const MeshSizes sizes{.context = 2, .shard = 3, .replicate = 2};
  EXPECT_EQ(sizes.world(), 12);
  for (int rank = 0; rank < 12; ++rank) EXPECT_EQ(rank_of(coordinate_of(rank, sizes), sizes), rank);
  EXPECT_EQ(coordinate_of(1, sizes).context, 1);
  EXPECT_EQ(coordinate_of(2, sizes).shard, 1);
  EXPECT_EQ(coordinate_of(6, sizes).replicate, 1);
}

TEST(MeshSizes, FollowTheHybridDegree) {
  const MeshSizes all = mesh_sizes(8, 0, 2);
  EXPECT_EQ(all.context, 2);
  EXPECT_EQ(all.shard, 4);
  EXPECT_EQ(all.replicate, 1);
  EXPECT_EQ(all.shard_ranks(), 8);
  EXPECT_EQ(all.replicas(), 1);
  const MeshSizes none = mesh_sizes(8, 1, 2);
  EXPECT_EQ(none.world(), 8);
  EXPECT_EQ(none.shard_ranks(), 1);
  EXPECT_EQ(none.replicas(), 8);
  const MeshSizes four = mesh_sizes(8, 4, 2);
  EXPECT_EQ(four.shard, 2);
  EXPECT_EQ(four.replicate, 2);
  EXPECT_EQ(four.shard_ranks(), 4);
  EXPECT_TRUE(mesh_sizes(4, 1, 1).shard_context);
  EXPECT_THROW(mesh_sizes(8, 3, 1), InternalError);
  EXPECT_THROW(mesh_sizes(8, 2, 4), InternalError);
  EXPECT_THROW(mesh_sizes(6, 0, 4), InternalError);
}

TEST(MetaMesh, GroupsOfOneRank) {
  const auto mesh = make_meta_mesh({.context = 2, .shard = 2, .replicate = 2}, Rank(5));
  EXPECT_EQ(mesh->context().name(), "context:4-5");
  EXPECT_EQ(mesh->context().index(), 1);
  EXPECT_EQ(mesh->shard().name(), "shard:4-7");
  EXPECT_EQ(mesh->shard_gather().name(), "shard:4-7/gather");
  EXPECT_EQ(mesh->shard_reduce().name(), "shard:4-7/reduce");
  EXPECT_EQ(mesh->shard_reduce().index(), 1);
  EXPECT_EQ(mesh->replicate().name(), "replicate:1-5:4");
  EXPECT_EQ(mesh->replicate().index(), 1);
  EXPECT_EQ(mesh->data().name(), "data:0-7");
  EXPECT_EQ(mesh->data().index(), 5);
  EXPECT_EQ(mesh->world().size(), 8);
}

TEST(MetaMesh, WithoutShardingReplicasSpanTheContext) {
  const auto mesh = make_meta_mesh(mesh_sizes(8, 1, 2), Rank(5));
  EXPECT_EQ(mesh->context().name(), "context:4-5");
  EXPECT_EQ(mesh->shard().size(), 1);
  EXPECT_EQ(mesh->replicate().name(), "replicate:0-7");
  EXPECT_EQ(mesh->replicate().index(), 5);
}

TEST(MetaMesh, ContextIsRingTimesHeads) {
  const MeshSizes sizes{.tensor = 2, .context = 8, .shard = 2, .context_heads = 2};
  const auto mesh = make_meta_mesh(sizes, Rank(27));  // tensor 1, context 5, shard 1
  EXPECT_EQ(mesh->context_heads().name(), "context_heads:25-27:2");
  EXPECT_EQ(mesh->context_heads().index(), 1);
  EXPECT_EQ(mesh->context().name(), "context:19-31:4");
  EXPECT_EQ(mesh->context().index(), 2);
  const auto ring = make_meta_mesh({.context = 4}, Rank(3));
  EXPECT_EQ(ring->context_heads().size(), 1);
  EXPECT_EQ(ring->context().name(), "context:0-3");
  const auto heads = make_meta_mesh({.context = 4, .context_heads = 4}, Rank(3));
  EXPECT_EQ(heads->context_heads().name(), "context_heads:0-3");
  EXPECT_EQ(heads->context().size(), 1);
  EXPECT_THROW(make_meta_mesh({.context = 4, .context_heads = 3}, Rank(0)), InternalError);
}

// Experts are folded from shard x context. Tensor ranks have the same experts.
TEST(MetaMesh, ExpertsAreOverConsecutiveShards) {
  const MeshSizes sizes{.tensor = 2, .context = 2, .shard = 4, .replicate = 2, .expert = 4};
  EXPECT_EQ(sizes.world(), 32);
  EXPECT_EQ(sizes.shard_ranks(Domain::sliced), 8);
  EXPECT_EQ(sizes.shard_ranks(Domain::replicated), 16);
  EXPECT_EQ(sizes.shard_ranks(Domain::expert), 4);
  const auto mesh = make_meta_mesh(sizes, Rank(27));  // tensor 1, context 1, shard 2, replicate 1
  EXPECT_EQ(expert_part(mesh->coordinate(), sizes), 1);
  EXPECT_EQ(mesh->expert().name(), "expert:25-31:2");
  EXPECT_EQ(mesh->expert().index(), 1);
  EXPECT_EQ(mesh->shard(Domain::expert).name(), "expert_shard:18-19,26-27");
  EXPECT_EQ(mesh->shard(Domain::expert).index(), 3);
  EXPECT_EQ(mesh->shard_gather(Domain::expert).name(), "expert_shard:18-19,26-27/gather");
  EXPECT_EQ(mesh->shard_reduce(Domain::expert).name(), "expert_shard:18-19,26-27/reduce");
  EXPECT_EQ(mesh->shard(Domain::replicated).name(), "tensor_shard:16-31");
  EXPECT_EQ(mesh->shard(Domain::sliced).name(), "shard:17-31:2");
  const auto all = make_meta_mesh({.context = 2, .shard = 2, .expert = 4}, Rank(2));
  EXPECT_EQ(all->expert().name(), "expert:0-3");
  EXPECT_EQ(all->shard(Domain::expert).size(), 1);
  const auto none = make_meta_mesh({.tensor = 2, .shard = 2}, Rank(2));
  EXPECT_EQ(none->expert().size(), 1);
  EXPECT_EQ(none->shard(Domain::expert).name(), none->shard(Domain::replicated).name());
  EXPECT_THROW(make_meta_mesh({.shard = 3, .expert = 2}, Rank(0)), InternalError);
  EXPECT_THROW(make_meta_mesh({.context = 2, .shard_context = false, .expert = 2}, Rank(0)), InternalError);
}

TEST(MetaMesh, ExpertsAreOverTensorRanks) {
  const MeshSizes sizes{.tensor = 2, .shard = 8, .replicate = 2, .expert = 8, .expert_over_tensor = true};
  EXPECT_EQ(sizes.shard_ranks(Domain::expert), 2);
  const auto mesh = make_meta_mesh(sizes, Rank(29));  // tensor 1, shard 6, replicate 1
  EXPECT_EQ(expert_part(mesh->coordinate(), sizes), 5);
  EXPECT_EQ(mesh->expert().name(), "expert:24-31");
  EXPECT_EQ(mesh->expert().index(), 5);
  EXPECT_EQ(mesh->shard(Domain::expert).name(), "expert_shard:21-29:8");
  EXPECT_THROW(make_meta_mesh({.tensor = 4, .shard = 2, .expert = 2, .expert_over_tensor = true}, Rank(0)),
               InternalError);
}

// The ranks that have each element of a domain's parameters once.
TEST(MetaMesh, AModelsParametersAreOverItsStages) {
  const MeshSizes sizes{.shard = 4, .replicate = 2, .pipeline = 2, .expert = 2};
  const auto mesh = make_meta_mesh(sizes, Rank(13));  // shard 1, replicate 1, stage 1
  EXPECT_EQ(mesh->model().name(), "model:4-7,12-15");
  EXPECT_EQ(mesh->model(Domain::replicated).name(), "model:4-7,12-15");
  EXPECT_EQ(mesh->model(Domain::expert).name(), "expert_model:5-7:2,13-15:2");
  const auto stage = make_meta_mesh({.shard = 4, .expert = 2}, Rank(1));
  EXPECT_EQ(stage->model(Domain::expert).name(), stage->shard(Domain::expert).name());
  const auto dense = make_meta_mesh({.shard = 2, .pipeline = 2}, Rank(1));
  EXPECT_EQ(dense->model(Domain::expert).name(), dense->model().name());
}

// Four tensor ranks with two key-value heads: ranks 0 and 1 have the first, 2 and 3 the second.
TEST(MetaMesh, CopiesOfKeyValueHeadsAreShardedTogether) {
  const MeshSizes sizes{.tensor = 4, .shard = 2, .replicate = 2, .kv_copies = 2};
  EXPECT_EQ(sizes.shard_ranks(Domain::kv_copies), 4);
  const auto mesh = make_meta_mesh(sizes, Rank(11));  // tensor 3, shard 0, replicate 1
  EXPECT_EQ(mesh->shard(Domain::kv_copies).name(), "kv_shard:10-11,14-15");
  EXPECT_EQ(mesh->shard(Domain::kv_copies).index(), 1);
  EXPECT_EQ(mesh->shard_gather(Domain::kv_copies).name(), "kv_shard:10-11,14-15/gather");
  EXPECT_EQ(mesh->shard_reduce(Domain::kv_copies).name(), "kv_shard:10-11,14-15/reduce");
  const auto none = make_meta_mesh({.tensor = 2, .shard = 2}, Rank(2));
  EXPECT_EQ(none->shard(Domain::kv_copies).name(), none->shard(Domain::sliced).name());
  EXPECT_THROW(make_meta_mesh({.tensor = 3, .kv_copies = 2}, Rank(0)), InternalError);
}

TEST(MetaMesh, HoldsAThousandRanks) {
  const auto mesh = make_meta_mesh({.tensor = 2, .context = 8, .shard = 8, .replicate = 4, .pipeline = 2}, Rank(777));
  EXPECT_EQ(mesh->data().size(), 256);
  EXPECT_EQ(mesh->data().name(), "data:513-1023:2");
  EXPECT_EQ(mesh->shard().size() * mesh->replicate().size(), mesh->data().size());
}

TEST(MetaMesh, HoldsAMillionRanks) {
  const auto mesh = make_meta_mesh({.context = 16, .shard = 1024, .replicate = 64}, Rank(777));
  EXPECT_EQ(mesh->shard().name(), "shard:0-16383");
  EXPECT_EQ(mesh->world().size(), 1 << 20);
}

TEST(MetaMesh, GroupsOverStages) {
  const MeshSizes sizes{.tensor = 2, .shard = 2, .pipeline = 4, .tied = {{0, 3}}};
  const auto mesh = make_meta_mesh(sizes, Rank(13));  // tensor 1, shard 0, stage 3
  EXPECT_EQ(mesh->model().name(), "model:0-15");
  EXPECT_EQ(mesh->loss().name(), "loss:1-15:2");
  EXPECT_EQ(mesh->data().name(), "data:13-15:2");
  EXPECT_EQ(mesh->lane(2, Direction::forward).name(), "pipeline:9-13:4/forward2");
  EXPECT_EQ(mesh->lane(2, Direction::backward).name(), "pipeline:9-13:4/backward2");
  EXPECT_EQ(mesh->lane(2, Direction::backward).index(), 1);
  EXPECT_THROW(mesh->lane(1, Direction::forward), InternalError);
  EXPECT_THROW(mesh->lane(3, Direction::forward), InternalError) << "only with virtual stages";
  EXPECT_EQ(mesh->tied(0).name(), "tied:1-13:12/0");
  EXPECT_THROW(make_meta_mesh(sizes, Rank(5))->tied(0), InternalError);
  MeshSizes ring = sizes;
  ring.interleaved = true;
  EXPECT_EQ(make_meta_mesh(ring, Rank(13))->lane(3, Direction::forward).name(), "pipeline:1-13:12/forward3");
}

// The groups of a mesh, each with its size and this rank's index.
std::string groups_of(Mesh& mesh) {
  const MeshSizes& sizes = mesh.sizes();
  std::vector<Group*> groups = {&mesh.context(), &mesh.context_heads(), &mesh.tensor(),
                                &mesh.expert(),  &mesh.replicate(),     &mesh.data(),
                                &mesh.world(),   &mesh.loss(),          &mesh.model()};
  for (const Domain domain : {Domain::sliced, Domain::replicated, Domain::expert, Domain::kv_copies}) {
    for (Group* group :
         {&mesh.shard(domain), &mesh.shard_gather(domain), &mesh.shard_reduce(domain), &mesh.model(domain)}) {
      groups.push_back(group);
    }
  }
  const int stage = mesh.coordinate().pipeline;
  for (int edge = 0; edge < sizes.edges(); ++edge) {
    if (stage != edge && stage != (edge + 1) % sizes.pipeline) continue;
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      groups.push_back(&mesh.lane(edge, direction));
    }
  }
  for (std::size_t i = 0; i < sizes.tied.size(); ++i) {
    if (std::ranges::find(sizes.tied[i], stage) != sizes.tied[i].end())
      groups.push_back(&mesh.tied(static_cast<int>(i)));
  }
  std::string out;
  for (const Group* group : groups) out += cat(group->name(), " ", group->index(), "/", group->size(), "\n");
  return out;
}

// A meta mesh lists the members of its own groups. Backends divide all ranks into groups: those are the same.
TEST(MetaMesh, HasTheGroupsOfThePartitionsOfAllRanks) {
  const auto make = [](const GroupPartition& all,
                       const std::optional<GroupPartition::Place>& place) -> std::unique_ptr<Group> {
    if (!place) return nullptr;
    return std::make_unique<MetaGroup>(all.name(*place), static_cast<int>(all.ranks(*place).size()), place->index);
  };
  const std::vector<MeshSizes> meshes = {
      {},
      {.tensor = 2, .context = 3, .shard = 2, .replicate = 2},
      {.context = 4, .replicate = 3, .shard_context = false},
      {.tensor = 2, .context = 2, .replicate = 2, .pipeline = 2, .shard_context = false, .kv_copies = 2},
      {.tensor = 4, .context = 2, .shard = 2, .pipeline = 3, .tied = {{0, 2}, {1, 2}}, .kv_copies = 2},
      {.tensor = 2, .context = 2, .shard = 4, .replicate = 2, .pipeline = 2, .interleaved = true, .expert = 4},
      {.shard = 4, .pipeline = 3, .interleaved = true, .tied = {{0, 1, 2}}, .expert = 2},
      {.tensor = 2, .context = 2, .shard = 4, .replicate = 2, .expert = 8, .expert_over_tensor = true},
      {.tensor = 2, .context = 8, .shard = 2, .context_heads = 4}};
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    for (int rank = 0; rank < meshes[i].world(); ++rank) {
      const auto complete = MeshBuilder::build(meshes[i], Rank(rank), make);
      EXPECT_EQ(groups_of(*make_meta_mesh(meshes[i], Rank(rank))), groups_of(*complete))
          << "mesh " << i << ", " << rank;
    }
  }
}

TEST(MetaMesh, RejectsTiedStagesThatItHasNot) {
  EXPECT_THROW(make_meta_mesh({.pipeline = 2, .tied = {{0, 2}}}, Rank(0)), InternalError);
  EXPECT_THROW(make_meta_mesh({.pipeline = 2, .tied = {{1, 0}}}, Rank(0)), InternalError);
  EXPECT_THROW(make_meta_mesh({.pipeline = 2, .tied = {{1}}}, Rank(0)), InternalError);
}

}  // namespace mesh_test
}  // namespace hawser::comm
