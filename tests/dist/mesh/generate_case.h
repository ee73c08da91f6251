// Models for generation over tensor ranks and shards, with fillings of the seams for tests.
#pragma once

#include <algorithm>

#include "engine/open_model.h"
#include "generate/passes.h"
#include "generate/prompts.h"
#include "mesh_case.h"

namespace hawser::testing::generation {

// Tensor ranks and shards of the world.
inline std::vector<MeshCase> generation_meshes() {
  const int world = the_world->size();
  if (world == 1) return {{}};
  if (world == 2) return {{.mesh = {.tensor = 2}}, {.mesh = {.shard = 2}}};
  if (world == 4) return {{.mesh = {.tensor = 4}}, {.mesh = {.tensor = 2, .shard = 2}}};
  return {{.mesh = {.tensor = 4, .shard = world / 4}}};
}

inline std::string folder(const std::string& name) {
  return cat(golden_folder, "/", name);
}

// This rank's slice. The vocabulary does not divide: the last rank has rows of padding.
inline models::ModelDescription slice_of(models::ModelDescription whole, int part, int parts) {
  models::ModelDescription slice = part_of(whole, part, parts, {.vocabulary = true});
  const std::int64_t total = whole.embedding.vocabulary, own = total / parts + 1;
  slice.embedding.vocabulary_slice = slice.head.vocabulary_slice = {.begin = part * own, .total = total};
  slice.embedding.vocabulary = slice.head.vocabulary = own;
  return slice;
}

inline engine::ModelChanges changes_of(const comm::MeshSizes& mesh) {
  if (mesh.tensor == 1) return {};
  const int part = comm::coordinate_of(the_world->rank().value(), {.tensor = mesh.tensor}).tensor;
  return {.describe = [=](models::ModelDescription& d, Problems&) { d = slice_of(d, part, mesh.tensor); },
          .spec_of = [](const nn::Param& param) { return param.flat; }};
}

inline engine::OpenModel open_tiny(const std::string& name, const engine::ModelChanges& changes = {}) {
  Problems problems;
  engine::OpenModel model = engine::open_trained_model(folder(name), problems, changes);
  HAWSER_CHECK(problems.empty(), problems.lines());
  return model;
}

inline void fill_seams(nn::Seams& seams, comm::Mesh& mesh) {
  seams.redistribute = std::make_shared<TensorParallel>(mesh.tensor());
  seams.tensor_reduce = std::make_shared<TensorSums>(mesh.tensor());
}

inline generate::Ranks ranks_of(const comm::MeshSizes& mesh, std::int64_t kv_heads) {
  generate::Ranks ranks{.world = the_world,
                        .mesh = {.tensor = mesh.tensor,
                                 .shard = mesh.shard,
                                 .kv_copies = std::max(1, mesh.tensor / static_cast<int>(kv_heads))}};
  if (mesh.tensor > 1) ranks.replace_seams = fill_seams;
  return ranks;
}

// The key-value heads of a model's attention.
inline std::int64_t kv_heads_of(const std::string& name) {
  return name == "mqa" ? 1 : 2;
}

// Prompts of different lengths, at most nine.
inline std::vector<generate::Prompt> prompts(std::size_t count = 5) {
  std::vector<generate::Prompt> out;
  for (const std::int64_t length : {1, 40, 9, 17, 3, 26, 2, 12, 5}) {
    if (out.size() == count) break;
    const RandomStream random(7, static_cast<std::uint64_t>(length));
    generate::Prompt& prompt = out.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      prompt.ids.push_back(static_cast<std::int32_t>(3 + random.below(90, static_cast<std::uint64_t>(i))));
    }
  }
  return out;
}

}  // namespace hawser::testing::generation
