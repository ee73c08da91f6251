#include "comm/mesh.h"

#include <functional>
#include <vector>

#include "base/error.h"
#include "comm/mesh_builder.h"
#include "comm/meta/meta_group.h"
#include "comm/rank_list.h"
#include "comm/self/self_group.h"

namespace hawser::comm {

MeshSizes mesh_sizes(int world, int hybrid_shard_degree, int context) {
  HAWSER_CHECK(world >= 1 && context >= 1 && world % context == 0, "context degree ", context, " of ", world, " ranks");
  MeshSizes sizes{.context = context};
  if (hybrid_shard_degree == 1) {
    sizes.replicate = world / context;
    // With one context rank the two meanings of degree 1 are the same grid; keep one representation of it.
    sizes.shard_context = context == 1;
    return sizes;
  }
  const int degree = hybrid_shard_degree == 0 ? world : hybrid_shard_degree;
  HAWSER_CHECK(degree > 0 && degree % context == 0 && world % degree == 0, "hybrid shard degree ", degree, " of ",
               world, " ranks with context degree ", context);
  sizes.shard = degree / context;
  sizes.replicate = world / degree;
  return sizes;
}

Mesh::Mesh(const MeshSizes& sizes, Rank rank) : sizes_(sizes), rank_(rank), place_(place_of(rank.value(), sizes)) {}
Mesh::~Mesh() = default;

Group& Mesh::of(Domain domain, Which sliced) {
  int first = kShard;
  if (domain != Domain::sliced && sizes_.tensor > 1) first = kTensorShard;
  if (domain == Domain::expert && sizes_.expert > 1) first = kExpertShard;
  return *groups_[static_cast<std::size_t>(first + sliced - kShard)];
}

std::string Mesh::register_memory(std::byte* data, std::int64_t bytes) {
  std::string note;
  for (const Which which : kTraffic) {
    if (groups_[which] == nullptr) continue;
    std::string message = groups_[which]->register_memory(data, bytes);
    if (note.empty()) note = std::move(message);
  }
  return note;
}

void Mesh::unregister_memory(std::byte* data) {
  for (const Which which : kTraffic) {
    if (groups_[which] != nullptr) groups_[which]->unregister_memory(data);
  }
}

std::unique_ptr<Mesh> MeshBuilder::build(const MeshSizes& sizes, Rank rank, const MakeGroup& make) {
  HAWSER_CHECK(rank.value() >= 0 && rank.value() < sizes.world(), "rank ", rank, " of ", sizes.world());
  HAWSER_CHECK(sizes.shard_context || sizes.shard == 1, "shard degree ", sizes.shard, " without sharding");
  HAWSER_CHECK(sizes.expert == 1 || (sizes.shard_context && sizes.shard_ranks() % sizes.expert == 0), "expert degree ",
               sizes.expert, " of ", sizes.shard_ranks(), " shards");
  std::unique_ptr<Mesh> mesh(new Mesh(sizes, rank));
  const MeshPlace here = mesh->place_;

  // The ranks that share this rank's place on every axis except the given ones, innermost axis first.
  const auto group = [&](const std::string& name, bool context, bool shard, bool replicate, bool tensor = false) {
    std::vector<int> ranks;
    int index = 0;
    MeshPlace at = here;
    for (int r = replicate ? 0 : here.replicate; r < (replicate ? sizes.replicate : here.replicate + 1); ++r) {
      for (int s = shard ? 0 : here.shard; s < (shard ? sizes.shard : here.shard + 1); ++s) {
        for (int c = context ? 0 : here.context; c < (context ? sizes.context : here.context + 1); ++c) {
          for (int t = tensor ? 0 : here.tensor; t < (tensor ? sizes.tensor : here.tensor + 1); ++t) {
            at.replicate = r, at.shard = s, at.context = c, at.tensor = t;
            if (rank_of(at, sizes) == rank.value()) index = static_cast<int>(ranks.size());
            ranks.push_back(rank_of(at, sizes));
          }
        }
      }
    }
    return make_group(name, std::move(ranks), index, make);
  };

  const bool spans = sizes.shard_context;
  auto& groups = mesh->groups_;
  groups[Mesh::kContext] = group("context", true, false, false);
  groups[Mesh::kShard] = group("shard", spans, spans, false);
  groups[Mesh::kShardGather] = groups[Mesh::kShard]->duplicate("gather");
  groups[Mesh::kShardReduce] = groups[Mesh::kShard]->duplicate("reduce");
  groups[Mesh::kReplicate] = group("replicate", !spans, false, true);
  groups[Mesh::kData] = group("data", true, true, true);
  groups[Mesh::kTensor] = group("tensor", false, false, false, true);
  if (sizes.tensor > 1) {
    groups[Mesh::kTensorShard] = group("tensor_shard", spans, spans, false, true);
    groups[Mesh::kTensorShardGather] = groups[Mesh::kTensorShard]->duplicate("gather");
    groups[Mesh::kTensorShardReduce] = groups[Mesh::kTensorShard]->duplicate("reduce");
  }
  groups[Mesh::kExpert] = expert_group("expert", sizes, rank, make);
  if (sizes.expert > 1) {
    groups[Mesh::kExpertShard] = expert_group("expert_shard", sizes, rank, make);
    groups[Mesh::kExpertShardGather] = groups[Mesh::kExpertShard]->duplicate("gather");
    groups[Mesh::kExpertShardReduce] = groups[Mesh::kExpertShard]->duplicate("reduce");
  }

  std::vector<int> all(static_cast<std::size_t>(sizes.world()));
  for (int r = 0; r < sizes.world(); ++r) all[static_cast<std::size_t>(r)] = r;
  groups[Mesh::kWorld] = make_group("world", std::move(all), rank.value(), make);
  return mesh;
}

std::unique_ptr<Group> MeshBuilder::expert_group(const std::string& kind, const MeshSizes& sizes, Rank rank,
                                                 const MakeGroup& make) {
  const bool shards = kind == "expert_shard";
  // Ranks with equal keys are in one group.
  const auto key = [&](int r) {
    const MeshPlace p = place_of(r, sizes);
    const int run = (p.context + sizes.context * p.shard) / sizes.expert;  // of ranks with all experts together
    return shards ? std::array{p.pipeline, p.replicate, expert_part(p, sizes), 0}
                  : std::array{p.pipeline, p.replicate, run, p.tensor};
  };
  std::vector<int> ranks;
  int index = 0;
  for (int r = 0; r < sizes.world(); ++r) {
    if (key(r) != key(rank.value())) continue;
    if (r == rank.value()) index = static_cast<int>(ranks.size());
    ranks.push_back(r);
  }
  return make_group(kind, std::move(ranks), index, make);
}

std::unique_ptr<Group> MeshBuilder::make_group(const std::string& kind, std::vector<int> ranks, int index,
                                               const MakeGroup& make) {
  const std::string name = kind + ":" + rank_list(ranks);
  if (ranks.size() == 1) return std::make_unique<SelfGroup>(name);
  return make(name, std::move(ranks), index);
}

std::unique_ptr<Mesh> make_self_mesh() {
  return make_meta_mesh(MeshSizes{}, Rank(0));
}

std::unique_ptr<Mesh> make_meta_mesh(const MeshSizes& sizes, Rank rank) {
  return MeshBuilder::build(sizes, rank, [](const std::string& name, const std::vector<int>& ranks, int index) {
    return std::make_unique<MetaGroup>(name, static_cast<int>(ranks.size()), index);
  });
}

}  // namespace hawser::comm
