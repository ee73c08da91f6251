// Plans of steps whose optimizer state is in host memory: less device memory, host memory to the byte, and copies that
// are waited for.
#include <gtest/gtest.h>

#include <algorithm>

#include "broken_plan.h"
#include "support.h"

namespace hawser {
namespace host_state_test {

using program::Op;

plan::LayoutChoices layout_of(const models::Model& model, bool on_host) {
  plan::LayoutChoices layout = testing::make_test_layout({.length = 32, .compute = DType::bf16}, model);
  if (on_host) layout.host.state.assign(model.flats().size(), true);
  return layout;
}

plan::RankPlan plan_of(const models::Model& model, bool on_host) {
  plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout_of(model, on_host), model), step::Purpose::train, 0);
  EXPECT_NO_THROW(plan::check_plans({&plan}, {0}));
  return plan;
}

Op op_of(const plan::RankPlan& plan, const TraceItem& item) {
  return item.instruction < 0 ? Op::begin_step
                              : plan.program.instructions[static_cast<std::size_t>(item.instruction)].op;
}

TEST(HostStatePlan, NeedsLessMemoryOfTheDevice) {
  const models::Model model(testing::llama_description({.vocabulary = 64, .blocks = 8}));
  const plan::RankPlan device = plan_of(model, false), host = plan_of(model, true);
  EXPECT_EQ(device.host_state_bytes, 0);
  EXPECT_EQ(device.state_bytes, host.state_bytes + host.host_state_bytes);
  EXPECT_GT(host.host_state_bytes, 5 * host.state_bytes);  // 12 bytes a parameter, and 2
  EXPECT_EQ(host.optimizer_bytes, 0);
  // The copies of two flats at a time are all that the arena has in addition.
  std::int64_t largest = 0;
  for (const program::Instruction& copy : host.program.instructions) {
    if (copy.op != Op::state_in) continue;
    std::int64_t bytes = 0;
    for (const auto& [key, index] : host.buffers.index) {
      const program::Buffer& buffer = host.buffers.buffers[static_cast<std::size_t>(index)];
      if (key.role == step::Role::staged_state && key.a == copy.id) bytes += buffer.bytes;
    }
    EXPECT_GT(bytes, 0);
    largest = std::max(largest, bytes);
  }
  EXPECT_LE(host.buffers.placement.bytes, device.buffers.placement.bytes + 2 * largest);
  EXPECT_LT(host.bytes(), device.bytes());
}

TEST(HostStatePlan, HostMemoryIsWhatIsAllocated) {
  const models::Model model(testing::llama_description({.vocabulary = 64, .blocks = 2}));
  const auto cpu = make_cpu_device();
  const auto mesh = comm::make_self_mesh();
  for (const DType compute : {DType::f32, DType::bf16}) {
    plan::LayoutChoices layout = layout_of(model, true);
    layout.compute = compute;
    testing::CountingDevice device(*cpu);
    const auto open = [&](std::optional<Bytes> host) {
      return engine::Session(model, plan::derive(layout, model), device, *mesh,
                             {step::Purpose::train, step::Purpose::loss}, std::nullopt, {.host_capacity = host});
    };
    std::int64_t pinned = 0;
    {
      engine::Session session = open(std::nullopt);
      const plan::RankPlan& train = session.plan(step::Purpose::train);
      pinned = session.pinned_bytes();
      EXPECT_EQ(pinned, device.host);
      EXPECT_EQ(pinned, train.pinned_bytes() + session.plan(step::Purpose::loss).staging_bytes);
      EXPECT_EQ(train.host_state_bytes, session.state().host_bytes());
      EXPECT_EQ(session.plan(step::Purpose::loss).host_state_bytes, train.host_state_bytes);
      EXPECT_EQ(plan::costs_of(train, model, plan::derive(layout, model)).pinned_bytes, train.pinned_bytes());
      const plan::RankPlan copy = plan::read_plan(plan::plan_text(train), train.purpose, train.program);
      EXPECT_EQ(copy.host_state_bytes, train.host_state_bytes);
      EXPECT_EQ(copy.pinned_bytes(), train.pinned_bytes());
    }
    device.host = 0;
    EXPECT_THROW(open(Bytes(pinned - 1)), Error);
    EXPECT_EQ(device.host, 0);
    open(Bytes(pinned));
    EXPECT_EQ(device.host, pinned);
  }
}

// An update without the event of its state_in, a state_out without that of the update, a state_in without that of the
// state_out which frees its buffers, the end of the step without that of the last state_out.
TEST(HostStatePlan, WithoutTheEventOfACopyIsRejected) {
  const models::Model model(testing::llama_description({.vocabulary = 64, .blocks = 4}));
  const plan::RankPlan good = plan_of(model, true);
  int ins = 0, outs = 0, reused = 0, ends = 0;
  for (std::size_t i = 0; i < good.trace.items.size(); ++i) {
    const TraceItem& item = good.trace.items[i];
    if (item.kind != TraceItem::Kind::wait) continue;
    const TraceItem& event = good.trace.items[static_cast<std::size_t>(item.target)];
    const Op of = op_of(good, event), in = op_of(good, item);
    const bool before_update = of == Op::state_in && in == Op::update;
    const bool after_update = of == Op::update && in == Op::state_out;
    const bool before_reuse = of == Op::state_out && in == Op::state_in;
    const bool before_end =
        in == Op::end_step && good.trace.streams[static_cast<std::size_t>(event.stream)] == "copy_out";
    if (!before_update && !after_update && !before_reuse && !before_end) continue;
    const bool rejects = testing::rejected_without_wait(good, i);
    EXPECT_TRUE(rejects) << "wait " << i;
    ++(before_update ? ins : after_update ? outs : before_reuse ? reused : ends);
  }
  const auto flats = static_cast<int>(model.flats().size());
  EXPECT_EQ(ins, flats);
  EXPECT_EQ(outs, flats);
  EXPECT_EQ(reused, flats - 2);
  EXPECT_EQ(ends, 1);
}

// The copies of one flat are made while another one is updated, at most two flats are on the device, and none before
// backward is nearly over.
TEST(HostStatePlan, CopiesRunAheadOfUpdatesByOne) {
  const models::Model model(testing::llama_description({.vocabulary = 64, .blocks = 4}));
  const plan::RankPlan plan = plan_of(model, true);
  const program::Order order(plan.trace);
  std::vector<int> ins, updates, outs;
  int last_backward = -1;
  for (int i = 0; i < static_cast<int>(plan.trace.items.size()); ++i) {
    const TraceItem& item = plan.trace.items[static_cast<std::size_t>(i)];
    if (item.kind != TraceItem::Kind::work) continue;
    const Op op = op_of(plan, item);
    // The first item of each instruction, and the last backward that uses a layer.
    std::vector<int>* const list = op == Op::state_in    ? &ins
                                   : op == Op::update    ? &updates
                                   : op == Op::state_out ? &outs
                                                         : nullptr;
    if (op == Op::backward) last_backward = i;
    if (list == nullptr) continue;
    const bool again =
        !list->empty() && plan.trace.items[static_cast<std::size_t>(list->back())].instruction == item.instruction;
    if (!again) list->push_back(i);
  }
  ASSERT_EQ(ins.size(), updates.size());
  ASSERT_EQ(outs.size(), updates.size());
  for (std::size_t i = 0; i < ins.size(); ++i) {
    EXPECT_TRUE(order.before(last_backward, ins[i])) << i;
    EXPECT_TRUE(order.before(ins[i], updates[i])) << i;
    if (i + 1 < ins.size()) {
      EXPECT_FALSE(order.before(updates[i], ins[i + 1])) << i;
    }
    if (i + 2 < ins.size()) {
      EXPECT_TRUE(order.before(outs[i], ins[i + 2])) << i;
    }
  }
}

}  // namespace host_state_test
}  // namespace hawser
