// Facts about a run that report/ shows with its metrics.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/session.h"
#include "plan/cost_model.h"
#include "plan/run_plan.h"
#include "report/run_facts.h"

namespace hawser::train {

struct RunPlace {
  const plan::RunPlan& plan;
  const engine::Session& session;
  int ranks = 1;
  std::int64_t sequences = 0;             // in the training data
  std::int64_t validation_sequences = 0;  // of an evaluation; 0: no validation data
  std::int64_t held_out_sequences = 0;    // in the validation data
};

// Opens the token files to read their sizes. UserError.
report::RunFacts run_facts(const RunPlace& place);

// RunFacts::memory: of the kind of step that needs the most, such as the first step with delayed scaling.
std::vector<std::pair<std::string, std::int64_t>> memory_facts(const engine::Session& session);

// Of a step of this rank, as the plan predicts it; with pipeline stages, on the first rank, until all have ended it.
plan::StepTime predicted_step(const engine::Session& session);  // run_summary.cpp

// On the first rank of a run with pipeline stages: "4.1 GiB, 3.8 GiB".
std::string bytes_by_stage(const engine::Session& session);  // run_summary.cpp

// What a run prints before its first step, in lines of a name and what it is: model, data, steps, ranks, memory,
// output, predicted time. `resumes`: some of the steps may be done.
std::string run_summary(const RunPlace& place, bool resumes);  // run_summary.cpp

// Peak FLOP/s of `ranks` such devices according to the vendor's data sheet; nullopt if unknown.
std::optional<double> peak_flops(DeviceKind device, const std::string& name, DType compute, int ranks);

}  // namespace hawser::train
