// What report/ tells of a run beside its numbers.
#pragma once

#include <optional>
#include <string>

#include "data/prepare.h"
#include "report/run_facts.h"
#include "train/session.h"

namespace hawser::train {

struct RunPlace {
  const Recipe& recipe;
  const Session& session;
  int ranks = 1;
  std::int64_t sequences = 0;  // of the training data
};

// Opens the token files for their numbers. UserError.
report::RunFacts run_facts(const RunPlace& place);

// The most that `ranks` such devices do in a second, by their maker's data sheet; none where it is not known.
std::optional<double> peak_flops(DeviceKind device, const std::string& name, DType compute, int ranks);

}  // namespace hawser::train
