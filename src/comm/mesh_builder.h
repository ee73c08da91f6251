// Who is in which group of a mesh, apart from what the groups are made of.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.h"

namespace hawser::comm {

// Throws InternalError on every rank unless all want the same mesh, one of the run's size.
void expect_one_mesh(World& world, const MeshSizes& sizes);

struct MeshBuilder {
  // Makes a group of at least two: its name, its members' ranks by index, and this rank's index among them.
  using MakeGroup = std::function<std::unique_ptr<Group>(const std::string& name, std::vector<int> ranks, int index)>;

  // Groups are made in one fixed order, the same on every rank. Groups of one are SelfGroups.
  static std::unique_ptr<Mesh> build(const MeshSizes& sizes, Rank rank, const MakeGroup& make);

 private:
  static std::unique_ptr<Group> make_group(const std::string& kind, std::vector<int> ranks, int index,
                                           const MakeGroup& make);
};

}  // namespace hawser::comm
