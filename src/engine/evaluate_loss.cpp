#include "engine/evaluate_loss.h"

#include <algorithm>

#include "engine/feed.h"

namespace hawser::engine {

std::pair<double, std::int64_t> evaluate_loss(Session& session, const batches::BatchLoader& loader, std::int64_t steps,
                                              const std::function<bool(std::int64_t)>& go_on,
                                              std::vector<double>* statistics) {
  std::int64_t tokens = 0;
  double sum = 0;  // of micro-batches: float32 would lose digits over many
  for (std::int64_t s = 0; s < steps; ++s) {
    tokens += loader.step_targets(s);
    for (std::int64_t m = 0; m < loader.micro_batches(); ++m) {
      step::StepInput input;
      input.batches.push_back(to_host_batch(loader.load(s, m), loader.shape()));
      // Waiting for its end limits the queue: batches stay in memory until they are copied.
      const step::StepOutput output = session.run(step::Purpose::loss, input);
      sum += output.result->loss_sum.value();
      if (statistics == nullptr || output.auxiliary_statistics == nullptr) continue;
      statistics->resize(output.auxiliary_statistics->size());
      std::ranges::transform(*statistics, *output.auxiliary_statistics, statistics->begin(), std::plus());
    }
    if (go_on && !go_on(s + 1)) break;
  }
  session.synchronize();
  return {sum, tokens};
}

}  // namespace hawser::engine
