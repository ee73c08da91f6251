// `MeshBuilder`: which ranks are in which group of a mesh, independent of the backend.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh.h"

namespace hawser::comm {

// Throws InternalError on every rank unless all ranks request the same mesh and it has the run's size.
void expect_one_mesh(World& world, const MeshSizes& sizes);

// All groups of one kind in a run, as every rank knows them: MPI_Comm_split with its colors and keys written out.
struct GroupPartition {
  // A rank's group and its index in it.
  struct Place {
    int group = 0, index = 0;
  };

  std::string kind;                      // "shard"
  std::string suffix = {};               // of the names, of a duplicate: "/gather"
  std::vector<std::vector<int>> groups;  // ranks by member index; a rank is in one group or in none

  std::optional<Place> place(int rank) const;  // none: the rank is in no group
  const std::vector<int>& ranks(const Place& place) const { return groups[static_cast<std::size_t>(place.group)]; }
  std::string name(const Place& place) const;  // "shard:0-3/gather"
};

struct MeshBuilder {
  // Creates this rank's group of a partition, which has at least two members. Every rank of the run makes the same
  // calls in the same order, whether or not it is in a group, so that all ranks agree on what identifies a group. No
  // place: the rank is in no group, or alone in it; the result is then not used.
  using MakeGroup =
      std::function<std::unique_ptr<Group>(const GroupPartition&, const std::optional<GroupPartition::Place>&)>;

  // `own`: partitions have this rank's group alone, for makers that create no group with other ranks. Its members are
  // then listed without a look at all ranks.
  enum class Groups { all, own };

  // Creates groups in one fixed order, the same on every rank. Groups of one member are SelfGroups.
  static std::unique_ptr<Mesh> build(const MeshSizes& sizes, Rank rank, const MakeGroup& make,
                                     Channel* channel = nullptr, Groups which = Groups::all);
};

}  // namespace hawser::comm
