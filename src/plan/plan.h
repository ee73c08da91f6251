// The plan of one rank: its program run on meta, every buffer placed, and what all of it costs.
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
  std::int64_t parameter_bytes = 0, optimizer_bytes = 0, kept_bytes = 0;
  std::int64_t state_bytes = 0;    // with the three above
  std::int64_t scratch_bytes = 0;  // of the streams: what ops on a GPU use between their kernels

  // All that a session for this purpose reserves on the device.
  std::int64_t bytes() const { return state_bytes + scratch_bytes + buffers.placement.bytes; }
};

// Runs the step of `rank` on meta and places its buffers. No memory, no messages. `optimizer`: the state holds moments
// although this purpose does not read them (a session that also trains); a training step's always does. An estimate
// tells sizes, a few percent low, and cannot be run.
RankPlan plan_rank(const models::Model& model, const Layout& layout, step::Purpose purpose, int rank,
                   bool optimizer = false, program::Placing placing = program::Placing::offsets);

// Which kernels the ops of a plan take where they have several, and why not a faster one, each once and in the order of
// the step: "attention_forward: plain (float32 operands; cuDNN takes bf16)". None on the CPU.
std::vector<std::string> implementations(const RankPlan& plan);

// What the streams of a step reserve on such a device. Ops that need scratch run on the compute stream.
std::int64_t scratch_bytes(DeviceKind device);

// Proves the plans of some ranks (all, or one of each kind) free of races, deadlocks and mismatched collectives,
// and over where the next step starts; InternalError with the defects otherwise: a program of ours is wrong.
void check_plans(const std::vector<const RankPlan*>& plans, const std::vector<int>& ranks);

struct Costs {
  std::map<std::string, std::int64_t> live_bytes;  // by purpose, at the peak; with parameters and optimizer state
  std::int64_t total_bytes = 0;                    // state, scratch and arena
  std::int64_t live = 0;                           // of them, what holds something at the peak
  double flops = 0;                                // of all work of one step on this rank, as recorded
  double model_flops = 0;                          // forward and backward without recompute, causal attention once
  std::map<std::string, double> traffic;           // bytes this rank sends in a step, by kind of group
  std::string peak_instruction;                    // what the step is at when most is live
};
Costs costs_of(const RankPlan& plan, const models::Model& model, const Layout& layout);

}  // namespace hawser::plan
