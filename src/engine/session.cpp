#include "engine/session.h"

#include <algorithm>
#include <utility>

#include "base/environment.h"
#include "base/format_apart.h"
#include "base/units.h"
#include "comm/mpi/world.h"
#include "device/cuda/native.h"
#include "engine/does_not_fit.h"
#include "engine/host_copy.h"
#include "engine/rank_device.h"
#include "engine/staged_weights.h"
#include "models/weights.h"
#include "plan/shared_plan.h"
#include "plan/target.h"
#include "step/weight_scales.h"

namespace hawser::engine {

struct Session::PlannedStep {
  StepConfig config;
  plan::RankPlan plan;
  std::unique_ptr<step::PlannedBuffers> buffers;
  std::unique_ptr<step::ReplayDevice> replay;  // null: no replay
  std::unique_ptr<step::Executor> executor;
};

namespace {

// On a GPU a stream reserves its scratch at the first request. Request it now, outside of a step.
void reserve_scratch(Stream& stream) {
  if (stream.native() != nullptr) stream.native()->scratch();
}

std::vector<StepConfig> configs_of(const plan::Layout& layout, const std::vector<step::Purpose>& purposes) {
  std::vector<StepConfig> configs;
  for (const step::Purpose purpose : purposes) configs.push_back({purpose, layout});
  return configs;
}

// Allocates each buffer in an arena of its own.
bool calibrates(const StepConfig& config) {
  return config.purpose == step::Purpose::train && plan::needs_calibration(config.layout);
}

bool verifies(const StepConfig& config) {
  return config.purpose == step::Purpose::train && config.layout.verify_every.has_value();
}

}  // namespace

Session::Session(const models::Model& model, const plan::Layout& layout, Device& device, comm::Mesh& mesh,
                 const std::vector<step::Purpose>& purposes, std::optional<Bytes> capacity, SessionChecks checks)
    : Session(model, configs_of(layout, purposes), device, mesh, capacity, checks) {}

Session::Session(const models::Model& model, std::vector<StepConfig> configs, Device& device, comm::Mesh& mesh,
                 std::optional<Bytes> capacity, SessionChecks checks)
    : model_(model), device_(device), mesh_(mesh) {
  for (const models::BlockDescription& block : model.description().blocks) {
    HAWSER_CHECK(block.attention.kv_copies == 1 || block.attention.kv_copies == mesh.sizes().kv_copies, "a mesh with ",
                 mesh.sizes().kv_copies, " copies of key-value heads for ", block.attention.kv_copies);
    HAWSER_CHECK(!block.moe || block.moe->experts_shard.index == comm::expert_part(mesh.coordinate(), mesh.sizes()),
                 "rank ", mesh.rank(), " has part ", block.moe ? block.moe->experts_shard.index : 0, " of the experts");
  }
  const std::size_t given = configs.size();
  if (const auto config = std::ranges::find_if(configs, calibrates); config != configs.end()) {
    calibration_ = configs.size();
    StepConfig first = *config;
    first.layout = plan::calibrating(first.layout);
    configs.push_back(std::move(first));
  }
  if (const auto config = std::ranges::find_if(configs, verifies); config != configs.end()) {
    const auto train = static_cast<std::size_t>(config - configs.begin());
    const auto add = [&](step::Verification verification) {
      StepConfig verified = configs[train];
      verified.layout = plan::verified(verified.layout, verification);
      configs.push_back(std::move(verified));
      return configs.size() - 1;
    };
    reference_ = add(step::Verification::reference);
    comparison_ = add(step::Verification::comparison);
  }
  for (std::size_t i = 0; i < given; ++i) {
    if (!configs[i].layout.may_refuse()) continue;
    refused_[i] = configs.size();
    configs.push_back({configs[i].purpose, plan::of_refused_steps(configs[i].layout)});
  }
  std::int64_t arena_bytes = 0, host_bytes = 0, state_bytes = 0, host_state_bytes = 0;
  const bool optimizer = std::any_of(configs.begin(), configs.end(),
                                     [](const StepConfig& config) { return config.purpose == step::Purpose::train; });
  for (StepConfig& config : configs) {
    HAWSER_CHECK(config.layout.device == device_.kind(), "a layout for ", to_string(config.layout.device), " on ",
                 to_string(device_.kind()));
    auto planned = std::make_unique<PlannedStep>();
    planned->config = std::move(config);
    planned->plan = make_plan(planned->config, optimizer, checks.replay);
    arena_bytes = std::max(arena_bytes, planned->plan.arena_bytes());
    host_bytes = std::max(host_bytes, planned->plan.host_bytes());
    pinned_bytes_ += planned->plan.staging_bytes;
    state_bytes = std::max(state_bytes, planned->plan.state_bytes);
    host_state_bytes = std::max(host_state_bytes, planned->plan.host_state_bytes);
    for (const std::string& line : planned->plan.implementations) {
      if (std::find(notes_.begin(), notes_.end(), line) == notes_.end()) notes_.push_back(line);
    }
    planned_steps_.push_back(std::move(planned));
  }
  scratch_bytes_ = plan::scratch_bytes(device_.kind());
  if (device_.kind() == DeviceKind::cuda) {
    std::string note = few_connections(environment_variable("CUDA_DEVICE_MAX_CONNECTIONS"));
    if (!note.empty()) notes_.push_back(std::move(note));
  }
  pinned_bytes_ += host_bytes + host_state_bytes;
  const bool one_memory = device_.kind() == DeviceKind::cpu;
  const std::int64_t needed = arena_bytes + state_bytes + scratch_bytes_ + (one_memory ? pinned_bytes_ : 0);
  if (const DeviceMemory memory = device_.memory(); !capacity && memory.total > 0) {
    capacity = Bytes(memory.total - memory.used);
  }
  RankNeed need{.pinned = pinned_bytes_, .machine_has = checks.host_capacity};
  if (device_.kind() == DeviceKind::cuda && !need.machine_has) need.machine_has = Bytes(plan::free_host_memory());
  if (capacity && Bytes(needed) > *capacity) {
    const auto [has, needs] = format_apart(capacity->value(), needed);
    need.too_large = Error(ExitCode::does_not_fit, cat("a rank needs ", needs, " and may use ", has)).what();
  }
  expect_fits(mesh_.channel(), need);
  state_ = std::make_unique<step::ModelState>(model_, plan::state_options(layout(), mesh_, optimizer), device_);
  HAWSER_CHECK(state_->bytes() == state_bytes && state_->host_bytes() == host_state_bytes,
               "the kinds of steps need states of different sizes");
  arena_ = Arena(device_, arena_bytes);
  guarded_ = checks.replay && checks.guard && device_.kind() == DeviceKind::cpu;
  if (host_bytes > 0) host_arena_ = Arena(device_, host_bytes, Memory::host);
  const step::Arenas arenas{.device = arena_.data(), .host = host_arena_.data()};
  register_memory();
  compare_offsets();
  stream_ = device_.make_stream("session");
  if (const double scale = layout().loss_scaling.initial;
      optimizer && scale != 1 && device_.kind() != DeviceKind::meta) {
    state_->set_progress({.loss_scale = static_cast<float>(scale)}, *stream_);
  }
  if (!checks.replay) {
    for (const auto& planned : planned_steps_) step::add_streams(device_, planned->plan.program, streams_);
    reserve_scratch(*streams_[static_cast<std::size_t>(program::StreamId::compute)]);
  }
  for (auto& planned : planned_steps_) {
    planned->buffers = std::make_unique<step::PlannedBuffers>(planned->plan.buffers, arenas, device_.kind());
    step::ExecutorSetup setup =
        plan::executor_setup(planned->config.layout, model_, planned->plan.program, mesh_, planned->config.purpose);
    setup.device = &device_;
    setup.streams = checks.replay ? nullptr : &streams_;
    if (checks.replay) {
      planned->replay =
          std::make_unique<step::ReplayDevice>(device_, step::ReplaySetup{.trace = &planned->plan.trace,
                                                                          .buffers = &planned->plan.buffers,
                                                                          .arenas = arenas,
                                                                          .state = state_->data(),
                                                                          .host_state = state_->host_data(),
                                                                          .guard = checks.guard});
      setup.device = planned->replay.get();
    }
    setup.state = state_.get();
    setup.buffers = planned->buffers.get();
    planned->executor = std::make_unique<step::Executor>(std::move(setup));
    if (checks.replay) reserve_scratch(planned->executor->compute_stream());
  }
}

Session::~Session() {
  // A stream's destructor waits for its work, which may use memory of the planned steps: destroy the streams first.
  for (auto& stream : streams_) stream.reset();
  for (auto& planned : planned_steps_) planned->executor.reset();
  for (std::byte* region : registered_) mesh_.unregister_memory(region);
}

plan::RankPlan Session::make_plan(const StepConfig& config, bool optimizer, bool replay) {
  const auto stage = static_cast<std::size_t>(mesh_.coordinate().pipeline);
  const bool shares = mesh_.channel() != nullptr && !replay;
  std::vector<plan::RankPlan> stages;
  if (!shares || mesh_.rank() == Rank(0)) {
    stages = plan::plan_stages(model_, config.layout, config.purpose, mesh_.rank().value(), optimizer);
  }
  if (stages.size() > 1 && mesh_.rank() == Rank(0)) note_stages(config, stages);
  if (!shares) return std::move(stages[stage]);
  std::string mine;
  for (int s = 0; s < config.layout.mesh.pipeline; ++s) {
    const bool first = !stages.empty();
    const std::string text =
        mesh_.channel()->broadcast_bytes(first ? plan::plan_text(stages[static_cast<std::size_t>(s)]) : "");
    if (s == mesh_.coordinate().pipeline) mine = text;
  }
  if (!stages.empty()) return std::move(stages[stage]);
  return plan::read_plan(
      mine, config.purpose,
      step::make_program(model_, plan::schedule_options(config.layout, config.purpose, mesh_.coordinate().pipeline)));
}

void Session::note_stages(const StepConfig& config, const std::vector<plan::RankPlan>& plans) {
  stages_.resize(plans.size());
  for (std::size_t s = 0; s < plans.size(); ++s) {
    stages_[s].planned_bytes = std::max(stages_[s].planned_bytes, plans[s].bytes());
  }
  if (config.purpose != step::Purpose::train || stages_.front().time.seconds > 0) return;
  const plan::Target target = plan::load_target(plan::target_of(config.layout.device));
  const std::vector<plan::StepTime> times =
      plan::step_times(plan::traces_of(plans, config.layout), target, config.layout.compute,
                       plan::rate_scale_of(target, config.layout.threads));
  for (std::size_t s = 0; s < plans.size(); ++s) stages_[s].time = times[s];
}

void Session::register_memory() {
  for (const auto& [data, bytes] :
       {std::pair{state_->data(), state_->bytes()}, std::pair{arena_.data(), arena_.bytes()}}) {
    const std::string line = mesh_.register_memory(data, bytes);
    registered_.push_back(data);
    if (!line.empty()) notes_.push_back(line);
  }
}

void Session::compare_offsets() {
  if (device_.kind() == DeviceKind::meta) return;
  std::map<std::string, std::uint64_t> hashes;
  for (const auto& planned : planned_steps_) {
    for (const auto& [group, hash] : planned->plan.offset_hashes) hashes[group] = hashes[group] * 31 + hash;
  }
  for (const std::string& group : mesh_.compare_offsets(hashes, device_)) {
    notes_.push_back(cat("transfers of ", group, " use SMs: its ranks have different plans"));
  }
}

std::size_t Session::find(step::Purpose purpose) const {
  for (std::size_t i = 0; i < planned_steps_.size(); ++i) {
    if (planned_steps_[i]->config.purpose == purpose) return i;
  }
  HAWSER_CHECK(false, "this session was not made for that kind of step");
}

const plan::Layout& Session::layout() const {
  return planned_steps_.front()->config.layout;
}

const plan::RankPlan& Session::plan(step::Purpose purpose) const {
  return planned_steps_[find(purpose)]->plan;
}

std::vector<plan::StepTime> Session::stage_times() const {
  std::vector<plan::StepTime> out;
  for (const Stage& stage : stages_) out.push_back(stage.time);
  return out;
}

std::int64_t Session::largest_planned_bytes() const {
  std::int64_t out = planned_bytes();
  for (const Stage& stage : stages_) out = std::max(out, stage.planned_bytes);
  return out;
}

plan::Costs Session::largest_costs() const {
  const auto largest = std::ranges::max_element(
      planned_steps_, {}, [](const std::unique_ptr<PlannedStep>& step) { return step->plan.arena_bytes(); });
  return plan::costs_of((*largest)->plan, model_, (*largest)->config.layout);
}

std::int64_t Session::planned_bytes() const {
  return state_->bytes() + arena_.bytes() + scratch_bytes_;
}

step::Executor& Session::executor(step::Purpose purpose) {
  return *planned_step(purpose).executor;
}

StagedWeights Session::stage_weights() {
  synchronize();
  return StagedWeights(*stream_, *state_, TensorView(arena_.data(), DType::u8, {arena_.bytes()}, device_.kind()),
                       guarded_);
}

bool Session::has_history() {
  synchronize();
  const TensorView& history = state_->sites().history;
  std::vector<float> values(static_cast<std::size_t>(history.elements()));
  transfer(*stream_, reinterpret_cast<std::byte*>(values.data()), history.raw(), history.bytes());
  stream_->synchronize();
  return std::ranges::any_of(values, [](float amax) { return amax != 0; });
}

void Session::calibrate(const step::StepInput& input) {
  if (!has_history_) has_history_ = has_history();
  if (*has_history_) return;
  step::StepInput first = input;
  first.skip = true;
  enqueue(*calibration_, first);
  has_history_ = has_history();
}

void Session::set_progress(const step::OptimizerProgress& progress) {
  synchronize();
  state_->set_progress(progress, *stream_);
}

bool Session::owns_states() const {
  return mesh_.replicate().index() == 0;
}

Session::Verified Session::enqueue_verified(const step::StepInput& input) {
  HAWSER_CHECK(reference_ && comparison_, "this session was not made for steps that are verified");
  if (calibration_ && !input.skip && !has_history_.value_or(false)) calibrate(input);
  step::StepInput first = input;
  first.skip = true;
  Verified verified{.reference = enqueue(*reference_, first), .step = {}};
  verified.step = enqueue(*comparison_, input);
  return verified;
}

step::StepOutput Session::enqueue_refused(step::Purpose purpose, const step::StepInput& input) {
  const std::size_t index = refused_.at(find(purpose));
  synchronize();
  if (purpose == step::Purpose::train) {
    HAWSER_CHECK(progress_ && progress_->replay_step == input.record.step, "step ", input.record.step,
                 " was not refused");
    step::OptimizerProgress progress = *progress_;
    progress.replay_step = -1;
    set_progress(progress);
  }
  return enqueue(index, input);
}

step::StepOutput Session::run(step::Purpose purpose, const step::StepInput& input) {
  HAWSER_CHECK(purpose != step::Purpose::train, "a training step is enqueued");
  step::StepOutput output = enqueue(purpose, input);
  wait(output.end);
  if (output.result->skipped() != step::Skip::refused) return output;
  output = enqueue_refused(purpose, input);
  wait(output.end);
  if (output.result->skipped() == step::Skip::refused) throw too_many_rows(output);
  return output;
}

Error Session::too_many_rows(const step::StepOutput& refused) const {
  return Error(ExitCode::does_not_fit, cat(to_string(refused.result->refused()), " (expert_row_fallback ",
                                           layout().expert_row_fallback.value(), "); raise it"));
}

step::StepOutput Session::enqueue(step::Purpose purpose, const step::StepInput& input) {
  if (purpose == step::Purpose::train && calibration_ && !input.skip && !has_history_.value_or(false)) calibrate(input);
  return enqueue(find(purpose), input);
}

step::StepOutput Session::enqueue(std::size_t index, const step::StepInput& input) {
  if (running_ && *running_ != index) planned_steps_[*running_]->executor->synchronize();
  running_ = index;
  PlannedStep& runs = *planned_steps_[index];
  if (runs.config.purpose == step::Purpose::train && !held_.empty()) {
    if (runs.replay) runs.replay->allow_waits(held_);
    runs.executor->hold_updates(std::exchange(held_, {}));
  }
  if (runs.replay) runs.replay->begin_step();
  step::StepOutput output = runs.executor->enqueue(input);
  if (runs.replay) runs.replay->end_step();
  if (runs.config.purpose == step::Purpose::train) progress_ = output.progress;
  return output;
}

void Session::hold_updates(const std::vector<Event>& until) {
  held_ = until;
}

void Session::synchronize() {
  for (auto& planned : planned_steps_) planned->executor->synchronize();
}

void Session::wait(const Event& end) {
  constexpr double kLook = 0.2;  // seconds
  while (!host_wait_for(end, kLook)) check();
  check();
}

void Session::check() {
  for (auto& planned : planned_steps_) planned->executor->check();
}

void Session::set_on_instruction(const std::function<void(const program::Instruction&)>& on_instruction) {
  for (auto& planned : planned_steps_) planned->executor->set_on_instruction(on_instruction);
}

}  // namespace hawser::engine
