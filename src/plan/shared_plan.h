// A plan that one rank has made for a class of ranks, as text for the others. A class has the ranks of one pipeline
// stage: they run the same program on buffers of the same sizes, and need the same offsets.
#pragma once

#include <string>

#include "plan/plan.h"

namespace hawser::plan {

std::string plan_text(const RankPlan& plan);

// The plan without its trace, which only the rank that made it needs: to check it, and to predict costs. `program`:
// this rank's, as it makes it from the same layout; InternalError if the plan was made for another one.
RankPlan read_plan(const std::string& text, step::Purpose purpose, program::Program program);

}  // namespace hawser::plan
