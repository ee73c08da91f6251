#include "engine/evaluate_loss.h"

#include <algorithm>

#include "engine/feed.h"
#include "prepare/token_file.h"

namespace hawser::engine {

namespace {

std::shared_ptr<const step::HostBatch> without_tokens(const step::HostBatch& batch,
                                                      const std::vector<TableSpec>& tables) {
  auto out = std::make_shared<step::HostBatch>(batch);
  std::ranges::fill(out->labels, prepare::kIgnoredLabel);
  std::ranges::fill(out->token_mask, 0);
  for (const TableSpec& table : tables) {
    TableValues& values = out->tables.at(table.name);
    values = TableValues(table, values.elements() / table.width);
  }
  return out;
}

}  // namespace

std::pair<double, std::int64_t> evaluate_loss(Session& session, const batches::BatchLoader& loader, std::int64_t steps,
                                              const std::function<bool(std::int64_t)>& go_on,
                                              std::vector<double>* statistics,
                                              const std::function<void(std::int64_t)>& progress) {
  const std::int64_t together = session.layout().forward_micro_batches;
  std::int64_t tokens = 0;
  double sum = 0;  // of micro-batches: float32 would lose digits over many
  for (std::int64_t s = 0; s < steps; ++s) {
    tokens += loader.step_targets(s);
    for (std::int64_t first = 0; first < loader.micro_batches(); first += together) {
      step::StepInput input;
      for (std::int64_t m = first; m < std::min(first + together, loader.micro_batches()); ++m) {
        input.batches.push_back(to_host_batch(loader.load(s, m), loader.shape()));
      }
      if (static_cast<std::int64_t>(input.batches.size()) < together) {
        input.batches.resize(static_cast<std::size_t>(together),
                             without_tokens(*input.batches.back(), loader.shape().tables));
      }
      // Waiting for its end limits the queue: batches stay in memory until they are copied.
      const step::StepOutput output = session.run(step::Purpose::loss, input);
      sum += output.result->loss_sum.value();
      if (progress) progress(s * loader.micro_batches() + std::min(first + together, loader.micro_batches()));
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
