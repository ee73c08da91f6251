#include "plan/layout.h"

#include <algorithm>

#include "base/text.h"
#include "base/units.h"
#include "config/config.h"
#include "nn/precision/fp8_block_scaling.h"
#include "nn/precision/fp8_scaling.h"
#include "ops/attention/attention.h"
#include "ops/loss/linear_cross_entropy.h"
#include "parallel/make_seams.h"
#include "plan/candidate.h"
#include "plan/context_form.h"
#include "plan/make_optimizer.h"
#include "plan/pipeline_form.h"
#include "plan/run_plan.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::plan {

namespace {

// cuBLASLt multiplies FP8 matrices whose rows start at multiples of 16 bytes and whose sums have a multiple of 16
// terms. A micro-batch gets rows of padding for it.
constexpr int kFp8Multiple = 16;

// Of the model, and of the devices that multiply its matrices.
batches::BatchShape shape_of(const LayoutChoices& choices, const models::Model& model, int row_parts) {
  batches::BatchShape batch{choices.batch_sizes};
  const bool fp8 = choices.quantizer != nullptr && choices.device == DeviceKind::cuda;
  batch.row_multiple = row_parts * (fp8 ? kFp8Multiple : 1);
  batch.masks.clear();
  for (const auto& [mask, count] : model.masks()) {
    batch.masks.push_back({mask, static_cast<double>(count) / static_cast<double>(model.attention_layers())});
  }
  batch.all_row_ids = batch.ring() > 1 && model.drops_probabilities();
  batch.tables = model.description().tables;
  batch.labels = nn::labels_of(model.description().head);
  return batch;
}

step::BatchBounds bounds_of(const batches::BatchShape& batch, int row_parts) {
  step::BatchBounds b;
  b.row_parts = row_parts;
  b.context = batch.context;
  b.context_heads = batch.context_heads;
  b.rows = batch.local_rows();
  b.sequences = batch.sequences;
  const batches::SegmentBounds segments = batch.max_segments();
  b.diagonal = segments.diagonal;
  b.off_diagonal = segments.off_diagonal;
  b.source_tables = batch.source_segments;
  // One document per sequence, from its first row. Off-diagonal blocks of different sequences share no key.
  b.all_row_ids = batch.all_row_ids;
  b.uniform_diagonal = batch.equal_chunks() ? batch.chunk_length() : 0;
  b.off_diagonal_disjoint_keys = batch.chunks_per_rank == 1;
  // Full sequences of one document are the maximum; a diagonal block is at most one chunk.
  const double sequences = static_cast<double>(batch.sequences);
  const auto pairs = [](std::int64_t rows, const AttentionMask& mask) {
    return ops::visible_pairs(rows, rows, 0, mask.causal, mask.window);
  };
  b.masks.clear();
  for (const auto& [mask, share] : batch.masks) {
    // Without a causal mask, all ranks' keys are in one list.
    const bool diagonal_blocks = mask.causal || batch.ring() == 1;
    const double diagonal =
        diagonal_blocks ? sequences * batch.chunks_per_rank * pairs(batch.chunk_length(), mask) : 0.0;
    b.masks.push_back({.mask = mask,
                       .halves = mask.causal && mask.window > 0 && batch.splits_windows(),
                       .sources = batch.sources(mask),
                       .diagonal_pairs = diagonal,
                       .off_diagonal_pairs = sequences * pairs(batch.padded_length(), mask) / batch.ring() - diagonal});
  }
  return b;
}

// A pass reads new rows, and keys and values of the cache.
void bound_pass(const CachedPass& pass, step::BatchBounds& bounds) {
  bounds.rows = pass.rows;
  bounds.diagonal = pass.sequences;
  bounds.uniform_diagonal = 0;
  for (step::MaskBounds& m : bounds.masks) {
    const std::int64_t keys = m.mask.window > 0 ? std::min(m.mask.window, pass.positions) : pass.positions;
    m.diagonal_pairs = static_cast<double>(pass.rows) * static_cast<double>(keys);
  }
}

}  // namespace

Layout derive(LayoutChoices choices, const models::Model& model) {
  comm::MeshSizes& mesh = choices.mesh;
  if (choices.partition.stages > 1) mesh.pipeline = choices.partition.stages;
  mesh.interleaved = choices.partition.model_chunks() > choices.partition.stages;
  mesh.tied = models::tied_stages(model, choices.partition);
  for (const models::BlockDescription& block : model.description().blocks) {
    mesh.kv_copies = std::max(mesh.kv_copies, block.attention.kv_copies);
  }
  if (choices.policies.empty()) choices.policies.resize(static_cast<std::size_t>(model.layers()));
  Layout layout(std::move(choices));
  const int row_parts = layout.sequence_parallel ? layout.mesh.tensor : 1;
  layout.batch = shape_of(layout, model, row_parts);
  layout.bounds = bounds_of(layout.batch, row_parts);
  if (layout.cached) bound_pass(*layout.cached, layout.bounds);
  return layout;
}

Checkpointing checkpointing_of(const MemoryRecipe& memory, int block) {
  if (block < std::ssize(memory.per_layer)) return memory.per_layer[static_cast<std::size_t>(block)];
  return is_automatic(memory) ? Checkpointing::none : memory.activation_checkpointing;
}

namespace {

// The weight of the layer's Linear at this site is in FP8.
bool in_fp8(const models::Model& model, int layer, nn::Site site) {
  const std::vector<int> weights = model.layer(layer).linear_weights(site);
  const auto count = std::ranges::count_if(weights, [&](int weight) {
    const models::ParamIndex& place = model.layer_params(layer)[static_cast<std::size_t>(weight)];
    return model.flat(place.flat).spec().fp8();
  });
  HAWSER_CHECK(count == 0 || count == static_cast<std::ptrdiff_t>(weights.size()), "layer ", layer, "'s ",
               to_string(site), ": a part of its weight is in FP8");
  return count > 0;
}

LinearFormat format_of(Fp8Scaling scaling) {
  switch (scaling) {
    case Fp8Scaling::delayed:
      return LinearFormat::fp8_delayed;
    case Fp8Scaling::current:
      return LinearFormat::fp8_current;
    case Fp8Scaling::block:
      return LinearFormat::fp8_block;
  }
  return LinearFormat::compute;
}

std::shared_ptr<const nn::Quantizer> make_quantizer(const Fp8Recipe& fp8) {
  if (fp8.scaling == Fp8Scaling::block) {
    return std::make_shared<nn::Fp8BlockScaling>(nn::Fp8BlockOptions{.margin = fp8.margin});
  }
  return std::make_shared<nn::Fp8Scaling>(
      nn::Fp8Options{.history = fp8.amax_history,
                     .most_recent = fp8.amax_algorithm == AmaxAlgorithm::most_recent,
                     .margin = fp8.margin,
                     .saturation_limit = static_cast<float>(fp8.saturation_limit)});
}

}  // namespace

void set_formats(LayoutChoices& choices, const models::Model& model, const Fp8Recipe& fp8) {
  choices.policies.resize(static_cast<std::size_t>(model.layers()));
  const LinearFormat format = format_of(fp8.scaling);
  for (int layer = 0; layer < model.layers(); ++layer) {
    nn::SavePolicy& policy = choices.policies[static_cast<std::size_t>(layer)];
    for (int s = 0; s < nn::kSites; ++s) {
      if (!in_fp8(model, layer, static_cast<nn::Site>(s))) continue;
      policy.formats[static_cast<std::size_t>(s)] = format;
      policy.fp8_inputs = true;
    }
  }
  choices.verify_every.reset();
  if (fp8.verify_every > 0) choices.verify_every = fp8.verify_every;
  choices.quantizer = make_quantizer(fp8);
}

DType default_reduce_dtype(DeviceKind device, DType compute) {
  return by_float(compute, DType::f32, device == DeviceKind::cuda ? DType::bf16 : DType::f32);
}

bool deterministic_of(const Recipe& recipe, DeviceKind device) {
  return recipe.run.deterministic.value_or(device != DeviceKind::cuda);
}

namespace {

// Grouped GEMMs read one scale for all rows of experts.
void check_block_scaling(const models::Model& model, const Recipe& recipe) {
  Problem problem = problem_at(recipe, "precision.fp8.scaling");
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      if (param.matrices == 0 || !flat.spec().quantized_on_use) continue;
      problem.what = "block scaling of experts is not supported";
      problem.expected = "delayed or current";
      problem.got = "block";
      problem.hint = "precision.fp8.scaling: delayed, or precision.fp8.exclude: [\".*experts.*\"]";
      throw UserError(problem);  // the other blocks have experts, too
    }
  }
}

// W of q and that of k and v are then two parameters with a scale each, and the scale of one rank is of all three.
void check_fp8_copies(const LayoutChoices& choices, const models::Model& model, const Recipe& recipe) {
  for (int layer = 0; layer < model.layers(); ++layer) {
    const nn::AttentionConfig* attention = model.attention(layer);
    if (attention == nullptr || attention->kv_copies == 1) continue;
    const nn::SavePolicy& policy = choices.policies[static_cast<std::size_t>(layer)];
    if (policy.format(nn::Site::qkv_projection) == LinearFormat::compute) continue;
    Problem problem = problem_at(recipe, "parallel.tensor_parallel_degree");
    const std::int64_t kv_heads = attention->kv_heads_slice.total;
    problem.what = "FP8 with more tensor ranks than key-value heads is not supported";
    problem.expected = cat("at most ", kv_heads);
    problem.got = cat(model.share().tensor.count);
    problem.hint =
        cat("parallel.tensor_parallel_degree: ", kv_heads, ", or precision.fp8.exclude: [q_proj, k_proj, v_proj]");
    throw UserError(problem);  // the other blocks have the same heads
  }
}

void check_fp8_sizes(const models::Model& model, const Recipe& recipe) {
  Problem problem = problem_at(recipe, "precision.compute");
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      if (!param.of_linear || !flat.spec().fp8()) continue;
      const std::int64_t rows = param.shape[0] / param.gemm_matrices();
      if (rows % kFp8Multiple == 0 && param.shape[1] % kFp8Multiple == 0) continue;
      problem.what = "FP8 on a GPU needs weights with rows and columns that are multiples of 16";
      problem.got = cat(param.name, " ", Shape{rows, param.shape[1]}.text());
      problem.hint = "precision.compute: bf16";
      if (model.share().tensor.count > 1) problem.hint += ", or a smaller parallel.tensor_parallel_degree";
      throw UserError(problem);  // the other blocks have the same sizes
    }
  }
}

}  // namespace

Parallelism parallelism_of(const Recipe& recipe, const models::Model& model, int world) {
  const ParallelRecipe& p = recipe.parallel;
  const ContextForm form = context_form(p, model.whole());
  const models::RankShare share = share_of(p, 0);
  const int data_and_context = world / p.pipeline_parallel_degree / p.tensor_parallel_degree;
  Parallelism parallelism{.mesh = comm::mesh_sizes(data_and_context, p.hybrid_shard_degree, p.context_parallel_degree),
                          .tensor_modules = share.modules,
                          .sequence_parallel = share.sequence_parallel,
                          .ring_attention = form.ring_attention()};
  parallelism.mesh.tensor = p.tensor_parallel_degree;
  parallelism.mesh.context_heads = form.context_heads;
  parallelism.mesh.pipeline = p.pipeline_parallel_degree;
  if (p.pipeline_parallel_degree == 1) return parallelism;
  parallelism.partition = partition_of(p, model.blocks());
  parallelism.schedule = schedule_of(p.pipeline_schedule, p.pipeline_parallel_degree, virtual_stages_of(p));
  return parallelism;
}

std::string tensor_text(const Parallelism& parallelism) {
  if (parallelism.mesh.tensor == 1) return "";
  const models::TensorModules& modules = parallelism.tensor_modules;
  std::vector<std::string> of;
  if (modules.attention) of.emplace_back("attention");
  if (modules.mlp) of.emplace_back("mlp");
  if (modules.vocabulary) of.emplace_back("vocabulary");
  return cat("tensor ", parallelism.mesh.tensor, modules == models::TensorModules() ? "" : " of " + joined(of, " and "),
             parallelism.sequence_parallel ? ", sequence parallel" : "");
}

models::RankShare share_of(const ParallelRecipe& recipe, int rank) {
  const int ranks = recipe.tensor_parallel_degree;
  const auto has = [&](const char* name) { return std::ranges::count(recipe.tensor_parallel_modules, name) > 0; };
  return {.tensor = {.index = rank % ranks, .count = ranks},  // innermost (comm::Mesh)
          .modules = {.attention = has("attention"), .mlp = has("mlp"), .vocabulary = has("vocabulary")},
          .sequence_parallel = recipe.sequence_parallel && ranks > 1};
}

LayoutChoices layout_choices(const Recipe& recipe, const models::Model& model, int world, DType compute, int threads,
                             DeviceKind device) {
  return layout_choices(recipe, model, parallelism_of(recipe, model, world), compute, threads, device);
}

void check_loss(const Recipe& recipe, const models::Model& model, DeviceKind device) {
  const nn::HeadConfig& head = model.description().head;
  const bool sliced = head.vocabulary_slice.total > 0;
  if (device != DeviceKind::cuda || sliced || head.columns() <= ops::kCudaMaxVocabulary) return;
  const Problem place = problem_at(recipe, recipe.model.path.empty() ? "model.config" : "model.path");
  Problems problems;
  problems.add({.file = place.file,
                .what = "the vocabulary is too large for the loss on a GPU",
                .expected = cat("at most ", ops::kCudaMaxVocabulary, " tokens"),
                .got = cat(head.columns()),
                .at = place.at,
                .hint = "run.device: cpu"});
  problems.throw_if_any();
}

std::optional<double> gradient_clip_of(const Recipe& recipe) {
  const double norm = recipe.optimizer.gradient_clip;
  return norm > 0 ? std::optional(norm) : std::nullopt;
}

Layout make_layout(const Recipe& recipe, const models::Model& model, int world, DType compute, int threads,
                   DeviceKind device) {
  check_loss(recipe, model, device);
  return derive(layout_choices(recipe, model, world, compute, threads, device), model);
}

LayoutChoices layout_choices(const Recipe& recipe, const models::Model& model, const Parallelism& parallelism,
                             DType compute, int threads, DeviceKind device) {
  LayoutChoices choices{parallelism};
  choices.device = device;
  choices.reduce_dtype = choices.kv_reduce_dtype = default_reduce_dtype(device, compute);
  const ParallelRecipe& p = recipe.parallel;
  if (parallelism.mesh.pipeline > 1) choices.forward_micro_batches = kMicroBatchesAStage * parallelism.mesh.pipeline;
  choices.compute = compute;
  choices.threads = threads;
  choices.batch_sizes = batches::batch_sizes(
      packing_of(recipe.data), recipe.train.micro_batch_size, parallelism.mesh.context,
      p.context_chunks > 0 ? std::optional(p.context_chunks) : std::nullopt, parallelism.mesh.context_heads);
  choices.batch_sizes.source_segments = parallelism.ring_attention && choices.batch_sizes.ring() > 1;
  if (device == DeviceKind::cuda && choices.batch_sizes.context > 1) choices.head_groups = kCudaHeadGroups;
  choices.micro_batches = static_cast<int>(std::max<std::int64_t>(
      1, ceil_div(recipe.train.global_batch_size, choices.data_ranks() * choices.batch_sizes.sequences)));
  choices.prefetch = p.prefetch;
  choices.accumulation = p.gradient_accumulation;
  choices.shard_policy = p.sharding;
  choices.offload_window = static_cast<int>(recipe.memory.activation_offload_window);
  choices.policies.resize(static_cast<std::size_t>(model.layers()));
  apply(candidate_of(recipe, parallelism, model.blocks()), model, choices);
  if (recipe.precision.compute == ComputePrecision::fp8) {
    check_block_scaling(model, recipe);
    set_formats(choices, model, recipe.precision.fp8);
    check_fp8_copies(choices, model, recipe);
  }
  choices.optimizer = make_optimizer(recipe.optimizer);
  check_state_blocks(recipe, model, *choices.optimizer);
  choices.gradient_clip = gradient_clip_of(recipe);
  choices.seed = recipe.train.seed;
  choices.deterministic = deterministic_of(recipe, device);
  if (choices.quantizer != nullptr && device == DeviceKind::cuda) check_fp8_sizes(model, recipe);
  return choices;
}

int micro_batches_of(const Layout& layout, step::Purpose purpose) {
  if (purpose == step::Purpose::logits) return 1;
  return purpose == step::Purpose::loss ? layout.forward_micro_batches : layout.micro_batches;
}

std::int64_t logit_rows(const Layout& layout) {
  return layout.cached ? layout.cached->sequences : 1;
}

step::ScheduleOptions schedule_options(const Layout& layout, step::Purpose purpose, int stage) {
  HAWSER_CHECK(layout.mesh.pipeline == layout.partition.stages, "a mesh of ", layout.mesh.pipeline,
               " pipeline stages for a model over ", layout.partition.stages);
  const bool backward = !step::forward_only(purpose);
  const int micro_batches = micro_batches_of(layout, purpose);
  const auto unsharded = [&](Domain domain) { return layout.shards() && layout.mesh.shard_ranks(domain) == 1; };
  return {.purpose = purpose,
          .micro_batches = micro_batches,
          .partition = layout.partition,
          .stage = stage,
          .passes = backward ? layout.schedule.of_stage(layout.partition, stage, micro_batches)
                             : step::forward_passes(micro_batches, layout.partition, stage),
          .policies = layout.policies,
          .offload_window = layout.offload_window,
          .shard = {.gather = layout.gathers_weights(),
                    .gather_updated = layout.shards() && !layout.gathers_weights(),
                    .reduce = layout.shards(),
                    .replicas = layout.mesh.replicas() > 1,
                    .prefetch = layout.prefetch,
                    .accumulation = layout.accumulation},
          .unsharded = {unsharded(Domain::sliced), unsharded(Domain::replicated), unsharded(Domain::expert),
                        unsharded(Domain::kv_copies)},
          .copies = layout.mesh.tensor,
          .optimizer = layout.optimizer.get(),
          .host = layout.host,
          .verification = layout.verification,
          .quantizes = layout.quantizer != nullptr};
}

bool needs_calibration(const Layout& layout) {
  return layout.quantizer != nullptr && layout.quantizer->calibrates() && !scaled_sites(layout).empty();
}

Layout of_refused_steps(Layout layout) {
  layout.runs_refused = true;
  for (nn::SavePolicy& policy : layout.policies) policy.checkpointing = Checkpointing::full;
  return layout;
}

Layout calibrating(Layout layout) {
  if (layout.may_refuse()) layout = of_refused_steps(std::move(layout));
  layout.calibrates = true;
  return layout;
}

Layout verified(Layout layout, step::Verification verification) {
  if (layout.may_refuse()) layout = of_refused_steps(std::move(layout));
  layout.verification = verification;
  if (verification == step::Verification::reference) {
    for (nn::SavePolicy& policy : layout.policies) policy.fp8_inputs = false;
  }
  return layout;
}

// A quantizer reads which rows are tokens.
bool quantizes_operands(const Layout& layout) {
  return std::ranges::any_of(layout.policies, [](const nn::SavePolicy& policy) {
    return std::ranges::any_of(policy.formats, [](LinearFormat format) { return format != LinearFormat::compute; });
  });
}

std::vector<step::ScaledSite> scaled_sites(const Layout& layout) {
  std::vector<step::ScaledSite> sites;
  for (std::size_t layer = 0; layer < layout.policies.size(); ++layer) {
    for (int s = 0; s < nn::kSites; ++s) {
      const auto site = static_cast<nn::Site>(s);
      if (layout.policies[layer].format(site) != LinearFormat::fp8_delayed) continue;
      for (const nn::Operand operand : {nn::Operand::x, nn::Operand::dy}) {
        sites.push_back({.layer = static_cast<int>(layer), .site = site, .operand = operand});
      }
    }
  }
  return sites;
}

step::StateOptions state_options(const Layout& layout, comm::Mesh& mesh, bool optimizer) {
  const auto shard = [&](Domain domain) {
    return EqualShard{.index = mesh.shard(domain).index(), .count = mesh.shard(domain).size()};
  };
  return {.shards = {shard(Domain::sliced), shard(Domain::replicated), shard(Domain::expert), shard(Domain::kv_copies)},
          .gathers_weights = layout.gathers_weights(),
          .compute = layout.compute,
          .optimizer = optimizer ? layout.optimizer : nullptr,
          .quantizer = layout.quantizer,
          .scaled_sites = scaled_sites(layout),
          .host = layout.host,
          .verifies = optimizer && layout.verify_every.has_value(),
          .kv_cache_rows = layout.cached ? std::optional(layout.cached->cache_rows) : std::nullopt,
          .partition = layout.partition,
          .stage = mesh.coordinate().pipeline};
}

nn::Seams make_seams(const Layout& layout, comm::Mesh& mesh) {
  HAWSER_CHECK(layout.mesh.context_heads == layout.batch.context_heads, "heads over ", layout.mesh.context_heads,
               " ranks of the mesh, rows over ", layout.batch.context_heads);
  return parallel::make_seams({.sequence_parallel = layout.sequence_parallel,
                               .gathers_quantized = layout.gathers_quantized,
                               .ring_attention = layout.ring_attention,
                               .head_groups = layout.head_groups,
                               .kv_reduce_dtype = layout.kv_reduce_dtype,
                               .kv_cache = layout.cached.has_value(),
                               .expert_row_bound = layout.row_bound(),
                               .token_exchange = layout.token_exchange},
                              mesh);
}

namespace {

// A KV cache has no keys after a query's own row.
void check_attention(const Layout& layout, const models::Model& model) {
  if (!layout.cached) return;
  for (int layer = 0; layer < model.layers(); ++layer) {
    const nn::AttentionConfig* attention = model.attention(layer);
    HAWSER_CHECK(attention == nullptr || attention->causal, "block ", model.block_of(layer),
                 ": attention that is not causal is not supported with a KV cache: queries would not see later keys");
  }
}

// The ranks of a mesh have all experts together, each once.
void check_experts(const Layout& layout, const models::Model& model) {
  HAWSER_CHECK(layout.mesh.expert == 1 || !layout.mesh.expert_over_tensor || layout.sequence_parallel,
               "experts over tensor ranks, which route the same rows without sequence parallelism");
  for (const models::BlockDescription& block : model.description().blocks) {
    HAWSER_CHECK(!block.moe || block.moe->experts_shard.count == layout.mesh.expert, "a model with 1 / ",
                 block.moe ? block.moe->experts_shard.count : 1, " of the experts on ", layout.mesh.expert,
                 " expert ranks");
  }
}

// How many different slices of a parameter the tensor ranks have.
int slices_of(Domain domain, const comm::MeshSizes& mesh) {
  if (domain == Domain::sliced) return mesh.tensor;
  return domain == Domain::kv_copies ? mesh.tensor / mesh.kv_copies : 1;
}

// What tensor ranks have of each parameter, and which ranks have its experts, is what its domain says. Otherwise
// copies would become different, and gradients, norms and checkpoints have elements several times or not at all.
// Without tensor and expert ranks all domains are the same.
void check_domains(const Layout& layout, const models::Model& model) {
  const comm::MeshSizes& mesh = layout.mesh;
  if (mesh.tensor == 1 && mesh.expert == 1) return;
  for (const nn::Flat& flat : model.flats()) {
    const nn::FlatSpec& spec = flat.spec();
    const bool sliced = slices_of(spec.domain, mesh) > 1;
    for (const nn::Param& param : flat.params()) {
      const auto text = [&] {
        return cat(param.name, ", Domain::", to_string(spec.domain), ", on ", mesh.tensor, " tensor ranks (kv_copies ",
                   mesh.kv_copies, ") and ", mesh.expert, " expert ranks: ");
      };
      const bool experts = param.matrices > 0;
      HAWSER_CHECK(experts == (spec.domain == Domain::expert), text(),
                   experts ? "experts, which have Domain::expert" : "no experts");
      if (param.read_columns) continue;  // slices with whole blocks, which may be all of the tensor
      const auto slices = std::ranges::count_if(param.segments, nn::is_sliced);
      // Experts may be slices of a tensor of all.
      HAWSER_CHECK(experts || slices == (sliced ? static_cast<std::ptrdiff_t>(param.segments.size()) : 0), text(),
                   slices, " of ", param.segments.size(), " segments are slices, not ", sliced ? "all" : "none");
      if (mesh.tensor == 1 || !spec.trainable || spec.domain == Domain::sliced) continue;
      const bool partial = param.flat.partial_gradient || (layout.sequence_parallel && param.of_residual_rows);
      HAWSER_CHECK(spec.partial_gradient == partial, text(), "its layer computes ",
                   partial ? "parts of its gradient, not equal copies" : "equal copies of its gradient, not parts");
    }
  }
}

}  // namespace

step::ExecutorSetup executor_setup(const Layout& layout, const models::Model& model, const program::Program& program,
                                   comm::Mesh& mesh, step::Purpose purpose) {
  check_attention(layout, model);
  check_experts(layout, model);
  check_domains(layout, model);
  HAWSER_CHECK(purpose != step::Purpose::logits || !layout.sequence_parallel, "logits with sequence parallelism");
  HAWSER_CHECK(purpose != step::Purpose::logits || layout.mesh.pipeline == 1, "logits over pipeline stages");
  // No caller runs a refused pass again.
  HAWSER_CHECK(purpose != step::Purpose::logits || !layout.may_refuse(), "logits with a bound of expert rows");
  HAWSER_CHECK(purpose != step::Purpose::logits || model.description().tables.empty(),
               "logits of a model with tables, which prompts do not have");
  const nn::HeadConfig& head = model.description().head;
  HAWSER_CHECK(purpose != step::Purpose::logits || head.kind == nn::HeadKind::language_model,
               "logits of the next token of a model whose head is for ", nn::to_string(head.kind));
  HAWSER_CHECK(layout.batch.labels == nn::labels_of(head), "batches with other labels than a head for ",
               nn::to_string(head.kind), " reads");
  step::BatchBounds bounds = layout.bounds;
  bounds.logit_positions = purpose == step::Purpose::logits ? logit_rows(layout) : 0;
  bounds.uses_kv_cache = layout.cached.has_value();
  bounds.random_numbers = purpose == step::Purpose::train && model.draws_random_numbers();
  bounds.token_mask = model.reads_token_mask() || quantizes_operands(layout);
  bounds.tables = model.description().tables;
  bounds.row_part = layout.sequence_parallel ? mesh.tensor().index() : 0;
  return {.model = &model,
          .program = &program,
          .mesh = &mesh,
          .seams = make_seams(layout, mesh),
          .bounds = bounds,
          .policies = layout.policies,
          .compute = layout.compute,
          .seed = layout.seed,
          .threads = layout.threads,
          .deterministic = layout.deterministic,
          .optimizer = layout.optimizer,
          .gradient_clip = layout.gradient_clip,
          .loss_scaling = layout.loss_scaling,
          .reduce_dtype = layout.reduce_dtype,
          .local_accumulation = layout.accumulation == GradientAccumulation::local,
          .copies = layout.mesh.tensor,
          .keep_gradients = step::measures_gradients(purpose),
          .purpose = purpose,
          .calibrates = layout.calibrates,
          .verification = layout.verification,
          .runs_refused_again = layout.may_refuse()};
}

}  // namespace hawser::plan
