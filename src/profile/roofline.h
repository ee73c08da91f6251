// Roofline R: lower bound of the time of a training step of one rank on this GPU. R is the time of its GEMMs and
// attention, each measured alone at its shapes, plus the time of all other required memory traffic at copy rate.
// Recompute and communication are not counted.
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
  // By window of attention layers (0: none): visible query-key pairs of a step, mean over ranks.
  std::map<std::int64_t, double> pairs = {};
};

// Measures on a cuda device that runs nothing else. Takes seconds and temporary memory. Ignores the layout's
// checkpointing policies. Attention is timed on one full sequence with all its documents; the result is scaled by the
// number of pairs, so a context rank counts its share.
Roofline measure_roofline(const models::Model& model, const plan::Layout& layout, const AttentionWork& attention,
                          Device& device);

}  // namespace hawser::profile
