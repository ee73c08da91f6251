#include "profile/synthetic_step.h"

#include "batches/batch_loader.h"
#include "engine/feed.h"

namespace hawser::profile {

SyntheticStep synthetic_step(const DocumentMix& documents, const plan::RunPlan& plan, const models::Model& model,
                             const comm::MeshCoordinate& place) {
  const plan::Layout& layout = plan.layout;
  const std::int64_t batch = plan.global_batch_size;
  const batches::BatchLoader loader(synthetic_sequences(documents, batch, plan.packing.sequence_length,
                                                        layout.batch.max_documents, model.vocabulary()),
                                    layout.batch,
                                    {.data_rank = place.shard + layout.mesh.shard * place.replicate,
                                     .data_ranks = layout.data_ranks(),
                                     .context_rank = place.context,
                                     .context_ranks = layout.mesh.context},
                                    {.global_batch_size = batch, .shuffle = false});
  SyntheticStep out{.targets = static_cast<double>(loader.step_targets(0))};
  for (std::int64_t m = 0; m < loader.micro_batches(); ++m) {
    const batches::MicroBatch micro_batch = loader.load(0, m);
    out.work.add(micro_batch.imbalance, micro_batch.pairs);
    out.tokens += static_cast<double>(micro_batch.tokens);
    std::map<AttentionMask, double> pairs;
    for (std::size_t i = 0; i < layout.batch.masks.size(); ++i) {
      pairs[layout.batch.masks[i].mask] = micro_batch.mask_pairs[i] / layout.batch.context;
    }
    for (const auto& [mask, count] : pairs) out.pairs[mask] += count;
    const double of_model =
        model.training_flops(layout.bounds.row_counts(), [&](const AttentionMask& mask) { return pairs.at(mask); });
    out.flops += of_model / layout.mesh.pipeline;  // the mean of the stages
    out.input.batches.push_back(engine::to_host_batch(micro_batch, loader.shape()));
  }
  return out;
}

}  // namespace hawser::profile
