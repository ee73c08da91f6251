// Models for generation over tensor ranks and shards.
#pragma once

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

// This rank's part.
inline engine::ModelChanges changes_of(const comm::MeshSizes& mesh) {
  return {.share = {
              .tensor = {.index = comm::coordinate_of(the_world->rank().value(), mesh).tensor, .count = mesh.tensor}}};
}

inline engine::OpenModel open_tiny(const std::string& name, const engine::ModelChanges& changes = {}) {
  Problems problems;
  engine::OpenModel model = engine::open_trained_model(folder(name), problems, changes);
  HAWSER_CHECK(problems.empty(), problems.lines());
  return model;
}

inline generate::Ranks ranks_of(const comm::MeshSizes& mesh) {
  return {.world = the_world, .mesh = {.tensor = mesh.tensor, .shard = mesh.shard}};
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
