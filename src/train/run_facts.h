// Facts about a run that report/ shows with its metrics.
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
  std::int64_t sequences = 0;  // in the training data
};

// Opens the token files to read their sizes. UserError.
report::RunFacts run_facts(const RunPlace& place);

// Peak FLOP/s of `ranks` such devices according to the vendor's data sheet; nullopt if unknown.
std::optional<double> peak_flops(DeviceKind device, const std::string& name, DType compute, int ranks);

}  // namespace hawser::train
