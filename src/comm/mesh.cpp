#include "comm/mesh.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <vector>

#include "base/cat.h"
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

Mesh::Mesh(const MeshSizes& sizes, Rank rank)
    : sizes_(sizes), rank_(rank), coordinate_(coordinate_of(rank.value(), sizes)) {}
Mesh::~Mesh() = default;

Group& Mesh::of(Domain domain, Which sliced) {
  int first = kShard;
  if ((domain == Domain::replicated || domain == Domain::expert) && sizes_.tensor > 1) first = kTensorShard;
  if (domain == Domain::expert && sizes_.expert > 1) first = kExpertShard;
  if (domain == Domain::kv_copies && sizes_.kv_copies > 1) first = kKvShard;
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

std::string Mesh::kind_of(const std::string& group) {
  const std::size_t ranks = group.find(':'), suffix = group.find('/');
  return group.substr(0, ranks) + (suffix == std::string::npos ? "" : group.substr(suffix));
}

std::vector<std::string> Mesh::compare_offsets(const std::map<std::string, std::uint64_t>& hashes, Device& device) {
  constexpr std::int64_t kBytes = sizeof(std::uint64_t);
  const auto stream = device.make_stream("compare offsets");
  std::vector<std::string> different;
  for (const Which which : kTraffic) {
    Group* const group = groups_[which].get();
    if (group == nullptr || group->size() == 1) continue;
    const auto found = hashes.find(kind_of(group->name()));
    std::vector<std::uint64_t> words(static_cast<std::size_t>(group->size()));
    std::uint64_t& mine = words[static_cast<std::size_t>(group->index())];
    mine = found != hashes.end() ? found->second : 0;
    const Arena arena(device, kBytes * group->size());
    const TensorView all(arena.data(), DType::u8, {kBytes * group->size()}, device.kind());
    const TensorView own = all.rows(kBytes * group->index(), kBytes);
    const auto copy = [&](const char* name, Access access, void* to, const void* from, std::int64_t bytes) {
      transfer(*stream, {.name = name, .kind = OpKind::transfer, .accesses = {access}}, to, from, bytes);
      stream->synchronize();
    };
    copy("write_hash", writes(own), own.raw(), &mine, kBytes);
    group->all_gather(*stream, own, all);
    copy("read_hashes", reads(all), words.data(), all.raw(), all.bytes());
    if (std::ranges::adjacent_find(words, std::not_equal_to()) == words.end()) continue;
    group->forget_memory();
    different.push_back(group->name());
  }
  return different;
}

Group& Mesh::lane(int edge, Direction direction) {
  const auto& lanes = lanes_[static_cast<std::size_t>(direction)];
  HAWSER_CHECK(edge >= 0 && edge < static_cast<int>(lanes.size()) && lanes[static_cast<std::size_t>(edge)] != nullptr,
               "stage ", coordinate_.pipeline, " is not at pipeline edge ", edge);
  return *lanes[static_cast<std::size_t>(edge)];
}

Group& Mesh::tied(int i) {
  HAWSER_CHECK(i >= 0 && i < static_cast<int>(tied_.size()) && tied_[static_cast<std::size_t>(i)] != nullptr, "stage ",
               coordinate_.pipeline, " does not hold the tied parameters ", i);
  return *tied_[static_cast<std::size_t>(i)];
}

std::optional<GroupPartition::Place> GroupPartition::place(int rank) const {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto found = std::ranges::find(groups[g], rank);
    if (found != groups[g].end()) return Place{static_cast<int>(g), static_cast<int>(found - groups[g].begin())};
  }
  return std::nullopt;
}

std::string GroupPartition::name(const Place& place) const {
  return cat(kind, ":", rank_list(ranks(place)), suffix);
}

namespace {

// The axes along which the members of a group differ.
struct Axes {
  bool tensor = false, context = false, shard = false, replicate = false, pipeline = false;
};

// Calls visit(rank, place) for the ranks that differ from a place along these axes alone, in ascending order: tensor
// innermost, stages outermost.
template <class Visit>
void for_each_along(const Axes& axes, const MeshCoordinate& at, const MeshSizes& sizes, const Visit& visit) {
  const auto range = [](bool differs, int here, int size) {
    return differs ? std::pair{0, size} : std::pair{here, here + 1};
  };
  const auto [tensor, tensors] = range(axes.tensor, at.tensor, sizes.tensor);
  const auto [context, contexts] = range(axes.context, at.context, sizes.context);
  const auto [shard, shards] = range(axes.shard, at.shard, sizes.shard);
  const auto [replicate, replicates] = range(axes.replicate, at.replicate, sizes.replicate);
  const auto [pipeline, pipelines] = range(axes.pipeline, at.pipeline, sizes.pipeline);
  MeshCoordinate p;
  for (p.pipeline = pipeline; p.pipeline < pipelines; ++p.pipeline) {
    for (p.replicate = replicate; p.replicate < replicates; ++p.replicate) {
      for (p.shard = shard; p.shard < shards; ++p.shard) {
        for (p.context = context; p.context < contexts; ++p.context) {
          for (p.tensor = tensor; p.tensor < tensors; ++p.tensor) visit(rank_of(p, sizes), p);
        }
      }
    }
  }
}

// Makes partitions: complete ones, or, for a rank without peers, of its own group alone. A plan makes hundreds of meta
// meshes, and the complete partitions of thousands of ranks would take most of its time.
class Partitioner {
 public:
  Partitioner(const MeshSizes& sizes, std::optional<Rank> own) : sizes_(sizes), own_(own) {}

  // Ranks with equal keys are in one group; they differ along `axes` at most.
  template <class Key>
  GroupPartition by_key(std::string kind, const Axes& axes, const Key& key) const {
    GroupPartition out{.kind = std::move(kind), .groups = {}};
    if (own_) {
      const MeshCoordinate here = coordinate_of(own_->value(), sizes_);
      const auto mine = key(here);
      std::vector<int>& ranks = out.groups.emplace_back();
      for_each_along(axes, here, sizes_, [&](int rank, const MeshCoordinate& at) {
        if (key(at) == mine) ranks.push_back(rank);
      });
      return out;
    }
    std::map<decltype(key(MeshCoordinate())), std::vector<int>> groups;
    for (int rank = 0; rank < sizes_.world(); ++rank) groups[key(coordinate_of(rank, sizes_))].push_back(rank);
    for (auto& [of, ranks] : groups) out.groups.push_back(std::move(ranks));
    return out;
  }

  // Members ascend: tensor innermost, stages outermost.
  GroupPartition along(std::string kind, const Axes& axes) const {
    return by_key(std::move(kind), axes, [&](MeshCoordinate at) {
      if (axes.tensor) at.tensor = 0;
      if (axes.context) at.context = 0;
      if (axes.shard) at.shard = 0;
      if (axes.replicate) at.replicate = 0;
      if (axes.pipeline) at.pipeline = 0;
      return rank_of(at, sizes_);
    });
  }

  // The ranks at the same place in the given stages; those of other stages are in no group.
  GroupPartition over_stages(std::string kind, const std::vector<int>& stages) const {
    GroupPartition out = along(std::move(kind), {.pipeline = true});
    for (std::vector<int>& ranks : out.groups) {
      std::erase_if(ranks, [&](int rank) {
        return std::ranges::find(stages, coordinate_of(rank, sizes_).pipeline) == stages.end();
      });
    }
    return out;
  }

 private:
  const MeshSizes& sizes_;
  std::optional<Rank> own_;
};

// Creates this rank's group of each partition.
class Maker {
 public:
  Maker(Rank rank, const MeshBuilder::MakeGroup& make) : rank_(rank), make_(make) {}

  std::unique_ptr<Group> operator()(GroupPartition all, const std::string& suffix = "") const {
    all.suffix = suffix;
    const auto place = all.place(rank_.value());
    const bool alone = place && all.ranks(*place).size() == 1;
    // All ranks decide alike whether there is anything to create.
    const bool any = std::ranges::any_of(all.groups, [](const auto& ranks) { return ranks.size() > 1; });
    std::unique_ptr<Group> group;
    if (any) group = make_(all, alone ? std::nullopt : place);
    if (alone) return std::make_unique<SelfGroup>(all.name(*place));
    return place ? std::move(group) : nullptr;
  }

 private:
  Rank rank_;
  const MeshBuilder::MakeGroup& make_;
};

void check_sizes(const MeshSizes& sizes, Rank rank) {
  HAWSER_CHECK(rank.value() >= 0 && rank.value() < sizes.world(), "rank ", rank, " of ", sizes.world());
  HAWSER_CHECK(sizes.shard_context || sizes.shard == 1, "shard degree ", sizes.shard, " without sharding");
  HAWSER_CHECK(sizes.context_heads >= 1 && sizes.context % sizes.context_heads == 0, "context degree ", sizes.context,
               " with heads over ", sizes.context_heads, " ranks");
  HAWSER_CHECK(sizes.expert == 1 || (sizes.shard_context && sizes.expert_ranks() % sizes.expert == 0), "expert degree ",
               sizes.expert, " of ", sizes.expert_ranks(), " shards");
  HAWSER_CHECK(!sizes.expert_over_tensor || sizes.expert % sizes.tensor == 0, "expert degree ", sizes.expert, " over ",
               sizes.tensor, " tensor ranks");
  HAWSER_CHECK(sizes.kv_copies > 0 && sizes.tensor % sizes.kv_copies == 0, sizes.kv_copies, " copies on ", sizes.tensor,
               " tensor ranks");
  for (const std::vector<int>& stages : sizes.tied) {
    const bool ascend = std::ranges::adjacent_find(stages, std::greater_equal()) == stages.end();
    HAWSER_CHECK(ascend && stages.size() > 1 && stages.front() >= 0 && stages.back() < sizes.pipeline,
                 "tied parameters of stages that are not two or more of ", sizes.pipeline);
  }
}

}  // namespace

std::unique_ptr<Mesh> MeshBuilder::build(const MeshSizes& sizes, Rank rank, const MakeGroup& make_group,
                                         Channel* channel, Groups which) {
  check_sizes(sizes, rank);
  std::unique_ptr<Mesh> mesh(new Mesh(sizes, rank));
  mesh->channel_ = channel;
  const Maker make(rank, make_group);
  const Partitioner divide(sizes, which == Groups::own ? std::optional(rank) : std::nullopt);
  const bool spans = sizes.shard_context;
  const GroupPartition shard = divide.along("shard", {.context = spans, .shard = spans});
  const Axes folded{.tensor = true, .context = spans, .shard = spans};  // of copies and experts
  auto& groups = mesh->groups_;
  const auto of_context = [&](std::string kind, bool heads) {
    return divide.by_key(std::move(kind), {.context = true}, [&](const MeshCoordinate& p) {
      const int row = p.context / sizes.context_heads, head = p.context % sizes.context_heads;
      return std::array{p.pipeline, p.replicate, p.shard, heads ? row : head, p.tensor};
    });
  };
  groups[Mesh::kContext] = make(of_context("context", false));
  groups[Mesh::kContextHeads] = make(of_context("context_heads", true));
  groups[Mesh::kShard] = make(shard);
  groups[Mesh::kShardGather] = make(shard, "/gather");
  groups[Mesh::kShardReduce] = make(shard, "/reduce");
  groups[Mesh::kReplicate] = make(divide.along("replicate", {.context = !spans, .replicate = true}));
  groups[Mesh::kData] = make(divide.along("data", {.context = true, .shard = true, .replicate = true}));
  groups[Mesh::kTensor] = make(divide.along("tensor", {.tensor = true}));
  if (sizes.tensor > 1) {
    const GroupPartition all = divide.along("tensor_shard", folded);
    groups[Mesh::kTensorShard] = make(all);
    groups[Mesh::kTensorShardGather] = make(all, "/gather");
    groups[Mesh::kTensorShardReduce] = make(all, "/reduce");
  }
  if (sizes.kv_copies > 1) {
    const GroupPartition same = divide.by_key("kv_shard", folded, [&](MeshCoordinate at) {
      at.tensor -= at.tensor % sizes.kv_copies;
      if (spans) at.context = at.shard = 0;
      return rank_of(at, sizes);
    });
    groups[Mesh::kKvShard] = make(same);
    groups[Mesh::kKvShardGather] = make(same, "/gather");
    groups[Mesh::kKvShardReduce] = make(same, "/reduce");
  }
  // Consecutive ranks of those that experts are folded from have all experts together.
  groups[Mesh::kExpert] =
      make(divide.by_key("expert", sizes.expert > 1 ? folded : Axes{}, [&](const MeshCoordinate& p) {
        return std::array{p.pipeline, p.replicate, expert_rank(p, sizes) / sizes.expert,
                          sizes.expert_over_tensor ? 0 : p.tensor};
      }));
  if (sizes.expert > 1) {
    const GroupPartition same = divide.by_key("expert_shard", folded, [&](const MeshCoordinate& p) {
      return std::array{p.pipeline, p.replicate, expert_part(p, sizes)};
    });
    groups[Mesh::kExpertShard] = make(same);
    groups[Mesh::kExpertShardGather] = make(same, "/gather");
    groups[Mesh::kExpertShardReduce] = make(same, "/reduce");
  }
  if (sizes.pipeline > 1) {
    groups[Mesh::kLoss] =
        make(divide.along("loss", {.context = true, .shard = true, .replicate = true, .pipeline = true}));
    const Axes model{.tensor = true, .context = spans, .shard = spans, .pipeline = true};
    groups[Mesh::kModel] = make(divide.along("model", model));
    if (sizes.expert > 1) {
      groups[Mesh::kExpertModel] = make(divide.by_key("expert_model", model, [&](const MeshCoordinate& p) {
        return std::array{p.replicate, expert_part(p, sizes)};
      }));
    }
  }
  for (int edge = 0; edge < sizes.edges(); ++edge) {
    const GroupPartition ends = divide.over_stages("pipeline", {edge, (edge + 1) % sizes.pipeline});
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      mesh->lanes_[static_cast<std::size_t>(direction)].push_back(make(ends, cat("/", to_string(direction), edge)));
    }
  }
  for (std::size_t i = 0; i < sizes.tied.size(); ++i) {
    mesh->tied_.push_back(make(divide.over_stages("tied", sizes.tied[i]), cat("/", i)));
  }
  groups[Mesh::kWorld] = make(divide.along("world", {true, true, true, true, true}));
  return mesh;
}

std::unique_ptr<Mesh> make_self_mesh() {
  return make_meta_mesh(MeshSizes{}, Rank(0));
}

std::unique_ptr<Mesh> make_meta_mesh(const MeshSizes& sizes, Rank rank) {
  return MeshBuilder::build(
      sizes, rank,
      [](const GroupPartition& all, const std::optional<GroupPartition::Place>& place) -> std::unique_ptr<Group> {
        if (!place) return nullptr;
        return std::make_unique<MetaGroup>(all.name(*place), static_cast<int>(all.ranks(*place).size()), place->index);
      },
      nullptr, MeshBuilder::Groups::own);
}

}  // namespace hawser::comm
