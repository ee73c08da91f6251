// `RankPlan`: the plan of one rank for one kind of step (step::Purpose): the program, its trace on the meta device, and
// the placement of all buffers. `Costs` are computed from it.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "plan/layout.h"
#include "program/checker.h"
#include "step/buffers.h"

namespace hawser::plan {

struct Target;

struct RankPlan {
  step::Purpose purpose = step::Purpose::train;
  int stage = 0;  // the rank's pipeline stage
  program::Program program;
  Trace trace;
  step::BufferPlan buffers;  // with its placement
  // This rank's parameters (float32 shards and their copies in the compute dtype), moments, and KV cache, as far as
  // they are on the device.
  std::int64_t parameter_bytes = 0, optimizer_bytes = 0, kv_cache_bytes = 0;
  std::int64_t reference_bytes = 0;  // step::ModelState::reference_bytes
  std::int64_t saved_bytes = 0;      // step::ModelState::saved_bytes
  std::int64_t state_bytes = 0;      // of step::ModelState on the device: the four above and its small tables
  std::int64_t scratch_bytes = 0;    // scratch_bytes(device), below
  // For each op with more than one kernel: the kernel that the plan uses, and why no faster one. One line each, without
  // repeats, in step order: "attention_forward: plain (float32 operands; precision.compute: bf16 avoids it)". Empty on
  // the CPU.
  std::vector<std::string> implementations;
  // By group, without its ranks ("shard/gather"): a hash of where in the state or the arena its collectives have the
  // views that are at equal offsets on all members if these run one plan. Members that fetch from one another's memory
  // rely on it (comm::Mesh::compare_offsets). Parts that are each member's own, and sends and receives, are left out.
  std::map<std::string, std::uint64_t> offset_hashes;

  std::int64_t staging_bytes = 0;  // pinned host memory for inputs and results (step::HostLink); each plan has its own
  std::int64_t host_bytes() const { return buffers.host_placement.bytes; }  // arena of pinned host memory of a step
  std::int64_t host_state_bytes = 0;  // step::ModelState::host_bytes: what of the state is in pinned host memory
  // All pinned host memory that a session reserves if this is its only kind of step.
  std::int64_t pinned_bytes() const { return host_bytes() + host_state_bytes + staging_bytes; }
  std::int64_t staged_bytes = 0;  // step::ModelState::staged_bytes: of the arena, while no step runs
  std::int64_t arena_bytes() const { return std::max(buffers.placement.bytes, staged_bytes); }
  // All device memory that a session reserves if this is its only kind of step: state, scratch buffer and arena.
  std::int64_t bytes() const { return state_bytes + scratch_bytes + arena_bytes(); }
};

// Runs the step of `rank` on meta and places its buffers. Allocates no device memory and does not communicate.
// `optimizer`: reserve moments even if `purpose` is not train, for a session that also trains. Placing::estimate
// computes sizes only, a few percent too low; such a plan cannot be run. So does Placing::offsets if that size is above
// `max_bytes`.
RankPlan plan_rank(const models::Model& model, const Layout& layout, step::Purpose purpose, int rank,
                   bool optimizer = false, program::Placing placing = program::Placing::offsets,
                   std::int64_t max_bytes = std::numeric_limits<std::int64_t>::max());

// The plans of the ranks at `rank`'s place in every pipeline stage, by stage, checked together (check_plans): each
// stage's program is right only if those of the others match it.
std::vector<RankPlan> plan_stages(const models::Model& model, const Layout& layout, step::Purpose purpose, int rank,
                                  bool optimizer);

// The traces of the plans of all stages, with the number of each stage's first rank. `stages` outlives them.
std::vector<program::RankTrace> traces_of(const std::vector<RankPlan>& stages, const Layout& layout);

// Bytes of the compute stream's scratch buffer on a device of this kind: kCudaScratchBytes on cuda, 0 on the CPU. It is
// allocated once, outside of the arena, and all ops that need scratch share it; no other stream of a step has one. It
// does not include the buffers of category "workspace", which are planned and in the arena.
std::int64_t scratch_bytes(DeviceKind device);

// Checks the plans of some ranks (`ranks[i]` is the rank of `plans[i]`). Members of a group whose plans are not
// given are assumed to make the same collective calls as the members whose plans are given. The plans must be free of
// races, deadlocks and mismatched collectives, and all work of a step must precede its end event: the device starts the
// next step at that event, although the host enqueues it earlier. Throws InternalError with the defects, which are bugs
// in a program.
void check_plans(const std::vector<const RankPlan*>& plans, const std::vector<int>& ranks);

// The lines of `implementations` with attention's plain kernel.
std::vector<std::string> slow_kernels(const RankPlan& plan);

// Memory and work of one rank in one step.
struct Costs {
  // RankPlan::bytes(): state, scratch buffer and arena.
  std::int64_t total_bytes = 0;
  std::int64_t pinned_bytes = 0;  // RankPlan::pinned_bytes(), not in total_bytes
  // Bytes in use at the time when the arena has the most live bytes: state, scratch buffer and live buffers.
  std::int64_t peak_bytes = 0;
  // A breakdown of total_bytes (not only of peak_bytes) at that time: parts of the state, the scratch buffer, live
  // buffers by Buffer::category, and of the arena, the part that no live buffer uses ("between buffers") and
  // what it has in addition for the loading of weights.
  std::map<std::string, std::int64_t> peak_bytes_by_category;
  std::int64_t saved_bytes = 0;           // RankPlan::saved_bytes: what a snapshot of the rank takes in host memory
  std::vector<std::string> slow_kernels;  // the lines of implementations() with attention's plain kernel
  std::string peak_instruction;           // the instruction that runs at that time
  double flops = 0;                       // sum over all op records, recompute included
  // FLOPs of forward and backward of a training step on this rank, of its stage's layers, without recompute, whatever
  // the plan's purpose.
  // Attention is counted as causal attention over full sequences of one document each, whatever the documents really
  // are.
  double model_flops = 0;
  // Bytes that this rank sends, by kind of group: "tensor", "context", "shard", "replicate", "data",
  // "pipeline", "expert".
  std::map<std::string, double> traffic;
};
// `target`: tells where the bound of rows that a device counts is sent. Without it they are sent nowhere.
Costs costs_of(const RankPlan& plan, const models::Model& model, const Layout& layout, const Target* target = nullptr);

}  // namespace hawser::plan
