// `write_sharded`: the instructions of sharded data parallelism. A flat's weights are gathered before they are used and
// freed afterwards; its gradients are reduced to shards as soon as they are complete.
//
// Gathers and loads run at most `prefetch` uses ahead: each waits for the end of the use whose buffer it overwrites, so
// that at most prefetch + 1 buffers are live. The shards of at most two uses are loaded for gathers at a time. Likewise
// a new gradient waits for the reductions that follow the second last computation that completed gradients. If the
// flats of a block end together, the reductions of one block run while the next one's gradients are computed; if those
// of an MLP or of experts end first, while the next layer's are.
// Source: ZeRO (arXiv 1910.02054), FSDP (arXiv 2304.11277); hybrid degree as in MiCS (arXiv 2205.00119).
#pragma once

#include <map>
#include <set>
#include <vector>

#include "base/training_options.h"
#include "program/program.h"

namespace hawser::parallel {

struct ShardOptions {
  bool gather = false;          // weights are sharded: gather before use
  bool gather_updated = false;  // every rank has all weights, the optimizer's state is sharded: gather after update
  bool reduce = false;          // gradients are reduce-scattered to shards
  // By flat: it is in one shard, so none of the three. An empty list is as one of false, here and below.
  std::vector<bool> unsharded;
  // By flat: its weights are in host memory. They are loaded before each use, and if they are sharded
  // (there are reductions), then gathered, also where others are gathered after updates.
  std::vector<bool> streamed = {};
  bool replicas = false;  // shards are replicated: all-reduce them last
  int prefetch = 1;
  GradientAccumulation accumulation = GradientAccumulation::sharded;

  bool streams(int flat) const { return !streamed.empty() && streamed[static_cast<std::size_t>(flat)]; }
  bool sharded(int flat) const { return unsharded.empty() || !unsharded[static_cast<std::size_t>(flat)]; }
};

// A flat whose weights a computation reads, and in which form.
struct FlatUse {
  int flat = -1;
  program::WeightForm form = program::WeightForm::rows;
};

// An instruction of the computation and what sharding must know about it. The operands of the instruction (x, residual,
// dy, saved) and `after` are indices of computations. It also waits for operands of other streams.
struct Computation {
  program::Instruction instruction;
  std::vector<FlatUse> weights;  // by flat, ascending
  std::vector<int> gradients;    // flats whose gradients it adds to
};

// The instruction after which a flat's gradient is complete.
struct GradientEnd {
  int flat = -1;
  int instruction = -1;
};

// Writes `computations` into `program` in order, with the gathers and reductions that they need, and changes their
// operands to instruction ids. Returns the end of each flat's gradient, in program order. It is on the reduce stream,
// or on compute for a flat whose gradient is not reduced.
std::vector<GradientEnd> write_sharded(program::Program& program, const std::vector<Computation>& computations,
                                       const ShardOptions& options);

}  // namespace hawser::parallel
