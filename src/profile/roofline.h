// Roofline R: lower bound of the time of a training step of one rank on this GPU. R is the time of its GEMMs and
// attention, each measured alone at its shapes, plus the time of all other required memory traffic at copy rate.
// Recompute and communication are not counted. GEMMs of experts are measured with equal numbers of tokens, which is
// their best case; the traffic of experts (routing, copies of rows, activation) is that of the planned rows
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
  double each = 0;   // seconds
  double rate = 0;   // FLOP/s, or bytes/s if `bytes`
  bool bytes = false;
  double seconds() const { return count * each; }
};

struct Roofline {
  std::vector<RooflineTerm> terms;
  std::string problem;  // why R could not be measured; "": it was
  double seconds() const;
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
  DType in = DType::f32, out = DType::f32;
  bool accumulate = false;
  std::int64_t count = 0;  // in a training step of one rank, without recompute

  double flops() const {
    return 2.0 * static_cast<double>(assignments) * static_cast<double>(outputs) * static_cast<double>(inputs);
  }
};

// Lists each shape once; empty without experts. engine::gemms_of lists all other GEMMs, those of routers too.
std::vector<ExpertGemm> expert_gemms_of(const models::Model& model, const plan::Layout& layout);

// Bytes that the other work of a step without recompute reads and writes.
double fused_bytes(const models::Model& model, plan::Layout layout);

// Measures on a cuda device that runs nothing else. Takes seconds and temporary memory. Ignores the layout's
// checkpointing policies. Attention is timed on one full sequence with all its documents; the result is scaled by the
// number of pairs, so a context rank counts its share.
Roofline measure_roofline(const models::Model& model, const plan::Layout& layout, const AttentionWork& attention,
                          Device& device);

}  // namespace hawser::profile
