// `MeshBuilder`: which ranks are in which group of a mesh, independent of the backend.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.h"

namespace hawser::comm {

// Throws InternalError on every rank unless all ranks request the same mesh and it has the run's size.
void expect_one_mesh(World& world, const MeshSizes& sizes);

struct MeshBuilder {
  // Creates a group of at least two members: its name, the members' ranks by index, and this rank's index among them.
  using MakeGroup = std::function<std::unique_ptr<Group>(const std::string& name, std::vector<int> ranks, int index)>;

  // Creates groups in one fixed order, the same on every rank. Groups of one member are SelfGroups.
  static std::unique_ptr<Mesh> build(const MeshSizes& sizes, Rank rank, const MakeGroup& make);

 private:
  static std::unique_ptr<Group> make_group(const std::string& kind, std::vector<int> ranks, int index,
                                           const MakeGroup& make);
  // "expert": the ranks with different experts; "expert_shard": those with the same ones.
  static std::unique_ptr<Group> expert_group(const std::string& kind, const MeshSizes& sizes, Rank rank,
                                             const MakeGroup& make);
};

}  // namespace hawser::comm
