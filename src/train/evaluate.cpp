#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "data/sources.h"
#include "models/weights.h"
#include "plan/forecast.h"
#include "train/baseline.h"
#include "train/feed.h"
#include "train/open_model.h"

namespace hawser::train {

std::pair<double, std::int64_t> evaluate_loss(Session& session, const data::BatchLoader& loader, std::int64_t steps,
                                              const std::function<void(std::int64_t)>& progress) {
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
    if (progress) progress(s + 1);
  }
  session.synchronize();
  return {output.result->loss_sum, tokens};
}

namespace {

// The file as one batch. A tokenizer that cannot be read is a problem only where lines of text need it.
std::shared_ptr<const data::BatchLoader> open_data(const EvaluateRequest& request, std::int64_t vocabulary,
                                                   const data::BatchShape& shape, const data::BatchLayout& layout,
                                                   Problems& problems) {
  std::unique_ptr<data::Tokenizer> tokenizer;
  Problems of_tokenizer;
  try {
    tokenizer = tokenizer_beside(request.model);
  } catch (const UserError& error) {
    of_tokenizer.add_lines(error.what());
  }
  try {
    return data::jsonl_batch(request.data, tokenizer.get(), vocabulary, shape, layout);
  } catch (const UserError& error) {
    problems.add(of_tokenizer);
    problems.add_lines(error.what());
  }
  return nullptr;
}

// A token file, whose ids must lie in the vocabulary; null with a problem added.
std::shared_ptr<const data::TokenFile> open_tokens(const std::string& prefix, std::int64_t vocabulary,
                                                   Problems& problems) {
  try {
    auto file = std::make_shared<const data::TokenFile>(data::resolve_path(prefix, ""));
    file->check_ids(vocabulary);
    return file;
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
  return nullptr;
}

// A token file as one batch of running text.
std::shared_ptr<const data::BatchLoader> running_text(std::shared_ptr<const data::TokenFile> file,
                                                      std::int64_t vocabulary, data::BatchShape shape,
                                                      const data::BatchLayout& layout) {
  auto set = std::shared_ptr(data::chunked_sequences(std::move(file), shape.sequence_length, vocabulary));
  shape.max_documents = set->max_documents();
  const data::BatchOrder order{.global_batch_size = std::max<std::int64_t>(1, set->size()), .shuffle = false};
  return std::make_shared<const data::BatchLoader>(std::move(set), shape, layout, order);
}

// The data of a token file, and what is measured beside the loss.
void open_token_data(const EvaluateRequest& request, std::int64_t vocabulary, const data::BatchShape& shape,
                     const data::BatchLayout& layout, OpenEvaluation& input, Problems& problems) {
  input.tokens = open_tokens(request.data, vocabulary, problems);
  if (!request.bigram.empty()) input.bigram = open_tokens(request.bigram, vocabulary, problems);
  try {
    input.tokenizer = tokenizer_beside(request.model);
    if (input.tokens) input.loader = running_text(input.tokens, vocabulary, shape, layout);
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
}

void check_finite(double loss, const std::string& model) {
  if (std::isfinite(loss)) return;
  throw UserError(Problem{.file = model, .what = "the loss is not a finite number: are the weights sound?"});
}

}  // namespace

std::optional<OpenEvaluation> open_evaluation(const EvaluateRequest& request, int rank, int ranks, Problems& problems) {
  const std::size_t before = problems.size();
  OpenEvaluation input{.folder = request.model,
                       .recipe = request.recipe,
                       .threads = request.threads,
                       .gradient_norms = request.gradient_norms};
  Recipe& recipe = input.recipe;
  recipe.data.sequence_length = request.sequence_length;
  recipe.data.pack = Packing::documents;
  recipe.train.micro_batch_size = 1;
  recipe.train.global_batch_size = 1;
  const bool tokens = data::is_token_prefix(request.data, "");
  if (!tokens && !request.bigram.empty()) {
    problems.add({.file = request.data,
                  .what = "a bigram model is scored on a token file only",
                  .expected = "the prefix of a .bin and an .idx",
                  .hint = "hawser prepare, which makes them"});
  }
  input.open = open_model({.path = request.model}, "", problems);
  if (problems.size() != before) {  // the data is looked at all the same
    Recipe one_rank = recipe;
    one_rank.parallel = {};
    const std::int64_t vocabulary = input.open.model ? input.open.model->vocabulary() : 0;
    if (tokens) {
      open_token_data(request, vocabulary, data::batch_shape(one_rank), {}, input, problems);
    } else {
      open_data(request, vocabulary, data::batch_shape(one_rank), {}, problems);
    }
    return std::nullopt;
  }
  plan::Layout& layout = input.layout;
  layout = plan::make_layout(recipe, *input.open.model, ranks, compute_dtype(recipe.precision, DeviceKind::cpu),
                             request.threads);
  const MeshPlace place = place_of(rank, layout.mesh);
  const data::BatchLayout part{.data_rank = place.shard + layout.mesh.shard * place.replicate,
                               .data_ranks = layout.data_ranks(),
                               .context_rank = place.context,
                               .context_ranks = layout.mesh.context};
  if (tokens) {
    open_token_data(request, input.open.model->vocabulary(), layout.batch, part, input, problems);
  } else {
    input.loader = open_data(request, input.open.model->vocabulary(), layout.batch, part, problems);
  }
  if (problems.size() != before) return std::nullopt;
  layout.batch = input.loader->shape();
  plan::set_bounds(layout);
  layout.micro_batches = static_cast<int>(input.loader->micro_batches());
  if (input.loader->step_targets(0) == 0) {
    problems.add({.file = request.data,
                  .what = "no token to predict",
                  .expected = "a sequence of two tokens or more, and labels that are not all -100",
                  .hint = request.sequence_length < 2 ? "--sequence-length 2 or more" : ""});
    return std::nullopt;
  }
  plan::Machine machine = plan::this_machine();
  machine.ranks = request.ranks_here;
  plan::check_capacity(recipe, *input.open.model, layout,
                       request.gradient_norms ? step::Purpose::gradient_norms : step::Purpose::loss,
                       "a shorter --sequence-length, or more --ranks", machine);
  return input;
}

Evaluation evaluate(const EvaluateRequest& request, comm::World* world, const std::function<void(Session&)>& after) {
  Problems problems;
  auto input = open_evaluation(request, world != nullptr ? world->rank().value() : 0,
                               world != nullptr ? world->size() : 1, problems);
  problems.throw_if_any();
  return evaluate(*input, world, after);
}

Evaluation evaluate(OpenEvaluation& input, comm::World* world, const std::function<void(Session&)>& after) {
  const plan::Layout& layout = input.layout;
  const data::BatchLoader& loader = *input.loader;
  const step::Purpose purpose = input.gradient_norms ? step::Purpose::gradient_norms : step::Purpose::loss;
  const std::unique_ptr<comm::Mesh> mesh =
      world != nullptr ? comm::make_mpi_mesh(*world, layout.mesh, input.recipe.run.collective_timeout_s)
                       : comm::make_self_mesh();
  const std::unique_ptr<Device> device = make_cpu_device({.threads = input.threads});
  Session session(*input.open.model, layout, *device, *mesh, {purpose}, input.recipe.memory.capacity);
  session.load(*input.open.weights);

  Evaluation result;
  if (input.tokens && input.bigram)
    result.bigram_loss = bigram_loss(*input.bigram, *input.tokens, input.open.model->vocabulary());
  if (!input.gradient_norms) {
    const auto [sum, tokens] = evaluate_loss(session, loader, 1);
    result.tokens = tokens;
    result.loss = sum / static_cast<double>(tokens);
    check_finite(result.loss, input.folder);
    if (const std::int64_t bytes = input.tokens && input.tokenizer ? text_bytes(*input.tokens, *input.tokenizer) : 0)
      result.bits_per_byte = sum / std::numbers::ln2 / static_cast<double>(bytes);
    if (after) after(session);
    return result;
  }
  result.tokens = loader.step_targets(0);
  step::StepInput step;
  step.record.loss_scale = 1.0f / static_cast<float>(result.tokens);
  for (std::int64_t m = 0; m < loader.micro_batches(); ++m) {
    step.batches.push_back(to_host_batch(loader.load(0, m), loader.shape()));
  }
  const step::StepOutput output = session.enqueue(purpose, step);
  session.synchronize();
  result.loss = output.result->loss_sum / static_cast<double>(result.tokens);
  check_finite(result.loss, input.folder);
  const auto tensors = models::hf_tensors(*input.open.model);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    result.gradient_norms.emplace_back(tensors[i].name, (*output.parameter_norms)[i]);
  }
  if (after) after(session);
  return result;
}

}  // namespace hawser::train
