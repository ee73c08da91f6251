// Cases of the files that have no MeshCase yet.
#pragma once

#include "mesh_case.h"

namespace hawser::testing {

struct Case {
  int context = 1, shard = 1, replicate = 1;
  bool sharded = true;
  int accumulation = 1;
  Checkpointing checkpointing = Checkpointing::none;
  bool delay_weight_gradients = false;
  int in_flight = 1;
  bool by_work = false;
  int head_groups = 1;
  int prefetch = 1;
  GradientAccumulation policy = GradientAccumulation::sharded;
  double random_delay_s = 0;
  bool tied = true;
  DType compute = DType::f32, reduce_dtype = DType::f32, kv_reduce_dtype = DType::f32;
  bool packed = true;        // else a sequence is one document
  std::int64_t missing = 0;  // sequences missing for a divisible global batch
  std::int64_t window = 0;   // of the second block's attention

  std::string text() const {
    return cat(
        "context ", context, " shard ", shard, " replicate ", replicate, sharded ? "" : " unsharded", " accumulation ",
        accumulation, " checkpointing ", static_cast<int>(checkpointing),
        delay_weight_gradients ? " delayed weights" : "", " in flight ", in_flight, by_work ? " by work" : "",
        " head groups ", head_groups, " prefetch ", prefetch, policy == GradientAccumulation::local ? " local" : "",
        compute == DType::bf16
            ? cat(" bf16, reduce_dtype ", to_string(reduce_dtype), ", kv_reduce_dtype ", to_string(kv_reduce_dtype))
            : "",
        packed ? "" : " unpacked", " missing ", missing, " window ", window);
  }
};

template <int = 0>
plan::LayoutChoices layout_of(const Case& c, const models::Model& model) {
  plan::LayoutChoices layout;
  layout.mesh = {.context = c.context, .shard = c.shard, .replicate = c.replicate, .shard_context = c.sharded};
  layout.batch_sizes = toy_batch(c.context, c.packed);
  if (c.by_work && c.context > 1) layout.batch_sizes.chunks_per_rank = 4, layout.batch_sizes.together = 2;
  if (c.by_work) layout.batch_sizes.split = batches::SequenceSplit::by_work;
  layout.compute = c.compute;
  layout.reduce_dtype = c.reduce_dtype;
  layout.kv_reduce_dtype = c.kv_reduce_dtype;
  layout.head_groups = c.head_groups;
  layout.prefetch = c.prefetch;
  layout.schedule.group = c.in_flight;
  layout.accumulation = c.policy;
  layout.policies.assign(static_cast<std::size_t>(model.layers()),
                         {.checkpointing = c.checkpointing, .delay_weight_gradients = c.delay_weight_gradients});
  return layout;
}

inline std::vector<plan::LayoutChoices> meshes(const models::Model& model) {
  std::vector<plan::LayoutChoices> layouts;
  const int world = the_world->size();
  for (int context = 1; context <= world; context *= 2) {
    for (int shard = 1; context * shard <= world; shard *= 2) {
      if (context * shard == 1 && world > 1) continue;
      plan::LayoutChoices layout =
          rank_layout({.context = context, .shard = shard, .replicate = world / (context * shard)});
      layout.batch_sizes = toy_batch(context);
      layout.policies.assign(static_cast<std::size_t>(model.layers()), {});
      layout.gradient_clip = 0.02;
      // Pairwise: each mesh has one dtype and one accumulation policy, and each combination of these has meshes.
      const std::size_t i = layouts.size() + static_cast<std::size_t>(world);
      layout.compute = i % 2 == 0 ? DType::f32 : DType::bf16;
      layout.accumulation = i / 2 % 2 == 0 ? GradientAccumulation::sharded : GradientAccumulation::local;
      layouts.push_back(std::move(layout));
    }
  }
  return layouts;
}

inline std::string text_of(const plan::LayoutChoices& layout) {
  return cat("context ", layout.mesh.context, " shard ", layout.mesh.shard, " replicate ", layout.mesh.replicate, " ",
             to_string(layout.compute), layout.accumulation == GradientAccumulation::local ? " local" : "");
}

// With active clipping.
template <int = 0>
plan::LayoutChoices toy_layout(comm::MeshSizes mesh, const models::Model& model) {
  plan::LayoutChoices layout = rank_layout(mesh);
  layout.batch_sizes = toy_batch(mesh.context, true, mesh.context_heads);
  layout.policies.assign(static_cast<std::size_t>(model.layers()), {});
  layout.gradient_clip = 0.02;
  layout.optimizer = toy_adamw();
  return layout;
}

// All factorisations of the world into context x shard x replicate, and an unsharded one per context degree.
inline std::vector<Case> cases_of_all_meshes() {
  std::vector<Case> cases;
  const int world = the_world->size();
  for (int context = 1; context <= world; context *= 2) {
    for (int shard = 1; context * shard <= world; shard *= 2) {
      cases.push_back({.context = context, .shard = shard, .replicate = world / (context * shard)});
    }
    cases.push_back({.context = context, .replicate = world / context, .sharded = false});
  }
  return cases;
}

}  // namespace hawser::testing
