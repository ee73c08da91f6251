// Roofline R: bounds of the time of a training step of one rank on this GPU. R is the time of its GEMMs and attention,
// each measured alone at its shapes, plus the time of all other required memory traffic at copy rate, that of the local
// sums of reductions included. Recompute and transfers between ranks are not counted. Two figures differ in how long
// each term runs:
//
//   R_burst  0.1 s: before the clock has followed the power that the term draws. No step reaches it
//   R_alone  1 s, after 0.3 s in which the clock settles. A step may be faster in terms whose power its other terms lower
//
// The third ceiling, R_mix, is in profile/step_mix.h. GEMMs of experts are measured with equal numbers of tokens, which
// is their best case; the traffic of experts (routing, copies of rows, activation) is that of the planned rows
// (ops::expert_rows).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace hawser::profile {

struct RooflineTerm {
  std::string what;  // "GEMM gate_up_proj, y [16384 x 28672 x 4096]"
  double count = 0;  // per step
  double work = 0;   // each: FLOPs, or bytes if `bytes`
  bool bytes = false;
  double burst = 0, alone = 0;  // seconds each
};

struct Roofline {
  std::vector<RooflineTerm> terms;
  std::string problem;  // why R could not be measured; "": it was
  double burst_seconds() const;
  double alone_seconds() const;
};

// Attention of a step. The documents of one sequence represent those of all sequences.
struct AttentionWork {
  std::vector<std::int32_t> documents;  // lengths
  // By mask of attention layers: visible query-key pairs of a step, mean over ranks.
  std::map<AttentionMask, double> pairs = {};
};

// One GEMM of all experts of a layer (ops/gemm/grouped_gemm.h), by the weight [outputs, inputs] of an expert.
struct ExpertGemm {
  enum class Kind { y, dx, dweight };
  std::string name;  // "experts.gate_up, dW"
  Kind kind = Kind::y;
  std::int64_t experts = 0;
  std::int64_t assignments = 0;  // rows of all experts, without padding: tokens times experts per token
  std::int64_t outputs = 0, inputs = 0;
  DType in = DType::f32, out = DType::f32;  // in: unless fp8
  bool fp8 = false;
  bool accumulate = false;
  std::int64_t count = 0;  // in a training step of one rank, without recompute

  double flops() const {
    return 2.0 * static_cast<double>(assignments) * static_cast<double>(outputs) * static_cast<double>(inputs);
  }
};

// Lists each shape once; empty without experts. engine::gemms_of lists all other GEMMs, those of routers too.
std::vector<ExpertGemm> expert_gemms_of(const models::Model& model, const plan::Layout& layout);

// Bytes that the other work of a step without recompute reads and writes. Of a reduction between ranks these are what
// its local sum reads and writes: the members' parts and the result.
double fused_bytes(const models::Model& model, plan::Layout layout);

// Measures on a cuda device that runs nothing else. Takes about half a minute and temporary memory. Ignores the
// layout's checkpointing policies. Attention is timed on one full sequence with all its documents; the result is scaled
// by the number of pairs, so a context rank counts its share.
Roofline measure_roofline(const models::Model& model, const plan::Layout& layout, const AttentionWork& attention,
                          Device& device);

}  // namespace hawser::profile
