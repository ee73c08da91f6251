// R_mix: how long this GPU takes for the ops of a step alone, in the step's own mix. The third ceiling beside R_burst
// and R_alone (profile/roofline.h), and the one that a step can reach: GEMMs, attention and memory-bound kernels share
// one power limit, so that how fast each is depends on the others.
//
// Steps of some of the model's blocks, with its embedding and head, run back to back with real tensors on a mesh of one
// rank: no communication, all weights resident. Each instruction of the compute stream is timed. R_mix counts the
// blocks as often as the model has blocks like them, and updates for the rank's shard only. Recompute counts as in the
// step. A rank of a context group computes its share of the sequence's rows: here one rank computes all of them, and
// they count as 1 / context.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/power_meter.h"
#include "nn/flat.h"
#include "plan/run_plan.h"
#include "profile/synthetic.h"

namespace hawser::profile {

// The steps that are run for R_mix.
struct MixPlan {
  std::vector<int> blocks;               // of the full model, ascending
  std::unique_ptr<models::Model> model;  // of these blocks
  plan::RunPlan plan;
  std::vector<double> block_weights;  // by block of `model`: the number of blocks of the full model that it represents
  std::vector<double> flat_weights;   // by flat: the same, times the share of it that a rank updates
  double rows_weight = 1;             // share of the rows that are a rank's

  // How often a rank's step has the work of an instruction.
  double weight(const program::Instruction& instruction) const;
};

// `plan` and `model`: those of the step. `spec_of`: of the model. At most `blocks` blocks, but one at least of each
// kind (parameters, attention mask and checkpointing policy).
MixPlan plan_mix(const plan::RunPlan& plan, const models::Model& model, const nn::FlatSpecOf& spec_of, int blocks);

struct MixDuration {
  double settle_s = 0.5, measure_s = 2;
};

struct StepMix {
  double seconds = 0;   // R_mix
  int blocks = 0;       // that ran
  PowerUse power;       // of this GPU meanwhile
  std::string problem;  // why R_mix could not be measured; "": it was
};

// Measures on a device that runs nothing else, with 8 blocks, or fewer if their weights, optimizer state and
// activations do not fit in its memory.
StepMix measure_mix(const plan::RunPlan& plan, const models::Model& model, const nn::FlatSpecOf& spec_of,
                    const DocumentMix& documents, Device& device, const PowerMeter& meter,
                    const MixDuration& duration = {});

}  // namespace hawser::profile
