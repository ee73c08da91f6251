// `MeshSizes`, `MeshCoordinate`: the mesh of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/domain.h"
#include "base/units.h"

namespace hawser::comm {

enum class Axis { tensor, context, shard, replicate, pipeline };

// Ranks as a grid; the first axis is innermost (neighbouring ranks).
struct MeshSizes {
  int tensor = 1;
  int context = 1;
  int shard = 1;  // with context: the ranks that parameters are sharded over
  int replicate = 1;
  int pipeline = 1;
  // false (hybrid shard degree 1): parameters are unsharded on every rank, although context may be > 1; shard is 1, and
  // gradients are reduced over context x replicate.
  bool shard_context = true;
  // Virtual pipeline stages: the last stage also sends to the first one.
  bool interleaved = false;
  // The stages that hold the same parameters (a tied embedding): Mesh::tied(). Each list ascends.
  std::vector<std::vector<int>> tied = {};
  // Ranks with different experts. No axis of its own: `expert` consecutive ones of the shard x context ranks, context
  // innermost, have all experts together. Divides shard * context, and needs shard_context if it is more than 1.
  int expert = 1;
  // True: of the shard x context x tensor ranks, tensor innermost. Tensor ranks then have different experts, and route
  // different rows: it needs sequence parallelism. `tensor` divides `expert`.
  bool expert_over_tensor = false;
  // Consecutive tensor ranks that have equal slices of the parameters of Domain::kv_copies. Divides tensor. One number
  // for the model: every attention layer has as many (nn::AttentionConfig::kv_copies), or 1. No key of a recipe says
  // it: who makes the mesh takes it from the model, max(1, tensor / key-value heads).
  int kv_copies = 1;

  // An all-to-all over heads (Ulysses), alone or in a ring of groups: `context_heads` consecutive ranks of a context
  // group have different heads of the same rows in attention. They divide the context group; 1: none.
  int context_heads = 1;

  // Pipeline edges: edge e leads from stage e to stage (e + 1) % pipeline.
  int edges() const { return pipeline == 1 ? 0 : interleaved ? pipeline : pipeline - 1; }
  int world() const { return tensor * context * shard * replicate * pipeline; }
  int shard_ranks() const { return shard_context ? shard * context : 1; }  // shards of a flat buffer
  // The ranks that a flat buffer of a domain is sharded over (Mesh::shard).
  int shard_ranks(Domain domain) const {
    if (domain == Domain::sliced) return shard_ranks();
    if (domain == Domain::kv_copies) return shard_ranks() * kv_copies;
    return shard_ranks() * tensor / (domain == Domain::expert ? expert : 1);
  }
  int expert_ranks() const {
    return shard_ranks() * (expert_over_tensor ? tensor : 1);
  }  // that experts are folded from
  int replicas() const { return context * shard * replicate / shard_ranks(); }

  bool operator==(const MeshSizes&) const = default;
};

struct MeshCoordinate {
  int tensor = 0, context = 0, shard = 0, replicate = 0, pipeline = 0;
};

inline MeshCoordinate coordinate_of(int rank, const MeshSizes& sizes) {
  MeshCoordinate at;
  at.tensor = rank % sizes.tensor;
  rank /= sizes.tensor;
  at.context = rank % sizes.context;
  rank /= sizes.context;
  at.shard = rank % sizes.shard;
  rank /= sizes.shard;
  at.replicate = rank % sizes.replicate;
  at.pipeline = rank / sizes.replicate;
  return at;
}

inline int rank_of(const MeshCoordinate& p, const MeshSizes& s) {
  return p.tensor + s.tensor * (p.context + s.context * (p.shard + s.shard * (p.replicate + s.replicate * p.pipeline)));
}

// The rank among those that experts are folded from, in [0, MeshSizes::expert_ranks()).
inline int expert_rank(const MeshCoordinate& p, const MeshSizes& s) {
  const int rank = p.context + s.context * p.shard;
  return s.expert_over_tensor ? p.tensor + s.tensor * rank : rank;
}

// Which part of the experts a rank has, in [0, MeshSizes::expert).
inline int expert_part(const MeshCoordinate& p, const MeshSizes& s) {
  return expert_rank(p, s) % s.expert;
}

}  // namespace hawser::comm
