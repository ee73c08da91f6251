// Benchmark of planning: time and memory of large plans, and arena sizes of many shapes.
//
//   ninja bench_planning && ./bench_planning speed [part of a line's name]
//   ./bench_planning sizes [part of a line's name]
//
// speed: each line is a process of its own. `plan` is plan_rank(), which runs the step on meta and places its buffers;
// `place` is the placement alone, which is part of it; `check` is check_plans(): a session's start does plan and check.
// Seconds are user time of the one thread. `peak` is the process's peak memory after both.
//
// sizes: arena bytes, live bytes at the peak and their ratio, of families, policies, meshes and micro-batches. The
// output of two builds compares their placements.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "models/families.h"
#include "models/testing/published.h"
#include "plan/plan.h"

namespace hawser {
namespace {

struct Shape {
  std::string model = "Mistral-7B-v0.3";
  int blocks = 0;                                                    // 0: the published number
  std::vector<Checkpointing> policies = {Checkpointing::selective};  // of the blocks, repeated
  bool delay_weight_gradients = false;
  comm::MeshSizes mesh;
  int micro_batches = 1, in_flight = 1, prefetch = 1;
  std::int64_t length = 2048, sequences = 1, documents = 1;
  GradientAccumulation accumulation = GradientAccumulation::sharded;
  ShardPolicy shard_policy = ShardPolicy::parameters;
  DeviceKind device = DeviceKind::cuda;
};

const char* const kPolicyNames[] = {"none", "selective", "gate_up", "qkv", "projections", "full"};
constexpr Checkpointing kPolicies[] = {Checkpointing::none, Checkpointing::selective,   Checkpointing::gate_up,
                                       Checkpointing::qkv,  Checkpointing::projections, Checkpointing::full};

const char* name_of(Checkpointing policy) {
  for (std::size_t i = 0; i < std::size(kPolicies); ++i) {
    if (kPolicies[i] == policy) return kPolicyNames[i];
  }
  return "?";
}

std::string name_of(const Shape& shape) {
  std::string out = shape.model;
  if (shape.blocks > 0) out += cat(" ", shape.blocks, " blocks");
  out += " ";
  for (std::size_t i = 0; i < shape.policies.size(); ++i) out += cat(i > 0 ? "+" : "", name_of(shape.policies[i]));
  if (shape.delay_weight_gradients) out += " delayed";
  out += cat(", c", shape.mesh.context, " s", shape.mesh.shard, " r", shape.mesh.replicate,
             shape.mesh.shard_context ? "" : " unsharded", ", mb ", shape.micro_batches, " in flight ", shape.in_flight,
             " prefetch ", shape.prefetch, " length ", shape.length, " docs ", shape.documents);
  if (shape.accumulation == GradientAccumulation::local) out += " local";
  if (shape.shard_policy != ShardPolicy::parameters) out += " zero1";
  return out + (shape.device == DeviceKind::cpu ? " cpu" : "");
}

models::Model model_of(const Shape& shape) {
  for (const models::testing::Published& published : models::testing::kPublished) {
    if (shape.model != published.name) continue;
    std::string config = published.config;
    if (shape.blocks > 0) {
      const std::string key = "\"num_hidden_layers\": ";
      const std::size_t begin = config.find(key) + key.size();
      config.replace(begin, config.find(',', begin) - begin, std::to_string(shape.blocks));
    }
    Problems problems;
    models::ModelDescription description = models::describe_config(config, "config.json", problems);
    problems.throw_if_any();
    return models::Model(std::move(description));
  }
  HAWSER_CHECK(false, "no model ", shape.model);
}

plan::LayoutChoices layout_of(const Shape& shape, const models::Model& model) {
  plan::LayoutChoices layout;
  layout.device = shape.device;
  layout.mesh = shape.mesh;
  layout.compute = layout.reduce_dtype = layout.kv_reduce_dtype = DType::bf16;
  layout.head_groups = shape.device == DeviceKind::cuda ? plan::kCudaHeadGroups : 1;
  layout.batch_sizes = {.sequences = shape.sequences,
                        .sequence_length = shape.length,
                        .max_documents = shape.documents,
                        .context = shape.mesh.context,
                        .chunks_per_rank = shape.mesh.context == 1 ? 1 : 2};
  layout.micro_batches = shape.micro_batches;
  layout.schedule.group = shape.in_flight;
  layout.prefetch = shape.prefetch;
  layout.accumulation = shape.accumulation;
  layout.shard_policy = shape.shard_policy;
  for (int layer = 0; layer < model.layers(); ++layer) {
    const std::size_t block = static_cast<std::size_t>(layer / 2);
    layout.policies.push_back({.checkpointing = shape.policies[block % shape.policies.size()],
                               .delay_weight_gradients = shape.delay_weight_gradients});
  }
  return layout;
}

double user_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec) + 1e-6 * static_cast<double>(used.ru_utime.tv_usec);
}

void speed(const Shape& shape) {
  const models::Model model = model_of(shape);
  const plan::LayoutChoices layout = layout_of(shape, model);
  const double start = user_seconds();
  const plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
  const double planned = user_seconds();
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const double plan_peak = 1e-3 * static_cast<double>(used.ru_maxrss);
  plan::check_plans({&plan}, {0});
  const double checked = user_seconds();
  getrusage(RUSAGE_SELF, &used);
  const double peak = 1e-3 * static_cast<double>(used.ru_maxrss);
  const program::Placement again = program::place(plan.trace, plan.buffers.buffers);
  const double placed = user_seconds();
  std::printf(
      "%-72s items %7zu buffers %7zu  plan %6.3f s (place %6.3f s) check %6.3f s  peak %6.1f MB, %6.1f MB  %.5f\n",
      name_of(shape).c_str(), plan.trace.items.size(), plan.buffers.buffers.size(), planned - start, placed - checked,
      checked - planned, plan_peak, peak, static_cast<double>(again.bytes) / static_cast<double>(again.live_bytes));
}

void size(const Shape& shape) {
  const models::Model model = model_of(shape);
  const plan::RankPlan plan =
      plan::plan_rank(model, plan::derive(layout_of(shape, model), model), step::Purpose::train, 0);
  plan::check_plans({&plan}, {0});
  const program::Placement& placement = plan.buffers.placement;
  std::printf("%lld\t%lld\t%.5f\t%s\n", static_cast<long long>(placement.bytes),
              static_cast<long long>(placement.live_bytes),
              static_cast<double>(placement.bytes) / static_cast<double>(placement.live_bytes), name_of(shape).c_str());
}

std::vector<Shape> large_shapes() {
  std::vector<Shape> out;
  for (const comm::MeshSizes& mesh : {comm::MeshSizes{}, comm::MeshSizes{.shard = 8}}) {
    for (const Checkpointing policy : {Checkpointing::full, Checkpointing::none}) {
      out.push_back({.blocks = 1000, .policies = {policy}, .mesh = mesh});
    }
    out.push_back({.blocks = 1000, .policies = {Checkpointing::full, Checkpointing::none}, .mesh = mesh});
    for (const char* model : {"gemma-3-1b", "Qwen3-30B-A3B"}) {
      out.push_back({.model = model, .blocks = 1000, .policies = {Checkpointing::full}, .mesh = mesh});
    }
    for (const Checkpointing policy : {Checkpointing::full, Checkpointing::none}) {
      out.push_back({.blocks = 61, .policies = {policy}, .mesh = mesh, .micro_batches = 64});
    }
    out.push_back({.blocks = 1000, .policies = {Checkpointing::full}, .mesh = mesh, .micro_batches = 8});
  }
  return out;
}

// Every combination would take hours: each axis is varied alone, from two starts.
std::vector<Shape> many_shapes() {
  std::vector<Shape> out;
  std::vector<std::vector<Checkpointing>> policies;
  for (const Checkpointing policy : kPolicies) policies.push_back({policy});
  policies.push_back({Checkpointing::full, Checkpointing::none});
  policies.push_back({Checkpointing::gate_up, Checkpointing::selective, Checkpointing::selective});
  const comm::MeshSizes meshes[] = {{},
                                    {.shard = 8},
                                    {.context = 4, .shard = 2},
                                    {.shard = 4, .replicate = 2},
                                    {.context = 2, .replicate = 2, .shard_context = false}};
  for (const models::testing::Published& published : models::testing::kPublished) {
    for (const std::vector<Checkpointing>& policy : policies) {
      for (const comm::MeshSizes& mesh : meshes) {
        for (const int micro_batches : {1, 3}) {
          const Shape start{.model = published.name, .policies = policy, .mesh = mesh, .micro_batches = micro_batches};
          out.push_back(start);
          if (published.name != std::string(models::testing::kPublished[0].name)) continue;
          const auto vary = [&](const std::function<void(Shape&)>& change) { change(out.emplace_back(start)); };
          vary([](Shape& shape) { shape.device = DeviceKind::cpu; });
          vary([](Shape& shape) { shape.prefetch = 0; });
          vary([](Shape& shape) { shape.prefetch = 3; });
          vary([](Shape& shape) { shape.length = 16384; });
          vary([](Shape& shape) { shape.length = 999, shape.sequences = 3, shape.documents = 8; });
          vary([](Shape& shape) { shape.blocks = 5; });
          vary([](Shape& shape) { shape.delay_weight_gradients = true; });
          vary([](Shape& shape) { shape.shard_policy = ShardPolicy::optimizer; });
          if (micro_batches == 1) continue;
          vary([](Shape& shape) { shape.in_flight = 2; });
          vary([](Shape& shape) { shape.in_flight = 3, shape.delay_weight_gradients = true; });
          vary([](Shape& shape) { shape.accumulation = GradientAccumulation::local; });
          vary([](Shape& shape) { shape.micro_batches = 8; });
        }
      }
    }
  }
  return out;
}

// Runs each shape in a process of its own.
int run(const std::vector<Shape>& shapes, const char* part, const std::function<void(const Shape&)>& line) {
  int failed = 0;
  for (const Shape& shape : shapes) {
    if (name_of(shape).find(part) == std::string::npos) continue;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      try {
        line(shape);
      } catch (const std::exception& error) {
        std::printf("%s: %s\n", name_of(shape).c_str(), error.what());
        std::fflush(stdout);
        _exit(1);
      }
      std::fflush(stdout);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    failed += status != 0;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace hawser

int main(int argc, char** argv) {
  const char* part = argc > 2 ? argv[2] : "";
  if (argc > 1 && std::strcmp(argv[1], "sizes") == 0) return hawser::run(hawser::many_shapes(), part, hawser::size);
  if (argc > 1 && std::strcmp(argv[1], "speed") == 0) return hawser::run(hawser::large_shapes(), part, hawser::speed);
  std::fputs("usage: bench_planning speed|sizes [part of a line's name]\n", stderr);
  return 2;
}
