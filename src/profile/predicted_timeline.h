// Timelines of a step as the plan predicts it, in the form of measured ones (profile/timeline.h).
//
//   const auto ranks = predicted_timeline(model, layout, plan::load_target("h200"), 1.0);  // of 4 pipeline stages
//   to_svg(ranks);                                                                          // four rows of passes
#pragma once

#include <string>
#include <vector>

#include "models/model.h"
#include "plan/layout.h"
#include "plan/target.h"
#include "profile/timeline.h"

namespace hawser::profile {

// By instruction: "forward block 3 mlp, micro-batch 2".
std::vector<std::string> instruction_names(const program::Program& program, const models::Model& model);

// Of the first rank of each pipeline stage, which plans the complete step: what stages wait for each other is in it.
// `model`: as a rank has it; rate_scale: as plan::step_time has it.
std::vector<RankTimeline> predicted_timeline(const models::Model& model, const plan::Layout& layout,
                                             const plan::Target& target, double rate_scale);

}  // namespace hawser::profile
