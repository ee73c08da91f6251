#include "evaluate/evaluate.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "config/config.h"
#include "engine/evaluate_loss.h"
#include "engine/feed.h"
#include "engine/gemm_algorithms.h"
#include "engine/gradient_norms.h"
#include "engine/load_state.h"
#include "engine/model_changes.h"
#include "engine/rank_sync.h"
#include "engine/run_state.h"
#include "evaluate/baseline.h"
#include "evaluate/eval_data.h"
#include "io/files.h"
#include "io/json.h"
#include "models/peft.h"
#include "models/weights.h"
#include "plan/forecast.h"
#include "plan/run_plan.h"

namespace hawser::evaluate {

namespace {

// Fills settings that the user did not give from the recipe of the checkpoint's run.
void lay_under(const std::string& json, EvaluateRequest& request, EvalDataRequest& data) {
  const auto stored = io::json_or_null(json);
  if (!stored.is_object()) return;
  const auto number = [&](const char* key) {
    const auto value = stored.value(nlohmann::json::json_pointer(key), nlohmann::json());
    return value.is_number_integer() ? value.get<std::int64_t>() : 0;
  };
  if (request.sequence_length == 0) request.sequence_length = number("/data/sequence_length");
  request.recipe.data.max_documents = number("/data/max_documents");
  const auto word = [&](const char* key) { return stored.value(nlohmann::json::json_pointer(key), nlohmann::json()); };
  if (data.chat_template.empty()) data.chat_template = engine::stored_chat_template(json);
  const bool own_names = request.recipe.places.contains("data.columns") || request.recipe.places.contains("data.roles");
  if (const Recipe before = stored_section(json, "data"); !own_names) {
    data.names = {.columns = before.data.columns, .roles = before.data.roles};
  }
  const auto date = word("/data/template_date");
  if (data.template_date.empty() && date.is_string()) data.template_date = date.get<std::string>();
  if (word("/data/pack") == "chunks") data.across_documents = true;
  if (word("/data/long_documents") == "truncate") data.long_documents = LongDocuments::truncate;
  if (word("/data/long_documents") == "drop") data.long_documents = LongDocuments::drop;
  if (!request.recipe.places.contains("precision.compute") && word("/precision/compute") == "bf16") {
    request.recipe.precision.compute = ComputePrecision::bf16;
  }
}

void check_finite(double loss, const std::string& model) {
  if (std::isfinite(loss)) return;
  throw UserError(Problem{.file = model, .what = "the loss is not finite; check the weights"});
}

// The stored choices of the checkpoint's run, so that the result equals the run's own evaluation.
std::vector<engine::StoredChoices> stored_choices(const engine::OpenModel& open) {
  if (!open.checkpoint) return {};
  return {{engine::run_state_of(open.checkpoint->metadata()).gemm_algorithms, open.checkpoint->folder()}};
}

// The model's own loss includes that of its routers.
bool reports_router_loss(const models::Model& model) {
  return std::ranges::any_of(model.description().blocks,
                             [](const models::BlockDescription& block) { return block.moe && block.moe->reported; });
}

step::Purpose purpose_of(bool gradient_norms, const models::Model& model) {
  return gradient_norms ? gradient_purpose(model) : step::Purpose::loss;
}

void expect_unchanged(const OpenEvaluation& input) {
  if (input.tokens) input.tokens->expect_unchanged();
  if (input.bigram) input.bigram->expect_unchanged();
}

// To check data for which no sequence length is known.
constexpr std::int64_t kAnyLength = 1024;

}  // namespace

std::optional<OpenEvaluation> open_evaluation(const EvaluateRequest& asked, int rank, int ranks, Problems& problems) {
  const std::size_t before = problems.size();
  EvaluateRequest request = asked;
  EvalDataRequest data{
      .data = request.data,
      .bigram = request.bigram,
      .chat_template = request.recipe.data.chat_template,
      .template_date = request.recipe.places.contains("data.template_date") ? request.recipe.data.template_date : "",
      .names = {.columns = request.recipe.data.columns, .roles = request.recipe.data.roles},
      .across_documents = request.across_documents};
  OpenEvaluation input{.folder = request.model,
                       .data = request.data,
                       .threads = request.threads,
                       .device = request.device,
                       .gradient_norms = request.gradient_norms};
  engine::ModelChanges changes = engine::on_rank(engine::changes_for_evaluation(), request.recipe, rank);
  changes.base = request.recipe;
  changes.averages = request.averages;
  input.open = engine::open_trained_model(request.model, problems, changes, request.adapters);
  lay_under(input.open.recipe, request, data);
  if (data.chat_template.empty()) data.chat_template = input.open.templates;
  input.across_documents = data.across_documents;
  // Without the model, it is unknown whether its run has one.
  const bool has_length = request.sequence_length > 0;
  if (!has_length && problems.size() == before && accepted(request.recipe, {"data.sequence_length"})) {
    problems.add({.what = "eval: --sequence-length is missing", .hint = "hawser eval --help"});
  }
  data.tokenizer = input.open.tokenizer;
  data.vocabulary = input.open.model ? input.open.model->vocabulary() : 0;
  Recipe& recipe = input.recipe;
  recipe = request.recipe;
  recipe.data.sequence_length = has_length ? request.sequence_length : kAnyLength;
  recipe.data.pack = Packing::documents;
  recipe.train.micro_batch_size = 1;
  recipe.train.global_batch_size = 1;
  data.max_documents = plan::packing_of(recipe.data).max_documents;
  const auto take = [&input](EvalData&& opened) {
    input.loader = std::move(opened.loader);
    input.tokens = std::move(opened.tokens);
    input.bigram = std::move(opened.bigram);
    input.tokenizer = std::move(opened.tokenizer);
    input.note = std::move(opened.note);
  };
  if (problems.size() != before || !has_length) {  // the data are checked in any case
    data.model_unknown = input.open.model == nullptr;
    open_eval_data(data, {batches::batch_sizes(plan::packing_of(recipe.data), recipe.train.micro_batch_size, 1)}, {},
                   problems);
    return std::nullopt;
  }
  const models::Model& model = *input.open.model;
  plan::check_loss(recipe, model, request.device.kind);
  plan::LayoutChoices choices =
      plan::layout_choices(recipe, model, ranks, plan::compute_dtype(recipe.precision, request.device.kind),
                           request.threads, request.device.kind);
  plan::Layout& layout = input.layout;
  layout = plan::derive(choices, model);
  const comm::MeshCoordinate place = comm::coordinate_of(rank, layout.mesh);
  const batches::BatchLayout part{.data_rank = place.shard + layout.mesh.shard * place.replicate,
                                  .data_ranks = layout.data_ranks(),
                                  .context_rank = place.context,
                                  .context_ranks = layout.mesh.context};
  take(open_eval_data(data, layout.batch, part, problems));
  if (problems.size() != before) return std::nullopt;
  // Bytes and the bigram model count all tokens, so the loss must be of all of them, too.
  input.all_text = input.tokens && !input.tokens->has_labels() && data.long_documents == LongDocuments::split;
  if (input.bigram && !input.all_text) {
    problems.add({.file = request.data,
                  .what = "a bigram model has no loss to compare with: not all tokens of this file are predicted",
                  .at = "--bigram",
                  .hint = "data without labels, of a run with data.long_documents: split"});
    return std::nullopt;
  }
  choices.batch_sizes = input.loader->shape();  // of what the data have
  choices.micro_batches = static_cast<int>(input.loader->micro_batches());
  layout = plan::derive(std::move(choices), model);
  if (input.loader->step_targets(0) == 0) {
    problems.add({.file = request.data,
                  .what = "no token to predict",
                  .expected = "a sequence of two tokens or more, and labels that are not all -100",
                  .hint = request.sequence_length < 2 ? "--sequence-length 2 or more" : ""});
    return std::nullopt;
  }
  if (!problems.empty()) return std::nullopt;  // the ranks, the mesh or the device are not those of the run
  plan::Machine machine = plan::this_machine();
  machine.ranks = request.ranks_here;
  plan::check_capacity(recipe, model, layout, purpose_of(request.gradient_norms, model),
                       "a shorter --sequence-length, or more --ranks", machine, plan::target_of(request.device.kind));
  return input;
}

step::Purpose gradient_purpose(const models::Model& model) {
  return reports_router_loss(model) ? step::Purpose::gradient_norms_of_part : step::Purpose::gradient_norms;
}

Evaluation evaluate(const EvaluateRequest& request, comm::World* world,
                    const std::function<void(engine::Session&)>& after) {
  Problems problems;
  auto input = open_evaluation(request, world != nullptr ? world->rank().value() : 0,
                               world != nullptr ? world->size() : 1, problems);
  problems.throw_if_any();
  return evaluate(*input, world, after);
}

namespace {

constexpr std::int64_t kMaxConfig = 1 << 20;

// Each rank reads model and data itself, and their files may be replaced while the ranks start, or differ by host.
// While a run continues, its ranks may find different checkpoints.
void expect_equal_inputs(const OpenEvaluation& input, comm::World* world) {
  if (world == nullptr || world->size() == 1) return;
  const auto expect = [&](const std::string& mine, const Problem& problem) {
    const std::vector<std::string> all = world->all_gather_strings(mine);
    if (std::ranges::any_of(all, [&](const std::string& other) { return other != all.front(); })) {
      throw UserError(problem);
    }
  };
  const std::string checkpoint = input.open.checkpoint ? input.open.checkpoint->folder() : "";
  expect(checkpoint, {.file = checkpoint.empty() ? input.folder : checkpoint,
                      .what = "ranks found different checkpoints",
                      .hint = "the path of one of them"});
  const plan::Layout& layout = input.layout;
  const comm::MeshSizes& mesh = layout.mesh;
  expect(cat(layout.batch.sequence_length, " ", layout.batch.max_documents, " ", layout.micro_batches, " ",
             to_string(layout.compute), " ", mesh.tensor, " ", mesh.context, " ", mesh.context_heads, " ",
             layout.ring_attention, " ", mesh.shard, " ", mesh.replicate, " ", input.gradient_norms,
             input.across_documents),
         {.what = "eval: ranks have different options", .hint = "the same command for all ranks"});
  if (!input.open.checkpoint) {
    expect(io::read_text(models::config_path(input.folder), kMaxConfig),
           {.file = models::config_path(input.folder),
            .what = "ranks read different models",
            .hint = "one model for all ranks, which does not change during the start"});
  }
  std::string tokens;
  engine::take_time(world, [&] { tokens = std::to_string(input.loader->step_hash(0)); });
  expect(tokens, {.file = input.data,
                  .what = "ranks read different data",
                  .hint = "one file for all ranks, which does not change during the start"});
}

}  // namespace

Evaluation evaluate(OpenEvaluation& input, comm::World* world, const std::function<void(engine::Session&)>& after) {
  const plan::Layout& layout = input.layout;
  expect_equal_inputs(input, world);
  const batches::BatchLoader& loader = *input.loader;
  const step::Purpose purpose = purpose_of(input.gradient_norms, *input.open.model);
  const std::unique_ptr<Device> device = engine::make_device(input.device, input.threads);
  const std::unique_ptr<comm::Mesh> mesh =
      engine::make_mesh(world, layout.mesh, input.recipe.run.collective_timeout_s, *device);
  Evaluation result;
  const auto note = [&](const std::string& line) { result.notes.push_back(line); };
  // Measuring algorithms takes as long as some micro-batches.
  constexpr std::int64_t kWorthMeasuring = 16;
  engine::choose_gemm_algorithms(*input.open.model, layout, *device, world,
                                 {.measure = !layout.deterministic && loader.micro_batches() >= kWorthMeasuring,
                                  .purpose = purpose,
                                  .stored = [&] { return stored_choices(input.open); }},
                                 note);
  const bool routers = reports_router_loss(*input.open.model);
  std::vector<step::Purpose> purposes{purpose};
  if (routers && input.gradient_norms) purposes.push_back(step::Purpose::loss);
  engine::Session session(*input.open.model, layout, *device, *mesh, purposes, input.recipe.memory.capacity,
                          {.host_capacity = input.recipe.memory.host_capacity});
  load_weights(session, input.open);
  for (const std::string& line : session.notes()) note(line);
  if (input.tokens && input.bigram) {
    result.bigram_loss =
        bigram_loss(*input.bigram, *input.tokens, input.open.model->vocabulary(), input.across_documents);
  }
  std::vector<double> statistics;
  const auto show = [&](std::int64_t done) {
    if (input.progress) input.progress(static_cast<double>(done) / static_cast<double>(loader.micro_batches()));
  };
  const auto evaluate_all = [&] { return engine::evaluate_loss(session, loader, 1, nullptr, &statistics, show); };
  const auto add_router_loss = [&] {
    if (!routers) return;
    result.router_loss = input.open.model->router_loss()->of(statistics);
    result.loss += *result.router_loss;
  };
  if (!input.gradient_norms) {
    const auto [sum, tokens] = evaluate_all();
    result.tokens = tokens;
    result.loss = sum / static_cast<double>(tokens);
    add_router_loss();
    expect_unchanged(input);
    check_finite(result.loss, input.folder);
    for (const std::string& line : engine::slow_kernels(session.stream())) note(line);
    if (const std::int64_t bytes =
            input.all_text && input.tokenizer ? text_bytes(*input.tokens, *input.tokenizer, input.across_documents) : 0)
      result.bits_per_byte = sum / std::numbers::ln2 / static_cast<double>(bytes);
    if (after) after(session);
    return result;
  }
  result.tokens = loader.step_targets(0);
  if (routers) evaluate_all();
  step::StepInput step;
  step.auxiliary_statistics.assign(statistics.begin(), statistics.end());
  step.record.inverse_targets = 1.0f / static_cast<float>(result.tokens);
  for (std::int64_t m = 0; m < loader.micro_batches(); ++m) {
    step.batches.push_back(engine::to_host_batch(loader.load(0, m), loader.shape()));
  }
  const step::StepOutput output = session.run(purpose, step);
  result.loss = output.result->loss_sum.value() / static_cast<double>(result.tokens);
  add_router_loss();
  expect_unchanged(input);
  check_finite(result.loss, input.folder);
  for (const std::string& line : engine::slow_kernels(session.stream())) note(line);
  const engine::OpenModel& open = input.open;
  const bool adapted = open.lora || !open.adapters.empty();
  const std::string adapter = open.adapters.empty() ? "" : open.adapters.front().lora.name;
  for (const engine::TensorNorm& tensor : engine::gradient_norms(session, output)) {
    if ((adapted || !open.frozen.empty()) && !tensor.trainable) continue;
    result.gradient_norms.emplace_back(adapted ? models::peft_name(tensor.name, adapter) : tensor.name, tensor.norm);
  }
  if (after) after(session);
  return result;
}

}  // namespace hawser::evaluate
