#include "train/evaluate.h"

#include <cmath>

#include "models/weights.h"
#include "train/feed.h"
#include "train/open_model.h"

namespace hawser::train {

namespace {

// A session's eval engine runs one micro-batch a step and adds up.
plan::Layout one_micro_batch(plan::Layout layout) {
  layout.micro_batches = 1;
  return layout;
}

}  // namespace

std::pair<double, std::int64_t> evaluate_loss(Session& session, const data::BatchLoader& loader, std::int64_t steps) {
  std::int64_t tokens = 0;
  step::StepOutput output;
  bool first = true;
  for (std::int64_t s = 0; s < steps; ++s) {
    tokens += loader.step_targets(s);
    for (std::int64_t m = 0; m < loader.micro_batches(); ++m) {
      step::StepInput input{.keep_loss_sum = !first};
      input.batches.push_back(to_host_batch(loader.load(s, m), loader.shape()));
      output = session.enqueue(step::Purpose::loss, input);
      host_wait(output.end);  // keeps the queue short: batches are held until they are copied
      first = false;
    }
  }
  session.synchronize();
  return {output.result->loss_sum, tokens};
}

Evaluation evaluate(const EvaluateRequest& request, comm::World* world, const std::function<void(Session&)>& after) {
  Problems problems;
  OpenModel open = open_model({.path = request.model}, "", problems);
  problems.throw_if_any();

  Recipe recipe = request.recipe;
  recipe.data.sequence_length = request.sequence_length;
  recipe.data.pack = Packing::documents;
  recipe.train.micro_batch_size = 1;
  recipe.train.global_batch_size = 1;
  const int ranks = world != nullptr ? world->size() : 1;
  const DType compute = compute_dtype(recipe.precision, DeviceKind::cpu);
  plan::Layout layout = plan::make_layout(recipe, *open.model, ranks, compute, request.threads);
  const MeshPlace place = place_of(world != nullptr ? world->rank().value() : 0, layout.mesh);
  const std::unique_ptr<data::Tokenizer> tokenizer = tokenizer_beside(request.model);
  const auto loader = data::jsonl_batch(request.data, tokenizer.get(), open.model->vocabulary(), layout.batch,
                                        {.data_rank = place.shard + layout.mesh.shard * place.replicate,
                                         .data_ranks = layout.data_ranks(),
                                         .context_rank = place.context,
                                         .context_ranks = layout.mesh.context});
  layout.batch = loader->shape();
  plan::set_bounds(layout);
  layout.micro_batches = static_cast<int>(loader->micro_batches());

  const step::Purpose purpose = request.gradient_norms ? step::Purpose::gradient_norms : step::Purpose::loss;
  const std::unique_ptr<comm::Mesh> mesh =
      world != nullptr ? comm::make_mpi_mesh(*world, layout.mesh, recipe.run.collective_timeout_s)
                       : comm::make_self_mesh();
  const std::unique_ptr<Device> device = make_cpu_device({.threads = request.threads});
  Session session(*open.model, request.gradient_norms ? layout : one_micro_batch(layout), *device, *mesh, {purpose},
                  recipe.memory.capacity);
  session.load(*open.weights);

  Evaluation result;
  if (!request.gradient_norms) {
    const auto [sum, tokens] = evaluate_loss(session, *loader, 1);
    result.tokens = tokens;
    result.loss = tokens > 0 ? sum / static_cast<double>(tokens) : 0.0;
    if (after) after(session);
    return result;
  }
  result.tokens = loader->step_targets(0);
  step::StepInput input;
  input.record.loss_scale = result.tokens > 0 ? 1.0f / static_cast<float>(result.tokens) : 0.0f;
  for (std::int64_t m = 0; m < loader->micro_batches(); ++m) {
    input.batches.push_back(to_host_batch(loader->load(0, m), loader->shape()));
  }
  const step::StepOutput output = session.enqueue(purpose, input);
  session.synchronize();
  result.loss = result.tokens > 0 ? output.result->loss_sum / static_cast<double>(result.tokens) : 0.0;
  const auto tensors = models::hf_tensors(*open.model);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    result.gradient_norms.emplace_back(tensors[i].name, (*output.parameter_norms)[i]);
  }
  if (after) after(session);
  return result;
}

}  // namespace hawser::train
