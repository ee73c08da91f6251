#include "profile/step_mix.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <set>

#include "base/clock.h"
#include "comm/mesh.h"
#include "device/cuda/time_mark.h"
#include "engine/gemm_algorithms.h"
#include "engine/session.h"
#include "profile/synthetic_step.h"

namespace hawser::profile {

namespace {

// Blocks of one kind take equally long.
std::string kind_of_block(const models::Model& model, const plan::Layout& layout, int block) {
  std::string kind;
  for (int layer = 0; layer < model.layers(); ++layer) {
    if (model.block_of(layer) != block) continue;
    kind += cat(model.kind_of(layer), " ");
    if (const nn::AttentionConfig* attention = model.attention(layer))
      kind += cat(attention->causal, " ", attention->window, " ");
    for (const models::ParamIndex& place : model.layer_params(layer)) {
      const nn::Flat& flat = model.flat(place.flat);
      const nn::FlatSpec& spec = flat.spec();
      kind += cat(flat.params()[static_cast<std::size_t>(place.index)].shape.text(), " ", spec.trainable, " ",
                  spec.gathered ? to_string(*spec.gathered) : "", ", ");
    }
    const nn::SavePolicy& policy = layout.policies[static_cast<std::size_t>(layer)];
    kind += cat(static_cast<int>(policy.checkpointing), policy.delay_weight_gradients, policy.offload);
    for (const LinearFormat format : policy.formats) kind += cat(" ", static_cast<int>(format));
    kind += "; ";
  }
  return kind;
}

// Some blocks of the model, and how many each represents.
struct ChosenBlocks {
  std::vector<int> blocks;
  std::vector<double> weights;
};

// Each kind gets one of `count` blocks, and the others go one by one to the kind whose blocks represent the most.
ChosenBlocks choose_blocks(const models::Model& model, const plan::Layout& layout, int count) {
  std::map<std::string, std::vector<int>> kinds;
  for (int block = 0; block < model.blocks(); ++block) kinds[kind_of_block(model, layout, block)].push_back(block);
  std::map<std::string, std::size_t> taken;
  for (const auto& [kind, blocks] : kinds) taken[kind] = 1;
  const auto weight = [&](const std::string& kind) {
    return static_cast<double>(kinds.at(kind).size()) / static_cast<double>(taken.at(kind));
  };
  for (int left = std::min(count, model.blocks()) - static_cast<int>(kinds.size()); left > 0; --left) {
    const auto most = std::ranges::max_element(kinds, {}, [&](const auto& kind) { return weight(kind.first); });
    ++taken[most->first];
  }
  std::map<int, double> chosen;
  for (const auto& [kind, blocks] : kinds) {
    for (std::size_t i = 0; i < taken.at(kind); ++i) chosen[blocks[i]] = weight(kind);
  }
  ChosenBlocks out;
  for (const auto& [block, times] : chosen) {
    out.blocks.push_back(block);
    out.weights.push_back(times);
  }
  return out;
}

// Times of the compute stream's instructions, weighted.
class Marks {
 public:
  // The work that is enqueued on the stream from now on, until the next mark, counts `weight` times.
  void add(Stream& stream, double weight) {
    Mark& mark = marks_.emplace_back();
    mark.weight = weight;
    if (const CudaNative* native = stream.native()) {
      mark.gpu = std::make_unique<cuda::TimeMark>(*native);
    } else {
      stream.launch({.name = "mark", .kind = OpKind::host}, [&mark] { mark.cpu = std::chrono::steady_clock::now(); });
    }
  }
  void clear() { marks_.clear(); }
  // Call after the stream is synchronized.
  double seconds() const {
    double sum = 0;
    for (std::size_t i = 0; i + 1 < marks_.size(); ++i) {
      const Mark &from = marks_[i], &to = marks_[i + 1];
      const double seconds = from.gpu != nullptr ? to.gpu->seconds_since(*from.gpu)
                                                 : std::chrono::duration<double>(to.cpu - from.cpu).count();
      sum += from.weight * seconds;
    }
    return sum;
  }

 private:
  struct Mark {
    double weight = 0;
    std::unique_ptr<cuda::TimeMark> gpu;
    std::chrono::steady_clock::time_point cpu;
  };
  std::deque<Mark> marks_;  // a deque: the stream's worker writes elements while it grows
};

StepMix run_mix(const MixPlan& mix, const DocumentMix& documents, Device& device, const PowerMeter& meter,
                const MixDuration& duration) {
  const plan::Layout& layout = mix.plan.layout;
  engine::prepare_gemms(*mix.model, layout, device);
  const std::unique_ptr<comm::Mesh> mesh = comm::make_self_mesh();
  engine::Session session(*mix.model, layout, device, *mesh, {step::Purpose::train}, std::nullopt,
                          {.replay = false, .guard = false});  // marks are in no plan
  session.initialise(mix.plan.seed);
  SyntheticStep synthetic = synthetic_step(documents, mix.plan, *mix.model, {});
  synthetic.input.record = {.inverse_targets = static_cast<float>(1.0 / synthetic.targets)};  // a learning rate of 0
  const auto steps = [&](double count) {
    for (int i = 0; i < static_cast<int>(std::ceil(count)); ++i) session.enqueue(step::Purpose::train, synthetic.input);
  };
  steps(1);
  session.synchronize();
  const auto start = std::chrono::steady_clock::now();
  steps(1);
  session.synchronize();
  const double once = seconds_since(start), count = std::ceil(duration.measure_s / once);
  steps(duration.settle_s / once);
  Stream& compute = session.executor(step::Purpose::train).compute_stream();
  Marks marks;
  session.set_on_instruction([&](const program::Instruction& instruction) {
    if (instruction.stream == program::StreamId::compute) marks.add(compute, mix.weight(instruction));
  });
  const auto begin = std::chrono::steady_clock::now();
  steps(count);
  marks.add(compute, 0);
  session.synchronize();
  session.set_on_instruction({});
  return {.seconds = marks.seconds() / count,
          .blocks = mix.model->blocks(),
          .power = meter.between(begin, std::chrono::steady_clock::now())};
}

// An error is the result's problem. Sets `fits` to false if there is too little memory.
StepMix try_mix(const MixPlan& mix, const DocumentMix& documents, Device& device, const PowerMeter& meter,
                const MixDuration& duration, bool& fits) {
  try {
    return run_mix(mix, documents, device, meter, duration);
  } catch (const Error& error) {
    fits = error.code() != ExitCode::does_not_fit;
    return {.problem = error.what()};
  }
}

}  // namespace

double MixPlan::weight(const program::Instruction& instruction) const {
  using program::Op;
  if (instruction.layer >= 0) {
    return block_weights[static_cast<std::size_t>(model->block_of(instruction.layer))] * rows_weight;
  }
  switch (instruction.op) {
    case Op::embed:
    case Op::embed_backward:
    case Op::loss:
    case Op::loss_gradient:
      return rows_weight;
    default:
      return instruction.flat >= 0 ? flat_weights[static_cast<std::size_t>(instruction.flat)] : 1;
  }
}

MixPlan plan_mix(const plan::RunPlan& plan, const models::Model& model, const nn::FlatSpecOf& spec_of, int blocks) {
  const plan::Layout& layout = plan.layout;
  ChosenBlocks chosen = choose_blocks(model, layout, blocks);
  MixPlan mix{.blocks = std::move(chosen.blocks), .plan = plan, .block_weights = std::move(chosen.weights)};
  models::ModelDescription description = model.description();
  // One rank has a loss of its own slice of the vocabulary.
  description.embedding.vocabulary_slice = description.head.vocabulary_slice = {};
  description.blocks.clear();
  for (const int block : mix.blocks)
    description.blocks.push_back(model.description().blocks[static_cast<std::size_t>(block)]);
  mix.model =
      std::make_unique<models::Model>(std::move(description), [&](const nn::Param& param, const nn::UnitId& place) {
        nn::UnitId of_model = place;  // the spec of a parameter may depend on its block
        if (place.kind == nn::UnitId::Kind::block) of_model.block = mix.blocks[static_cast<std::size_t>(place.block)];
        return spec_of(param, of_model);
      });
  Recipe& recipe = mix.plan.recipe;
  recipe.parallel.context_parallel_degree = recipe.parallel.tensor_parallel_degree = 1;
  recipe.parallel.hybrid_shard_degree = 0;
  mix.plan.global_batch_size = recipe.train.global_batch_size = layout.micro_batches * layout.batch.sequences;
  plan::lay_out(mix.plan, *mix.model, 1, layout.threads, layout.device);
  std::set<int> of_mix(mix.blocks.begin(), mix.blocks.end());
  plan::LayoutChoices choices = mix.plan.layout;
  choices.policies.clear();
  for (int layer = 0; layer < model.layers(); ++layer) {
    if (of_mix.contains(model.block_of(layer)))
      choices.policies.push_back(layout.policies[static_cast<std::size_t>(layer)]);
  }
  mix.plan.layout = plan::derive(std::move(choices), *mix.model);
  mix.rows_weight = 1.0 / layout.mesh.context;
  mix.flat_weights.resize(mix.model->flats().size(), 1);
  const std::vector<nn::Unit>& units = mix.model->units();  // the embedding, the blocks, the head
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const bool is_block = unit > 0 && unit <= mix.block_weights.size();
    for (const int flat : units[unit].flats) {
      mix.flat_weights[static_cast<std::size_t>(flat)] =
          (is_block ? mix.block_weights[unit - 1] : 1) / layout.mesh.shard_ranks(mix.model->flat(flat).spec().domain);
    }
  }
  return mix;
}

StepMix measure_mix(const plan::RunPlan& plan, const models::Model& model, const nn::FlatSpecOf& spec_of,
                    const DocumentMix& documents, Device& device, const PowerMeter& meter,
                    const MixDuration& duration) {
  StepMix out;
  std::size_t tried = 0;
  for (const int blocks : {8, 6, 4, 3, 2, 1}) {
    const MixPlan mix = plan_mix(plan, model, spec_of, blocks);
    if (mix.blocks.size() == tried) continue;
    tried = mix.blocks.size();
    bool fits = true;
    out = try_mix(mix, documents, device, meter, duration, fits);
    if (fits) break;
  }
  return out;
}

}  // namespace hawser::profile
