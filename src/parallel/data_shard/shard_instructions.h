// The rows of sharded data parallelism: a unit's weights are gathered before they are used and given up after, and its
// gradients are reduced to shards as soon as they are whole.
//
// Gathers run ahead of their use by `prefetch` uses, never further: each waits for the end of the use whose buffer it
// will take, so that the plan finds prefetch + 1 buffers live. Reductions trail by one in the same way.
// Source: ZeRO (arXiv 1910.02054), FSDP (arXiv 2304.11277); hybrid degree as in MiCS (arXiv 2205.00119).
#pragma once

#include <map>
#include <set>
#include <vector>

#include "base/recipe.h"
#include "program/program.h"

namespace hawser::parallel {

struct ShardOptions {
  bool gather = false;    // weights are not whole on this rank: gather before use
  bool reduce = false;    // gradients go to shards: reduce-scatter
  bool replicas = false;  // shards are replicated: sum them last
  int prefetch = 1;
  GradientAccumulation accumulation = GradientAccumulation::sharded;
  int micro_batches = 1;
};

// A row of the computation and what sharding must know about it. `instruction.input` and `instruction.partner` count computations.
struct Computation {
  program::Instruction instruction;
  std::vector<int> weights;    // units whose weights it reads
  std::vector<int> gradients;  // units whose gradients it adds to
};

// The row behind which a unit's gradient is whole.
struct GradientEnd {
  int unit = -1;
  int instruction = -1;
};

// Writes `computations` into `program` in order, with the gathers and reductions they need between them, and turns
// their input and partner into row ids. Returns where the gradients of each unit end, in that order; on one stream, so
// that the last is behind all others.
std::vector<GradientEnd> write_sharded(program::Program& program, const std::vector<Computation>& computations,
                                       const ShardOptions& options);

}  // namespace hawser::parallel
