#include "train/bench_step.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "base/philox.h"
#include "data/batch_loader.h"
#include "optim/schedule.h"
#include "train/feed.h"
#include "train/products.h"
#include "train/session.h"
#include "train/timed_device.h"

namespace hawser::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Families as people think of them; what matches none goes by its own name.
std::string family_of(const std::string& work) {
  static constexpr std::pair<const char*, const char*> kFamilies[] = {{"gemm", "gemm"},
                                                                      {"attention", "attention"},
                                                                      {"linear_cross_entropy", "head and loss"},
                                                                      {"rms_norm", "norm"},
                                                                      {"swiglu", "activation"},
                                                                      {"rope", "rope"},
                                                                      {"embedding", "embedding"},
                                                                      {"adamw", "adamw"},
                                                                      {"all_", "communication"},
                                                                      {"reduce_", "communication"},
                                                                      {"sum_squares", "gradient norm"},
                                                                      {"add", "residual and bias"},
                                                                      {"bias", "residual and bias"},
                                                                      {"copy", "copies"},
                                                                      {"cast", "copies"},
                                                                      {"fill", "copies"},
                                                                      {"gather_rows", "copies"},
                                                                      {"scatter_rows", "copies"}};
  for (const auto& [prefix, family] : kFamilies) {
    if (work.starts_with(prefix)) return family;
  }
  return work;
}

std::vector<std::pair<std::string, double>> families_of(WorkTimes& times, double steps) {
  std::map<std::string, double> by_family;
  for (const auto& [work, seconds] : times.seconds()) by_family[family_of(work)] += seconds / steps;
  std::vector<std::pair<std::string, double>> out(by_family.begin(), by_family.end());
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

// Sequence i is one document of random ids.
class RandomSequences : public data::SequenceSet {
 public:
  RandomSequences(std::int64_t count, std::int64_t length, std::int64_t vocabulary)
      : count_(count), length_(length), vocabulary_(vocabulary) {}
  std::int64_t size() const override { return count_; }
  std::int64_t max_documents() const override { return 1; }
  std::int64_t targets(std::int64_t) const override { return length_; }
  data::Sequence get(std::int64_t index) const override {
    const RandomStream random(1, static_cast<std::uint64_t>(index));
    data::Sequence sequence{.document_lengths = {static_cast<std::int32_t>(length_)}};
    for (std::int64_t i = 0; i <= length_; ++i) {
      const auto id = static_cast<std::int32_t>(
          random.below(static_cast<std::uint64_t>(vocabulary_), static_cast<std::uint64_t>(i)));
      if (i < length_) sequence.ids.push_back(id);
      if (i > 0) sequence.labels.push_back(id);
    }
    sequence.positions = data::positions_of(sequence.document_lengths);
    return sequence;
  }

 private:
  std::int64_t count_, length_, vocabulary_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

BenchResult bench_step(const BenchRequest& request, OpenModel& model, comm::World* world) {
  Recipe recipe = request.recipe;
  recipe.data.max_documents = 1;
  const int ranks = world != nullptr ? world->size() : 1;
  const DeviceKind kind = request.device.kind;
  const plan::Layout layout =
      plan::make_layout(recipe, *model.model, ranks, compute_dtype(recipe.precision, kind), request.threads, kind);
  const MeshPlace place = place_of(world != nullptr ? world->rank().value() : 0, layout.mesh);
  std::unique_ptr<Device> device = make_device(request.device, request.threads);
  const DeviceMemory before = device->memory();
  TimedDevice* timed = nullptr;
  if (kind == DeviceKind::cpu || request.profile) {
    auto wrapped = std::make_unique<TimedDevice>(std::move(device));
    timed = wrapped.get();
    device = std::move(wrapped);
  }
  const std::unique_ptr<comm::Mesh> mesh = make_mesh(world, layout.mesh, recipe.run.collective_timeout_s, *device);
  const step::Purpose purpose = step::Purpose::train;
  prepare_products(*model.model, layout, *device);
  auto session =
      std::make_unique<Session>(*model.model, layout, *device, *mesh, std::vector{purpose}, recipe.memory.capacity);
  if (model.weights) {
    session->load(*model.weights);
  } else {
    session->initialise(recipe.train.seed);
  }

  const std::int64_t batch = recipe.train.global_batch_size;
  const data::BatchLoader loader(
      std::make_shared<RandomSequences>(batch, recipe.data.sequence_length, model.model->vocabulary()), layout.batch,
      {.data_rank = place.shard + layout.mesh.shard * place.replicate,
       .data_ranks = layout.data_ranks(),
       .context_rank = place.context,
       .context_ranks = layout.mesh.context},
      {.global_batch_size = batch, .shuffle = false});
  step::StepInput input;
  const double targets = static_cast<double>(loader.step_targets(0));
  for (std::int64_t m = 0; m < loader.micro_batches(); ++m) {
    input.batches.push_back(to_host_batch(loader.load(0, m), loader.shape()));
  }

  BenchResult result{.parameters = model.model->parameters(), .planned_bytes = session->planned_bytes()};
  std::int64_t allocations = 0;
  for (std::int64_t step = 0; step <= recipe.train.steps; ++step) {
    const ops::AdamHyper hyper = optim::adam_hyper(recipe.optimizer, recipe.train, step + 1);
    input.record = {.learning_rate = hyper.learning_rate,
                    .bias_correction1 = hyper.bias_correction1,
                    .bias_correction2 = hyper.bias_correction2,
                    .loss_scale = static_cast<float>(1.0 / targets)};
    if (world != nullptr) world->barrier();
    if (step == 1) {  // what the first step did, it did for all: pages, primitives
      if (timed != nullptr) timed->times.clear();
      allocations = device->allocations();
    }
    const Clock::time_point start = Clock::now();
    const step::StepOutput output = session->enqueue(purpose, input);
    session->synchronize();
    if (step > 0) result.steps.push_back(seconds_since(start));
    result.loss = output.result->loss_sum / targets;
  }
  result.step_seconds = median(result.steps);
  result.tokens_per_second = static_cast<double>(batch * recipe.data.sequence_length) / result.step_seconds;
  result.model_flops_per_second =
      plan::costs_of(session->plan(purpose), *model.model, layout).model_flops / result.step_seconds;
  result.allocations = device->allocations() - allocations;
  result.before = before;
  result.after = device->memory();
  if (timed != nullptr) result.families = families_of(timed->times, static_cast<double>(recipe.train.steps));
  if (kind == DeviceKind::cuda && request.roofline) {
    const plan::RankPlan plan = session->plan(purpose);
    session.reset();  // its memory goes first
    result.roofline = measure_roofline(*model.model, layout, plan, *device);
  }
  return result;
}

}  // namespace hawser::train
