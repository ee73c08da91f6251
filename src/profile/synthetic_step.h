// `synthetic_step`: the input of a benchmark's steps.
#pragma once

#include <map>

#include "batches/micro_batch.h"
#include "plan/run_plan.h"
#include "profile/synthetic.h"

namespace hawser::profile {

// This rank's synthetic micro-batches of one step, and their totals.
struct SyntheticStep {
  step::StepInput input;
  double targets = 0;  // of all ranks
  double tokens = 0, flops = 0;
  batches::MeanImbalance work;
  std::map<AttentionMask, double> pairs;  // by mask: visible query-key pairs, mean over context ranks
};

SyntheticStep synthetic_step(const DocumentMix& documents, const plan::RunPlan& plan, const models::Model& model,
                             const comm::MeshCoordinate& place);

}  // namespace hawser::profile
