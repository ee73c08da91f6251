// `ToySteps`: what one rank of a mesh reads in steps over toy sequences.
#pragma once

#include <memory>

#include "comm/mesh.h"
#include "engine/feed.h"
#include "support/toy.h"

namespace hawser::testing {

constexpr std::int64_t kToyLength = 61, kToyDocuments = 5;

// A micro-batch of two sequences of kToyLength tokens on each data rank. heads: BatchSizes::context_heads.
inline batches::BatchSizes toy_batch(int context, bool packed = true, int heads = 1) {
  return {.sequences = 2,
          .sequence_length = kToyLength,
          .max_documents = packed ? kToyDocuments : 1,
          .context = context,
          .context_heads = heads,
          .chunks_per_rank = context == heads ? 1 : 2};
}

class ToySteps {
 public:
  // A global batch of `batch_size` sequences; sets the number of micro-batches to what that takes. `full`: no sequence
  // has padding.
  ToySteps(const models::Model& model, plan::LayoutChoices& layout, const comm::MeshCoordinate& place,
           std::int64_t batch_size, bool full = false)
      : ToySteps(plan::derive(layout, model), place, batch_size, full) {
    layout.micro_batches = static_cast<int>(loader_.micro_batches());
  }
  ToySteps(const plan::Layout& layout, const comm::MeshCoordinate& place, std::int64_t batch_size, bool full = false)
      : batch_(layout.batch),
        loader_(sequences(batch_, 4 * batch_size, full), batch_,
                {.data_rank = place.shard + layout.mesh.shard * place.replicate,
                 .data_ranks = layout.data_ranks(),
                 .context_rank = place.context,
                 .context_ranks = layout.mesh.context},
                {.global_batch_size = batch_size, .shuffle = false}) {}

  const batches::BatchLoader& loader() const { return loader_; }
  std::int64_t targets(std::int64_t step) const { return loader_.step_targets(step); }

  step::StepInput input(std::int64_t step) const {
    step::StepInput input;
    input.record.step = static_cast<std::int32_t>(step);
    input.record.inverse_targets = 1.0f / static_cast<float>(targets(step));
    for (std::int64_t m = 0; m < loader_.micro_batches(); ++m) {
      input.batches.push_back(engine::to_host_batch(loader_.load(step, m), batch_));
    }
    return input;
  }

 private:
  static std::shared_ptr<ToySequences> sequences(const batches::BatchShape& batch, std::int64_t count, bool full) {
    const std::uint64_t slack = full ? 1 : batch.max_documents > 1 ? 5 : 50;
    return std::make_shared<ToySequences>(count, batch.sequence_length, batch.max_documents, slack, batch.tables,
                                          batch.labels);
  }

  batches::BatchShape batch_;
  batches::BatchLoader loader_;
};

}  // namespace hawser::testing
