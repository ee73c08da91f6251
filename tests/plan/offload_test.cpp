// Plans of steps that offload activations: less device memory, an arena of host memory, and loads that are waited for.
#include <gtest/gtest.h>

#include <algorithm>

#include "broken_plan.h"
#include "support.h"

namespace hawser {
namespace offload_test {

plan::LayoutChoices layout_of(const models::Model& model, bool offload) {
  plan::LayoutChoices layout = testing::make_test_layout({.length = 512, .micro_batches = 2}, model);
  for (nn::SavePolicy& policy : layout.policies) policy.offload = offload;
  return layout;
}

TEST(OffloadPlan, NeedsLessMemoryOfTheDevice) {
  const models::Model model(testing::llama_description({.vocabulary = 64, .blocks = 8}));
  const auto arena = [&](const plan::LayoutChoices& layout) {
    const plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
    EXPECT_NO_THROW(plan::check_plans({&plan}, {0}));
    return std::pair(plan.buffers.placement.bytes, plan.host_bytes());
  };
  const auto [kept, no_host] = arena(layout_of(model, false));
  EXPECT_EQ(no_host, 0);
  const auto [offloaded, host] = arena(layout_of(model, true));
  EXPECT_GT(host, 0);
  EXPECT_LT(offloaded, kept / 2) << "of " << kept;
  plan::LayoutChoices eager = layout_of(model, true);
  eager.offload_window = model.layers();  // all at once, when backward begins
  EXPECT_GT(arena(eager).first, offloaded);
  // A forward-only step saves nothing.
  EXPECT_EQ(plan::plan_rank(model, plan::derive(layout_of(model, true), model), step::Purpose::loss, 0).host_bytes(),
            0);
}

// Each layer's tensors come back in other buffers than forward wrote.
TEST(OffloadPlan, LoadsIntoBuffersOfItsOwn) {
  const models::Model model(testing::llama_description({.vocabulary = 64, .blocks = 8}));
  const plan::RankPlan plan =
      plan::plan_rank(model, plan::derive(layout_of(model, true), model), step::Purpose::train, 0);
  int elsewhere = 0;
  for (const auto& [key, buffer] : plan.buffers.index) {
    if (key.role != step::Role::saved) continue;
    const program::Instruction& owner = plan.program.instructions[static_cast<std::size_t>(key.a)];
    if (owner.op != program::Op::load) continue;
    const auto forward = plan.buffers.index.find({step::Role::saved, owner.saved, key.b});
    if (forward == plan.buffers.index.end()) continue;  // written by recompute
    elsewhere += plan.buffers.offset(buffer) != plan.buffers.offset(forward->second) ? 1 : 0;
  }
  EXPECT_GT(elsewhere, 0);
}

// Host memory is planned to the byte, and refused before any is reserved. On the CPU it is in the capacity, too.
TEST(OffloadPlan, HostMemoryIsChecked) {
  const models::Model model(testing::llama_description({.vocabulary = 64, .blocks = 2}));
  const plan::LayoutChoices layout = layout_of(model, true);
  const auto cpu = make_cpu_device();
  const auto mesh = comm::make_self_mesh();
  testing::CountingDevice device(*cpu);
  const auto open = [&](std::optional<Bytes> capacity, std::optional<Bytes> host) {
    return engine::Session(model, plan::derive(layout, model), device, *mesh,
                           {step::Purpose::train, step::Purpose::loss}, capacity, {.host_capacity = host});
  };
  std::int64_t planned = 0, pinned = 0;
  {
    const engine::Session session = open(std::nullopt, std::nullopt);
    planned = session.planned_bytes();
    pinned = session.pinned_bytes();
    EXPECT_EQ(pinned, device.host);
    const plan::RankPlan& train = session.plan(step::Purpose::train);
    EXPECT_GT(train.host_bytes(), 0);
    EXPECT_EQ(pinned, train.pinned_bytes() + session.plan(step::Purpose::loss).staging_bytes);
    EXPECT_EQ(plan::costs_of(train, model, plan::derive(layout, model)).pinned_bytes, train.pinned_bytes());
    const plan::RankPlan copy = plan::read_plan(plan::plan_text(train), train.purpose, train.program);
    EXPECT_EQ(copy.pinned_bytes(), train.pinned_bytes());
  }
  device.host = 0;
  const auto refused = [&](std::int64_t capacity, std::int64_t host, const std::string& words) {
    try {
      open(Bytes(capacity), Bytes(host));
      FAIL() << "not refused: " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::does_not_fit);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
    EXPECT_EQ(device.host, 0);
  };
  refused(planned + pinned, pinned - 1, "does not fit in host memory");
  refused(planned + pinned - 1, pinned, "and may use");
  open(Bytes(planned + pinned), Bytes(pinned));
  EXPECT_EQ(device.host, pinned);
}

// Ops of a GPU's streams must not take them.
TEST(OffloadPlan, ViewsOfHostMemoryAreOfTheCpu) {
  const models::Model model(testing::llama_description({.vocabulary = 64, .blocks = 2}));
  const plan::RankPlan plan =
      plan::plan_rank(model, plan::derive(layout_of(model, true), model), step::Purpose::train, 0);
  std::vector<std::byte> device(1), host(1);  // addresses only
  const step::Arenas arenas{.device = device.data(), .host = host.data()};
  step::PlannedBuffers buffers(plan.buffers, arenas, DeviceKind::cuda);
  int on_host = 0;
  for (const auto& [key, index] : plan.buffers.index) {
    const program::Buffer& buffer = plan.buffers.buffers[static_cast<std::size_t>(index)];
    const TensorView view = buffers.get(key, DType::u8, {buffer.bytes});
    const bool offloaded = key.role == step::Role::offloaded;
    EXPECT_EQ(view.device(), offloaded ? DeviceKind::cpu : DeviceKind::cuda) << key.text();
    on_host += offloaded ? 1 : 0;
  }
  EXPECT_GT(on_host, 0);
}

TEST(OffloadPlan, WithoutTheEventOfALoadOrAnOffloadIsRejected) {
  const models::Model model(testing::llama_description({.vocabulary = 64, .blocks = 3}));
  const plan::RankPlan good =
      plan::plan_rank(model, plan::derive(layout_of(model, true), model), step::Purpose::train, 0);
  int loads = 0, offloads = 0, needed = 0;
  for (std::size_t i = 0; i < good.trace.items.size(); ++i) {
    const TraceItem& item = good.trace.items[i];
    if (item.kind != TraceItem::Kind::wait) continue;
    const TraceItem& event = good.trace.items[static_cast<std::size_t>(item.target)];
    const auto op_of = [&](const TraceItem& it) {
      return it.instruction < 0 ? program::Op::begin_step
                                : good.program.instructions[static_cast<std::size_t>(it.instruction)].op;
    };
    // What backward, or a recompute before it, waits for, and what a load waits for of its offload.
    const bool reads_load = op_of(event) == program::Op::load && op_of(item) != program::Op::end_step;
    const bool reads_offload = op_of(event) == program::Op::offload && op_of(item) == program::Op::load;
    if (!reads_load && !reads_offload) continue;
    const bool rejects = testing::rejected_without_wait(good, i);
    // The last layer's load comes first: its wait implies those for the offloads before.
    EXPECT_TRUE(rejects || reads_offload) << "wait " << i;
    ++(reads_load ? loads : offloads);
    if (reads_offload && rejects) ++needed;
  }
  EXPECT_GE(loads, 2 * model.layers());
  EXPECT_GE(offloads, 2 * model.layers());
  EXPECT_GE(needed, 1);
}

}  // namespace offload_test
}  // namespace hawser
