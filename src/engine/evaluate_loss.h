// `evaluate_loss`: the loss of a session's model on a loader's batches.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "batches/batch_loader.h"
#include "engine/session.h"

namespace hawser::engine {

// Loss over `steps` steps (loader.steps() for all) of a loader without shuffling, with a session for Purpose::loss.
// Each step of the session takes Layout::forward_micro_batches of the loader's; those that are missing at the end of a
// loader's step have no tokens. Returns (sum of losses, targets). `go_on` is called with the number of finished steps;
// false, which it must return on every rank, ends the evaluation after them. `statistics`, if given, receives the sum
// of all StepOutput::auxiliary_statistics. `progress` is called with the number of finished micro-batches of the
// loader.
std::pair<double, std::int64_t> evaluate_loss(Session& session, const batches::BatchLoader& loader, std::int64_t steps,
                                              const std::function<bool(std::int64_t)>& go_on = nullptr,
                                              std::vector<double>* statistics = nullptr,
                                              const std::function<void(std::int64_t)>& progress = nullptr);

}  // namespace hawser::engine
