// Plans of steps whose frozen weights are in host memory: the device has the weights of two units, each load is waited
// for, and what loading takes between steps is part of the plan.
#include <gtest/gtest.h>

#include <set>

#include "broken_plan.h"
#include "support.h"

namespace hawser {
namespace streamed_test {

using program::Op;

constexpr int kBlocks = 8;

models::Model model_of() {
  models::ModelDescription description = testing::llama_description({.vocabulary = 64, .blocks = kBlocks});
  for (models::BlockDescription& block : description.blocks) {
    nn::AttentionConfig& a = block.attention;
    for (const std::string& name : {a.q, a.output}) a.adapters.push_back({name, 2, 2.0});
  }
  return models::Model(std::move(description), [](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    spec.trainable = param.name.find("lora_") != std::string::npos;
    return spec;
  });
}

plan::LayoutChoices layout_of(const models::Model& model, const comm::MeshSizes& mesh, bool streamed) {
  plan::LayoutChoices layout = testing::make_test_layout(
      {.mesh = mesh, .length = 32, .checkpointing = Checkpointing::full, .compute = DType::bf16}, model);
  for (const nn::Flat& flat : model.flats()) {
    layout.host.state.push_back(streamed && !flat.spec().trainable);
  }
  return layout;
}

plan::RankPlan plan_of(const models::Model& model, const comm::MeshSizes& mesh, bool streamed) {
  plan::RankPlan plan =
      plan::plan_rank(model, plan::derive(layout_of(model, mesh, streamed), model), step::Purpose::train, 0);
  EXPECT_NO_THROW(plan::check_plans({&plan}, {0}));
  return plan;
}

// Bytes of a rank's shards of the frozen weights in bf16: of all flats, and of the unit that has the most.
std::pair<std::int64_t, std::int64_t> base_of(const models::Model& model, int parts) {
  std::int64_t all = 0, largest = 0;
  for (const nn::Unit& unit : model.units()) {
    std::int64_t bytes = 0;
    for (const int f : unit.flats) {
      const nn::Flat& flat = model.flat(f);
      if (!flat.spec().trainable) bytes += round_up(2 * flat.total(parts) / parts, Device::kAlignment);
    }
    all += bytes;
    largest = std::max(largest, bytes);
  }
  return {all, largest};
}

TEST(StreamedPlan, TheDeviceHasTwoUnitsOfTheBase) {
  const models::Model model = model_of();
  for (const int shards : {1, 4}) {
    const comm::MeshSizes mesh{.shard = shards};
    const plan::RankPlan device = plan_of(model, mesh, false), host = plan_of(model, mesh, true);
    const auto [base, unit] = base_of(model, shards);
    EXPECT_GT(base, 4 * unit);
    EXPECT_EQ(host.host_state_bytes, base);
    EXPECT_EQ(device.state_bytes - host.state_bytes, base);
    EXPECT_GE(device.bytes() - host.bytes(), base - 2 * unit) << shards;
    EXPECT_EQ(host.pinned_bytes(), device.pinned_bytes() + base);
    const plan::RankPlan copy = plan::read_plan(plan::plan_text(host), host.purpose, host.program);
    EXPECT_EQ(copy.bytes(), host.bytes());
    EXPECT_EQ(copy.pinned_bytes(), host.pinned_bytes());
  }
}

// Of the loads without, and those before a gather.
TEST(StreamedPlan, WithoutTheEventOfALoadIsRejected) {
  const models::Model model = model_of();
  for (const int shards : {1, 4}) {
    const plan::RankPlan good = plan_of(model, {.shard = shards}, true);
    const auto op_of = [&](const TraceItem& item) {
      return item.instruction < 0 ? Op::begin_step
                                  : good.program.instructions[static_cast<std::size_t>(item.instruction)].op;
    };
    int loads = 0, reused = 0;
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
      const Op in = op_of(item);
      const bool loaded = waits_for_load(i) && waited.insert(item.target).second && !waits_for_load(i + 1);
      const bool reuses = in == Op::load_weights;
      if (!loaded && !reuses) continue;
      const bool rejects = testing::rejected_without_wait(good, i);
      if (loaded) {
        EXPECT_TRUE(rejects) << shards << " shards, wait " << i;
        ++loads;
      } else {
        reused += rejects ? 1 : 0;
      }
    }
    EXPECT_GE(loads, 2 * kBlocks) << shards;       // forward and backward
    EXPECT_GE(reused, 2 * kBlocks - 4) << shards;  // bytes that a load has before
  }
}

// Shards are loaded while those of the unit before are gathered, into the buffers of the unit before that: no load runs
// further ahead, or the device has the shards of all units at once.
TEST(StreamedPlan, LoadsOfShardsRunAheadByOneUnit) {
  const models::Model model = model_of();
  const plan::RankPlan plan = plan_of(model, {.shard = 4}, true);
  const program::Order order(plan.trace);
  std::vector<int> loads, gathers;  // of shards in host memory: the first and the last item of each
  for (int i = 0; i < static_cast<int>(plan.trace.items.size()); ++i) {
    const TraceItem& item = plan.trace.items[static_cast<std::size_t>(i)];
    if (item.kind != TraceItem::Kind::work || item.instruction < 0) continue;
    const program::Instruction& instruction = plan.program.instructions[static_cast<std::size_t>(item.instruction)];
    const bool load = instruction.op == Op::load_weights && instruction.shard;
    if (!load && !(instruction.op == Op::gather && instruction.staged >= 0)) continue;
    std::vector<int>& list = load ? loads : gathers;
    const bool again =
        !list.empty() && plan.trace.items[static_cast<std::size_t>(list.back())].instruction == item.instruction;
    if (again && !load) list.back() = i;
    if (!again) list.push_back(i);
  }
  ASSERT_GE(loads.size(), std::size_t{2} * kBlocks);
  ASSERT_EQ(loads.size(), gathers.size());
  for (std::size_t i = 0; i < loads.size(); ++i) {
    EXPECT_TRUE(order.before(loads[i], gathers[i])) << i;
    if (i >= 1) {
      EXPECT_FALSE(order.before(gathers[i - 1], loads[i])) << i;
    }
    if (i >= 4) {  // a unit has at most two flats in host memory
      EXPECT_TRUE(order.before(gathers[i - 4], loads[i])) << i;
    }
  }
}

// Sequences so short that the step's arena is smaller than the largest flat: a block's, of five matrices, since a GEMM's
// workspace may have one of them in float32.
TEST(StreamedPlan, LoadingTakesMemoryOfTheArena) {
  const models::Model model(testing::llama_description(
      {.width = 256, .head_dim = 64, .inner = 256, .vocabulary = 67, .blocks = 1, .tied = true}));
  const auto mesh = comm::make_self_mesh();
  const auto cpu = make_cpu_device();
  plan::LayoutChoices layout = testing::make_test_layout({.length = 12, .compute = DType::bf16}, model);
  layout.host.state.assign(model.flats().size(), true);
  const plan::RankPlan loss = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::loss, 0);
  std::int64_t largest = 0;
  for (const nn::Flat& flat : model.flats())
    largest = std::max(largest, round_up(4 * flat.total(1), Device::kAlignment));
  EXPECT_EQ(loss.staged_bytes, largest);
  EXPECT_GT(largest, loss.buffers.placement.bytes);
  EXPECT_EQ(loss.arena_bytes(), largest);
  EXPECT_EQ(plan::costs_of(loss, model, plan::derive(layout, model)).peak_bytes_by_category.at("loading of weights"),
            largest - loss.buffers.placement.bytes);
  for (const bool guard : {false, true}) {
    testing::CountingDevice device(*cpu);
    engine::Session session(model, plan::derive(layout, model), device, *mesh, {step::Purpose::loss}, std::nullopt,
                            {.replay = guard, .guard = guard});
    const std::int64_t before = device.device;
    EXPECT_GE(session.arena_bytes(), largest);
    session.initialise(1);
    session.parameters_changed();
    EXPECT_EQ(device.device, before);
    testing::Steps steps(session);
    EXPECT_GT(steps.run(step::Purpose::loss), 1);
  }
}

}  // namespace streamed_test
}  // namespace hawser
