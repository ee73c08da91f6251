// Plans of steps whose trained weights are in host memory: the device has the weights of two units, and each load waits
// for what the update before has written back.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "broken_plan.h"
#include "support.h"

namespace hawser {
namespace host_weights_test {

using program::Op;

// Of master weights and slots.
enum class State { device, host };
constexpr State kStates[] = {State::device, State::host};

models::Model model_of(int blocks) {
  return models::Model(testing::llama_description({.vocabulary = 64, .blocks = blocks}));
}

plan::LayoutChoices layout_of(const models::Model& model, State state, int shards = 1, DType compute = DType::bf16) {
  plan::LayoutChoices layout = testing::make_test_layout(
      {.mesh = {.shard = shards}, .length = 32, .checkpointing = Checkpointing::full, .compute = compute}, model);
  layout.host.weights.assign(model.flats().size(), true);
  if (state != State::device) layout.host.state = layout.host.weights;
  return layout;
}

plan::RankPlan plan_of(const models::Model& model, const plan::LayoutChoices& layout) {
  plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
  EXPECT_NO_THROW(plan::check_plans({&plan}, {0}));
  return plan;
}

// Of a step's buffers of a role, the most bytes that are live when one of them begins. They are in the order of use.
std::int64_t live_bytes(const plan::RankPlan& plan, step::Role role) {
  const program::Lifetimes lifetimes(plan.trace, program::Order(plan.trace), plan.buffers.buffers);
  std::vector<int> so_far;
  std::int64_t most = 0;
  for (const auto& [key, index] : plan.buffers.index) {
    if (key.role != role) continue;
    std::erase_if(so_far, [&, b = index](int a) { return lifetimes.before(a, b); });
    so_far.push_back(index);
    std::int64_t bytes = 0;
    for (const int a : so_far) bytes += plan.buffers.buffers[static_cast<std::size_t>(a)].bytes;
    most = std::max(most, bytes);
  }
  return most;
}

TEST(HostWeightsPlan, TheDeviceHasTwoUnits) {
  const models::Model model = model_of(8);
  for (const int shards : {1, 4}) {
    std::int64_t unit = 0, shard = 0, elements = 0;  // bytes of the largest unit in bf16, all of it and a rank's shard
    for (const nn::Unit& u : model.units()) {
      std::int64_t count = 0;
      for (const int f : u.flats) count += model.flat(f).total(shards);
      unit = std::max(unit, 2 * count);
      shard = std::max(shard, 2 * count / shards);
      elements += count / shards;
    }
    EXPECT_GT(2 * elements, 4 * shard);
    plan::LayoutChoices resident = layout_of(model, State::device, shards);
    resident.host.weights.clear();
    const plan::RankPlan device = plan_of(model, resident);
    for (const State state : kStates) {
      const plan::RankPlan host = plan_of(model, layout_of(model, state, shards));
      EXPECT_EQ(live_bytes(host, step::Role::weights), 2 * unit) << shards;
      EXPECT_EQ(live_bytes(host, step::Role::weight_shard), shards > 1 ? 2 * shard : 0) << shards;
      EXPECT_EQ(host.parameter_bytes, state == State::device ? 4 * elements : 0) << shards;
      EXPECT_EQ(host.host_state_bytes, (state == State::device ? 2 : 14) * elements) << shards;
      EXPECT_EQ(host.state_bytes + host.host_state_bytes, device.state_bytes) << shards;
      if (state != State::device) {
        EXPECT_LT(host.bytes(), device.bytes()) << shards;
      }
      const plan::RankPlan copy = plan::read_plan(plan::plan_text(host), host.purpose, host.program);
      EXPECT_EQ(copy.bytes(), host.bytes());
      EXPECT_EQ(copy.pinned_bytes(), host.pinned_bytes());
    }
  }
}

// Two steps of one rank as one trace, and the defects of their accesses to memory.
struct TwoSteps {
  program::Program program;
  Trace trace;
  std::vector<program::Buffer> buffers;
  std::vector<int> starts;  // the first items of each step

  std::vector<std::string> defects() const {
    return program::check_memory({.rank = 0, .trace = &trace, .buffers = &buffers});
  }
};

TwoSteps two_steps(const models::Model& model, const plan::LayoutChoices& choices) {
  const plan::Layout layout = plan::derive(choices, model);
  TwoSteps out{.program = step::make_program(model, plan::schedule_options(layout, step::Purpose::train, 0))};
  MetaDevice device(layout.device);
  const auto mesh = comm::make_meta_mesh(layout.mesh, Rank(0));
  step::ModelState state(model, plan::state_options(layout, *mesh, true), device);
  step::MetaBuffers buffers(device);
  buffers.add_persistent("state", state.data(), state.bytes());
  buffers.add_persistent("state in host memory", state.host_data(), state.host_bytes(),
                         program::Space::persistent_host);
  step::ExecutorSetup setup = plan::executor_setup(layout, model, out.program, *mesh, step::Purpose::train);
  setup.device = &device;
  setup.state = &state;
  setup.buffers = &buffers;
  setup.on_instruction = [&](const program::Instruction& instruction) { device.set_instruction(instruction.id); };
  step::Executor executor(std::move(setup));
  for (int step = 0; step < 2; ++step) {
    out.starts.push_back(static_cast<int>(device.trace().items.size()));
    executor.enqueue({});
  }
  out.trace = device.take_trace();
  out.buffers = buffers.take().buffers;
  return out;
}

// Between what writes the weights back and the loads of the next step are two waits: that of the end of the step for
// the stream of the former, and that of the next step's copies for this end. With few flats nothing else orders them.
TEST(HostWeightsPlan, ALoadBeforeTheWeightsAreWrittenBackIsRejected) {
  const models::Model model = model_of(1);
  for (const State state : kStates) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      TwoSteps steps = two_steps(model, layout_of(model, state, 1, compute));
      ASSERT_TRUE(steps.defects().empty());
      const program::Order order(steps.trace);
      const auto op_of = [&](const TraceItem& item) {
        return item.instruction < 0 ? Op::begin_step
                                    : steps.program.instructions[static_cast<std::size_t>(item.instruction)].op;
      };
      std::vector<int> written;
      int ordered = 0, ends = 0, begins = 0;
      for (int i = 0; i < static_cast<int>(steps.trace.items.size()); ++i) {
        TraceItem& item = steps.trace.items[static_cast<std::size_t>(i)];
        const bool second = i >= steps.starts[1];
        if (item.kind == TraceItem::Kind::work && op_of(item) == Op::state_out && !second) written.push_back(i);
        if (item.kind == TraceItem::Kind::work && op_of(item) == Op::load_weights && second) {
          for (const int w : written) EXPECT_TRUE(order.before(w, i)) << w << " " << i;
          ++ordered;
        }
        if (item.kind != TraceItem::Kind::wait) continue;
        const TraceItem& event = steps.trace.items[static_cast<std::size_t>(item.target)];
        const auto name = [&](const TraceItem& of) { return steps.trace.streams[static_cast<std::size_t>(of.stream)]; };
        const bool of_end = !second && op_of(item) == Op::end_step && name(event) == "copy_out";
        const bool of_begin = second && item.target < steps.starts[1] && name(item) == "copy_in";
        if (!of_end && !of_begin) continue;
        const TraceItem kept = item;
        item.kind = TraceItem::Kind::record_event;  // an unused event: keeps the indices
        item.target = -1;
        EXPECT_FALSE(steps.defects().empty()) << (of_end ? "the end" : "the beginning") << " without its wait";
        item = kept;
        ++(of_end ? ends : begins);
      }
      EXPECT_GE(written.size(), model.flats().size());
      EXPECT_GE(ordered, 4);
      EXPECT_EQ(ends, 1);
      EXPECT_EQ(begins, 1);
    }
  }
}

// Within a step: a copy back before the update, a use before its load, the end of the step before the last copy back.
TEST(HostWeightsPlan, WithoutTheEventsOfItsCopiesIsRejected) {
  const models::Model model = model_of(4);
  const auto flats = static_cast<int>(model.flats().size());
  for (const State state : kStates) {
    const plan::RankPlan good = plan_of(model, layout_of(model, state));
    const auto op_of = [&](const TraceItem& item) {
      return item.instruction < 0 ? Op::begin_step
                                  : good.program.instructions[static_cast<std::size_t>(item.instruction)].op;
    };
    std::map<Op, int> rejected;
    // Later waits for the same load change nothing, nor do those before the wait for a later load of the same unit.
    std::set<int> waited;
    const auto waits_for_load = [&](std::size_t i) {
      const TraceItem& item = good.trace.items[i];
      return item.kind == TraceItem::Kind::wait &&
             op_of(good.trace.items[static_cast<std::size_t>(item.target)]) == Op::load_weights;
    };
    for (std::size_t i = 0; i < good.trace.items.size(); ++i) {
      const TraceItem& item = good.trace.items[i];
      if (item.kind != TraceItem::Kind::wait) continue;
      const TraceItem& event = good.trace.items[static_cast<std::size_t>(item.target)];
      const bool back = op_of(item) == Op::state_out && op_of(event) == Op::update;
      const bool loaded = waits_for_load(i) && waited.insert(item.target).second && !waits_for_load(i + 1);
      const bool end =
          op_of(item) == Op::end_step && good.trace.streams[static_cast<std::size_t>(event.stream)] == "copy_out";
      if (!back && !loaded && !end) continue;
      EXPECT_TRUE(testing::rejected_without_wait(good, i)) << "wait " << i << " of " << to_string(op_of(item));
      ++rejected[loaded ? Op::load_weights : op_of(item)];
    }
    EXPECT_EQ(rejected[Op::state_out], flats);
    EXPECT_GE(rejected[Op::load_weights], 2 * 4);  // forward and backward
    EXPECT_EQ(rejected[Op::end_step], 1);
  }
}

// Evaluation, gradient norms and generation.
TEST(HostWeightsPlan, StepsWithoutUpdatesLoadThemToo) {
  const models::Model model = model_of(6);
  for (const step::Purpose purpose : {step::Purpose::loss, step::Purpose::gradient_norms, step::Purpose::logits}) {
    plan::LayoutChoices layout = layout_of(model, State::host, 4);
    if (purpose == step::Purpose::logits) layout.cached = plan::CachedPass{.cache_rows = 64, .positions = 64};
    const plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), purpose, 0);
    EXPECT_NO_THROW(plan::check_plans({&plan}, {0}));
    std::int64_t all = 0;
    for (const nn::Flat& flat : model.flats()) all += 2 * flat.total(4);
    EXPECT_EQ(plan.parameter_bytes, 0);
    EXPECT_LT(live_bytes(plan, step::Role::weights), all / 2);
    EXPECT_GE(std::ranges::count(plan.program.instructions, Op::load_weights, &program::Instruction::op),
              std::ssize(model.flats()));
  }
}

// Lists that do not fit the model.
TEST(HostWeightsPlan, OfAnotherNumberOfFlatsAreRejected) {
  const models::Model model = model_of(1);
  for (const std::size_t places : {model.flats().size() + 1, model.flats().size() - 1}) {
    plan::LayoutChoices layout = layout_of(model, State::device);
    layout.host.weights.resize(places);
    try {
      plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
      ADD_FAILURE() << "accepted";
    } catch (const InternalError& error) {
      const std::string line = cat(places, " places for the weights of ", model.flats().size(), " flats");
      EXPECT_NE(std::string(error.what()).find(line), std::string::npos) << error.what();
    }
  }
}

}  // namespace host_weights_test
}  // namespace hawser
