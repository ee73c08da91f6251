#include "profile/bench_step.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <map>

#include "base/clock.h"
#include "config/config.h"
#include "engine/gemm_algorithms.h"
#include "engine/memory_choice.h"
#include "engine/model_changes.h"
#include "engine/parallel_choice.h"
#include "engine/session.h"
#include "plan/context_form.h"
#include "plan/offload_text.h"
#include "plan/pipeline_form.h"
#include "plan/target.h"
#include "profile/predicted_timeline.h"
#include "profile/synthetic_step.h"
#include "profile/timed_device.h"
#include "profile/timeline_summary.h"
#include "profile/traced_device.h"

namespace hawser::profile {

namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::pair<std::string, double>> families_of(WorkTimes& times, double steps) {
  std::map<std::string, double> by_family;
  for (const auto& [family, seconds] : times.seconds()) by_family[family] += seconds / steps;
  std::vector<std::pair<std::string, double>> out(by_family.begin(), by_family.end());
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

double documents_a_sequence(const DocumentMix& mix, const plan::Layout& layout, std::int64_t sequences) {
  double sum = 0;
  for (std::int64_t i = 0; i < sequences; ++i) {
    sum +=
        static_cast<double>(document_lengths(mix, layout.batch.sequence_length, layout.batch.max_documents, i).size());
  }
  return sum / static_cast<double>(std::max<std::int64_t>(sequences, 1));
}

std::int64_t begin_of(const RankTimeline& timeline) {
  std::int64_t begin = timeline.spans.empty() ? 0 : timeline.spans.front().begin;
  for (const TimelineSpan& span : timeline.spans) begin = std::min(begin, span.begin);
  return begin;
}

// One step, traced on all ranks. Runs `passes` times and keeps the last: the first includes the tracer's startup.
void trace_step(engine::Session& session, TracedDevice& device, const step::StepInput& input, int passes,
                const PowerMeter& meter, comm::World* world, BenchResult& result) {
  const program::Program& program = session.plan(step::Purpose::train).program;
  const std::vector<std::string> instructions = instruction_names(program, session.model());
  session.set_on_instruction(
      [&](const program::Instruction& instruction) { device.begin_instruction(instruction.id); });
  RankTimeline timeline;
  for (int pass = 0; pass < passes; ++pass) {
    if (world != nullptr) world->barrier();
    device.start();
    const Clock::time_point start = Clock::now();
    session.enqueue(step::Purpose::train, input);
    device.begin_instruction(-1);
    session.synchronize();
    result.traced_seconds = seconds_since(start);
    const Clock::time_point end = Clock::now();
    timeline = device.stop(world != nullptr ? world->rank().value() : 0, instructions);
    timeline.counters = counters_of(meter.samples(start, end), begin_of(timeline));
  }
  session.set_on_instruction({});
  if (world == nullptr) {
    result.timelines.push_back(std::move(timeline));
    return;
  }
  for (const std::string& text : world->all_gather_strings(to_chrome_trace({timeline}))) {
    for (RankTimeline& one : read_chrome_trace(text, "the trace of another rank"))
      result.timelines.push_back(std::move(one));
  }
}

BenchResult::Idle idle_of_stages(const models::Model& model, const plan::Layout& layout,
                                 const std::vector<RankTimeline>& measured) {
  const plan::Target target = plan::load_target(plan::target_of(layout.device));
  const auto predicted = predicted_timeline(model, layout, target, plan::rate_scale_of(target, layout.threads));
  return {.measured = idle_of(measured), .predicted = idle_of(predicted)};
}

// The mean of the two middle values if their number is even, since there may be only a few steps.
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Runs `warmup` steps, of which the first includes one-time work (page faults, library primitives), then times the
// plan's steps: seconds, allocations, and the loss of the last one. The input keeps the last step's record.
void time_steps(const plan::RunPlan& plan, std::int64_t warmup, SyntheticStep& synthetic, engine::Session& session,
                const Device& device, TimedDevice* timed, const PowerMeter& meter, comm::World* world,
                BenchResult& result) {
  std::int64_t allocations = 0;
  Clock::time_point begin;
  for (std::int64_t step = 0; step < warmup + plan.steps; ++step) {
    synthetic.input.record = {.learning_rate = plan::learning_rates_at(plan, step + 1),
                              .inverse_targets = static_cast<float>(1.0 / synthetic.targets)};
    if (world != nullptr) world->barrier();
    if (step == warmup) {
      if (timed != nullptr) timed->times.clear();
      allocations = device.allocations();
      begin = Clock::now();
    }
    const Clock::time_point start = Clock::now();
    const step::StepOutput output = session.enqueue(step::Purpose::train, synthetic.input);
    session.synchronize();
    if (step >= warmup) result.steps.push_back(seconds_since(start));
    result.loss = output.result->loss_sum.value() / synthetic.targets;
  }
  result.power.use = over_ranks(meter.between(begin, Clock::now()), world);
  result.power.steps = static_cast<double>(plan.steps);
  result.power.tokens_per_step = plan.tokens_per_step();
  result.allocations = device.allocations() - allocations;
}

}  // namespace

BenchResult bench_step(const BenchRequest& request, engine::OpenModel& model, comm::World* world) {
  plan::RunPlan plan = plan::resolve(request.recipe);
  const int ranks = world != nullptr ? world->size() : 1;
  const DeviceKind kind = request.device.kind;
  const std::vector<std::string> chosen =
      engine::choose_parallelism(plan, *model.model, kind, world, request.ranks_here, request.threads);
  plan::lay_out(plan, *model.model, ranks, request.threads, kind);
  const plan::Layout& layout = plan.layout;
  const comm::MeshCoordinate place = comm::coordinate_of(world != nullptr ? world->rank().value() : 0, layout.mesh);
  std::unique_ptr<Device> device = engine::make_device(request.device, request.threads);
  const DeviceMemory before = device->memory();
  const PowerMeter meter(NvmlGpu::open(device->bus_id()));
  TracedDevice* traced = nullptr;
  if (request.trace) {
    auto wrapped = std::make_unique<TracedDevice>(std::move(device));
    traced = wrapped.get();
    device = std::move(wrapped);
  }
  TimedDevice* timed = nullptr;
  if (kind == DeviceKind::cpu || request.profile) {
    auto wrapped = std::make_unique<TimedDevice>(std::move(device));
    timed = wrapped.get();
    device = std::move(wrapped);
  }
  const std::unique_ptr<comm::Mesh> mesh = engine::make_mesh(world, layout.mesh, plan.collective_timeout_s, *device);
  engine::prepare_gemms(*model.model, layout, *device);
  engine::choose_memory(plan, *model.model, *device, world, request.ranks_here);
  auto session =
      std::make_unique<engine::Session>(*model.model, layout, *device, *mesh, std::vector{step::Purpose::train},
                                        plan.capacity, engine::SessionChecks{.host_capacity = plan.host_capacity});
  if (model.weights) {
    session->load(*model.weights, plan.seed);
  } else {
    session->initialise(plan.seed);
  }

  SyntheticStep synthetic = synthetic_step(request.documents, plan, *model.model, place);
  BenchResult result{.parameters = model.model->parameters(), .planned_bytes = session->planned_bytes()};
  result.checkpointing = checkpointing_text(plan.recipe.memory);
  result.tiles = plan::tiles_text(layout, *model.model);
  result.mlp_tile_rows = plan.recipe.memory.mlp_tile_rows;
  result.offload = plan::offload_text(layout, *model.model);
  if (layout.mesh.context > 1) result.context = plan::context_text(plan::form_of(layout));
  result.pipeline = plan::pipeline_text(layout);
  time_steps(plan, request.warmup, synthetic, *session, *device, timed, meter, world, result);
  const std::int64_t batch = plan.global_batch_size;
  result.step_seconds = median(result.steps);
  result.tokens_per_second = plan.tokens_per_step() / result.step_seconds;
  result.model_flops_per_second = synthetic.flops / result.step_seconds;
  result.imbalance = synthetic.work.value();
  result.documents = documents_a_sequence(request.documents, layout, batch);
  result.equivalent_length = synthetic.tokens > 0 ? 2 * synthetic.work.work() / synthetic.tokens - 1 : 0;
  result.before = before;
  result.after = device->memory();
  result.notes = session->notes();
  result.notes.insert(result.notes.end(), chosen.begin(), chosen.end());
  for (std::string& line : engine::slow_kernels(session->stream())) result.notes.push_back(std::move(line));
  if (timed != nullptr) result.families = families_of(timed->times, static_cast<double>(plan.steps));
  if (traced != nullptr) {
    trace_step(*session, *traced, synthetic.input, request.warmup > 0 ? 2 : 1, meter, world, result);
    const bool first = world == nullptr || world->rank() == Rank(0);
    if (layout.mesh.pipeline > 1 && first) result.idle = idle_of_stages(*model.model, layout, result.timelines);
  }
  if (kind == DeviceKind::cuda && request.roofline) {
    session.reset();  // frees its memory first
    const AttentionWork attention{
        .documents = document_lengths(request.documents, layout.batch.sequence_length, layout.batch.max_documents, 0),
        .pairs = synthetic.pairs};
    result.roofline = measure_roofline(*model.model, layout, attention, *device);
    result.mix =
        measure_mix(plan, *model.model, engine::changes_of(request.recipe).spec_of, request.documents, *device, meter);
  }
  return result;
}

}  // namespace hawser::profile
