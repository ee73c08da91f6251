// What a training step of one rank could at best take on the GPU at hand (roofline R): its GEMMs and its
// attention at the best rate the ops reach for those shapes alone, plus the bytes that must move once between them at
// the rate of a copy. Recompute is not counted, nor communication: all of it can hide behind a step of some size.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace hawser::train {

struct RooflineTerm {
  std::string what;  // "GEMM gate_up_proj, y [16384 x 28672 x 4096]"
  double count = 0;  // in a step
  double each = 0;   // seconds
  double rate = 0;   // FLOP/s; bytes/s where `bytes`
  bool bytes = false;
  double seconds() const { return count * each; }
};

struct Roofline {
  std::vector<RooflineTerm> terms;
  std::string problem;  // why there is no R: what could not be measured
  double seconds() const;
};

// What a step's attention is: the documents of one sequence stand for all of them.
struct AttentionWork {
  std::vector<std::int32_t> documents;  // lengths
  double pairs = 0;                     // visible (query, key) pairs of a step, a rank's mean
};

// Measures on a cuda device with nothing else on it; takes seconds, and memory that is given back. The layout's
// policies have no say. Attention is timed on one whole sequence, all documents at once; its time a pair counts, so
// sequences split over context ranks are their share of that.
Roofline measure_roofline(const models::Model& model, const plan::Layout& layout, const AttentionWork& attention,
                          Device& device);

}  // namespace hawser::train
