#include "generate/passes.h"

#include <algorithm>

#include "engine/open_model.h"
#include "plan/plan.h"
#include "plan/target.h"

namespace hawser::generate {

std::vector<ShapeBucket> shape_buckets(const CacheSize& size) {
  std::vector<ShapeBucket> buckets{{1, 1}};
  for (std::int64_t rows = 8; rows <= kChunkRows; rows *= 2) {
    buckets.push_back({rows, 1});
    if (rows >= size.positions) break;
  }
  for (std::int64_t n = 2; n < 2 * size.sequences; n *= 2) {
    const std::int64_t sequences = std::min(n, size.sequences);
    buckets.push_back({sequences, sequences});
  }
  return buckets;
}

std::size_t bucket_for_rows(const std::vector<ShapeBucket>& buckets, std::int64_t rows) {
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].sequences == 1 && buckets[i].rows >= rows) return i;
  }
  HAWSER_CHECK(false, "no shape bucket for ", rows, " rows");
}

std::size_t bucket_for_sequences(const std::vector<ShapeBucket>& buckets, std::int64_t sequences) {
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].sequences >= sequences && buckets[i].rows == buckets[i].sequences) return i;
  }
  HAWSER_CHECK(false, "no shape bucket for ", sequences, " sequences");
}

std::vector<plan::Layout> pass_layouts(const Recipe& recipe, const models::Model& model, const CacheSize& size,
                                       int threads, DeviceKind device, const Ranks& ranks) {
  HAWSER_CHECK(ranks.mesh.context == 1, "generation with context parallelism");
  Recipe one = recipe;
  one.parallel = {};
  one.data = {};
  one.data.max_documents = 1;
  one.train.global_batch_size = 1;
  one.train.micro_batch_size = 1;
  std::vector<plan::Layout> layouts;
  for (const ShapeBucket& bucket : shape_buckets(size)) {
    one.data.sequence_length = bucket.rows;
    plan::LayoutChoices choices =
        plan::layout_choices(one, model, 1, plan::compute_dtype(one.precision, device), threads, device);
    choices.mesh = ranks.mesh;
    // Copies on tensor ranks are complete on each of them: no pass gathers weights, unless they are sharded.
    choices.shard_policy = choices.parts() > 1 ? ShardPolicy::parameters : ShardPolicy::optimizer;
    choices.cached = plan::CachedPass{.rows = bucket.rows,
                                      .sequences = bucket.sequences,
                                      .cache_rows = size.sequences * size.positions,
                                      .positions = size.positions};
    layouts.push_back(plan::derive(std::move(choices), model));
  }
  return layouts;
}

PassMemory planned_memory(const models::Model& model, const std::vector<plan::Layout>& layouts) {
  std::int64_t state = 0, arena = 0, scratch = 0, staging = 0, host_state = 0, host_arena = 0;
  for (const plan::Layout& layout : layouts) {
    const plan::RankPlan plan = plan::plan_rank(model, layout, step::Purpose::logits, /*rank=*/0);
    state = std::max(state, plan.state_bytes);
    arena = std::max(arena, plan.arena_bytes());
    scratch = plan.scratch_bytes;
    staging += plan.staging_bytes;
    host_state = std::max(host_state, plan.host_state_bytes);
    host_arena = std::max(host_arena, plan.host_bytes());
  }
  const std::int64_t pinned = staging + host_state + host_arena;
  const bool one_memory = layouts.front().device == DeviceKind::cpu;
  return {.device = state + arena + scratch + (one_memory ? pinned : 0), .pinned = pinned};
}

}  // namespace hawser::generate
