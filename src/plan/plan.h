// `RankPlan`: the plan of one rank: its program run on meta, the placement of all buffers, and their costs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/layout.h"
#include "program/checker.h"
#include "step/buffers.h"

namespace hawser::plan {

struct RankPlan {
  step::Purpose purpose = step::Purpose::train;
  program::Program program;
  Trace trace;
  step::BufferPlan buffers;  // with its placement
  std::int64_t parameter_bytes = 0, optimizer_bytes = 0, kv_cache_bytes = 0;
  std::int64_t state_bytes = 0;    // of the model state (step/state.h); includes the three above
  std::int64_t scratch_bytes = 0;  // of the streams: workspace shared by a GPU's ops

  // All device memory of a session for this purpose.
  std::int64_t bytes() const { return state_bytes + scratch_bytes + buffers.placement.bytes; }
};

// Runs the step of `rank` on meta and places its buffers. Allocates no memory and does not communicate. `optimizer`:
// the state includes moments that this purpose does not read (a session that also trains); a training step's always
// does. Placing::estimate computes sizes only, a few percent too low; such a plan cannot be run.
RankPlan plan_rank(const models::Model& model, const Layout& layout, step::Purpose purpose, int rank,
                   bool optimizer = false, program::Placing placing = program::Placing::offsets);

// Kernels used by ops of a plan that have several, with the reason if a faster one is unsupported; each once, in step
// order: "attention_forward: plain (float32 operands; cuDNN takes bf16)". Empty on the CPU.
std::vector<std::string> implementations(const RankPlan& plan);

// Scratch bytes that the streams of a step reserve on such a device. Ops that need scratch run on the compute stream.
std::int64_t scratch_bytes(DeviceKind device);

// Checks that the plans of some ranks (all, or one of each kind) are free of races, deadlocks and mismatched
// collectives, and that each ends before the next step starts. Otherwise throws InternalError with the defects: a bug
// in a program.
void check_plans(const std::vector<const RankPlan*>& plans, const std::vector<int>& ranks);

struct Costs {
  std::map<std::string, std::int64_t> live_bytes;  // by purpose, at the peak; with parameters and optimizer state
  std::int64_t total_bytes = 0;                    // state, scratch and arena
  std::int64_t live = 0;                           // of them, bytes in use at the peak
  double flops = 0;                                // of all work of one step on this rank, as recorded
  double model_flops = 0;                          // forward and backward without recompute, causal attention once
  std::map<std::string, double> traffic;           // bytes this rank sends in a step, by kind of group
  std::string peak_instruction;                    // the instruction with the peak memory
};
Costs costs_of(const RankPlan& plan, const models::Model& model, const Layout& layout);

}  // namespace hawser::plan
