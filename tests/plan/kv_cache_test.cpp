// Plans of passes of generation whose KV caches are in host memory: the device has the copies of two layers, the host
// the KV caches to the byte, and each copy is waited for.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "broken_plan.h"
#include "device/forwarding_device.h"
#include "program/order.h"
#include "support.h"

namespace hawser {
namespace kv_cache_test {

using program::Op;
using step::Role;

constexpr int kBlocks = 6;
constexpr std::int64_t kSlots = 96, kRows = 8;
// Bytes of K, or of V: of a layer's KV cache, and of what a pass adds to it.
constexpr std::int64_t kRowBytes = 2 * 16 * 2, kCache = kSlots * kRowBytes, kAdded = kRows * kRowBytes;

models::Model model_of() {
  return models::Model(
      testing::llama_description({.kv_heads = 2, .head_dim = 16, .vocabulary = 64, .blocks = kBlocks}));
}

plan::Layout layout_of(const models::Model& model, bool on_host) {
  plan::Layout layout = testing::make_test_layout({.length = kRows, .documents = 3, .compute = DType::bf16}, model);
  layout.kv_cache_rows = kSlots;
  layout.kv_cache_on_host = on_host;
  return layout;
}

plan::RankPlan plan_of(const models::Model& model, bool on_host) {
  plan::RankPlan plan = plan::plan_rank(model, layout_of(model, on_host), step::Purpose::logits, 0);
  EXPECT_NO_THROW(plan::check_plans({&plan}, {0}));
  return plan;
}

Op op_of(const plan::RankPlan& plan, const TraceItem& item) {
  return item.instruction < 0 ? Op::begin_step
                              : plan.program.instructions[static_cast<std::size_t>(item.instruction)].op;
}

// Bytes of all buffers of a role, and of the arena that they share.
std::pair<std::int64_t, std::int64_t> bytes_of(const plan::RankPlan& plan, Role role) {
  std::int64_t all = 0, shared = 0, end = 0;
  std::map<std::int64_t, std::int64_t> ends;  // by offset
  for (const auto& [key, index] : plan.buffers.index) {
    if (key.role != role) continue;
    const std::int64_t bytes = plan.buffers.buffers[static_cast<std::size_t>(index)].bytes;
    const std::int64_t offset = plan.buffers.offset(index);
    all += bytes;
    ends[offset] = std::max(ends[offset], offset + bytes);
  }
  for (const auto& [offset, last] : ends) {
    shared += std::max<std::int64_t>(0, last - std::max(offset, end));
    end = std::max(end, last);
  }
  return {all, shared};
}

TEST(KvCachePlan, TheDeviceHasTheCopiesOfTwoLayers) {
  const models::Model model = model_of();
  const plan::RankPlan device = plan_of(model, false), host = plan_of(model, true);
  EXPECT_EQ(device.host_state_bytes, 0);
  EXPECT_EQ(device.kv_cache_bytes, 2 * kBlocks * kCache);
  EXPECT_EQ(host.kv_cache_bytes, 0);
  EXPECT_EQ(host.host_state_bytes, 2 * kBlocks * kCache);
  EXPECT_EQ(device.state_bytes, host.state_bytes + host.host_state_bytes);
  EXPECT_EQ(bytes_of(host, Role::kv_copy), std::pair(2 * kBlocks * kCache, 2 * 2 * kCache));
  EXPECT_EQ(bytes_of(host, Role::new_rows), std::pair(2 * kBlocks * kAdded, 2 * 2 * kAdded));
  EXPECT_LE(host.buffers.placement.bytes, device.buffers.placement.bytes + 2 * 2 * (kCache + kAdded));
  EXPECT_EQ(device.host_bytes(), 0);
  EXPECT_EQ(host.host_bytes(), 2 * 2 * kAdded + Device::kAlignment);  // and the slots
  EXPECT_EQ(
      plan::costs_of(host, model, layout_of(model, true)).pinned_bytes,
      plan::costs_of(device, model, layout_of(model, false)).pinned_bytes + host.host_state_bytes + host.host_bytes());
  const plan::RankPlan copy = plan::read_plan(plan::plan_text(host), host.purpose, host.program);
  EXPECT_EQ(copy.bytes(), host.bytes());
  EXPECT_EQ(copy.pinned_bytes(), host.pinned_bytes());
  for (const Role role : {Role::kv_copy, Role::new_rows, Role::host_rows, Role::host_slots}) {
    EXPECT_EQ(bytes_of(copy, role), bytes_of(host, role));
  }
}

TEST(KvCachePlan, HostMemoryIsWhatIsAllocated) {
  const models::Model model = model_of();
  const auto cpu = make_cpu_device();
  const auto mesh = comm::make_self_mesh();
  testing::CountingDevice device(*cpu);
  engine::Session session(model, layout_of(model, true), device, *mesh, {step::Purpose::logits});
  const plan::RankPlan& plan = session.plan(step::Purpose::logits);
  EXPECT_EQ(session.state().host_bytes(), plan.host_state_bytes);
  EXPECT_EQ(session.state().kv_cache_host_bytes(), plan.host_state_bytes);
  EXPECT_EQ(session.state().kv_cache_bytes(), 0);
  EXPECT_EQ(session.pinned_bytes(), plan.pinned_bytes());
  EXPECT_EQ(session.pinned_bytes(), device.host);
}

// A layer's copy is made while the one before computes, and takes the buffers of the second one before. The host writes
// to its own memory alone.
TEST(KvCachePlan, CopiesRunAheadByOneLayer) {
  const models::Model model = model_of();
  const plan::RankPlan plan = plan_of(model, true);
  const program::Order order(plan.trace);
  const program::BufferIndex buffers(plan.buffers.buffers);
  std::map<Op, std::vector<int>> last;  // the last item of each instruction with a KV cache
  int writes = 0;
  for (int i = 0; i < static_cast<int>(plan.trace.items.size()); ++i) {
    const TraceItem& item = plan.trace.items[static_cast<std::size_t>(i)];
    if (item.kind != TraceItem::Kind::work || item.instruction < 0) continue;
    const program::Instruction& instruction = plan.program.instructions[static_cast<std::size_t>(item.instruction)];
    const bool first =
        last[instruction.op].empty() ||
        plan.trace.items[static_cast<std::size_t>(last[instruction.op].back())].instruction != item.instruction;
    const bool attention = instruction.layer >= 0 && model.attention(instruction.layer) != nullptr;
    if (attention && first) last[instruction.op].push_back(i);
    if (attention) last[instruction.op].back() = i;
    EXPECT_EQ(item.record.on_host, instruction.op == Op::write_slots);
    writes += item.record.on_host ? 1 : 0;
    for (const Access& access : item.record.accesses) {
      if (!item.record.on_host) break;
      const program::Space space = plan.buffers.buffers[static_cast<std::size_t>(buffers.find(access.address))].space;
      EXPECT_TRUE(space == program::Space::host || space == program::Space::persistent_host) << item.record.name;
    }
  }
  EXPECT_EQ(writes, 2 * kBlocks);
  const auto &loads = last[Op::load_cache], &forwards = last[Op::forward], &stores = last[Op::store_rows],
             &written = last[Op::write_slots];
  ASSERT_EQ(loads.size(), kBlocks);
  ASSERT_EQ(forwards.size(), kBlocks);
  ASSERT_EQ(stores.size(), kBlocks);
  ASSERT_EQ(written.size(), kBlocks);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(order.before(loads[i], forwards[i])) << i;
    EXPECT_TRUE(order.before(forwards[i], stores[i])) << i;
    EXPECT_TRUE(order.before(stores[i], written[i])) << i;
    if (i > 0) {
      EXPECT_FALSE(order.before(forwards[i - 1], loads[i])) << i;
      EXPECT_FALSE(order.before(written[i - 1], forwards[i])) << i;
    }
  }
}

// Each wait of the copies, and the end of the step before the last write.
TEST(KvCachePlan, WithoutTheEventOfACopyIsRejected) {
  const models::Model model = model_of();
  const plan::RankPlan good = plan_of(model, true);
  std::map<std::pair<Op, Op>, int> rejected;
  for (std::size_t i = 0; i < good.trace.items.size(); ++i) {
    const TraceItem& item = good.trace.items[i];
    if (item.kind != TraceItem::Kind::wait) continue;
    const TraceItem& event = good.trace.items[static_cast<std::size_t>(item.target)];
    const Op of = op_of(good, event), in = op_of(good, item);
    // Of the other streams' ends, the host's has all of the copies before it.
    if (in == Op::end_step && good.trace.streams[static_cast<std::size_t>(event.stream)] != "host") continue;
    EXPECT_TRUE(testing::rejected_without_wait(good, i)) << to_string(in) << " waits for " << to_string(of);
    ++rejected[{of, in}];
  }
  EXPECT_EQ(rejected, (std::map<std::pair<Op, Op>, int>{{{Op::load_batch, Op::slots_out}, 1},
                                                        {{Op::load_cache, Op::forward}, kBlocks},
                                                        {{Op::forward, Op::load_cache}, kBlocks - 2},
                                                        {{Op::forward, Op::store_rows}, kBlocks},
                                                        {{Op::store_rows, Op::forward}, kBlocks - 2},
                                                        {{Op::store_rows, Op::write_slots}, kBlocks},
                                                        {{Op::write_slots, Op::store_rows}, kBlocks - 2},
                                                        {{Op::end_step, Op::end_step}, 1}}));
}

// Sums what load_cache really copies, which is less than the plan has.
class LoadedBytes : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::unique_ptr<Stream> make_stream(const std::string& name) override {
    return std::make_unique<Watched>(inner_->make_stream(name), bytes);
  }
  double bytes = 0;

 private:
  class Watched : public ForwardingStream {
   public:
    Watched(std::unique_ptr<Stream> inner, double& bytes) : ForwardingStream(std::move(inner)), bytes_(bytes) {}
    void launch(OpRecord record, std::function<void()> work) override {
      if (std::string(record.name) == to_string(Op::load_cache)) bytes_ += record.bytes;
      inner_->launch(std::move(record), std::move(work));
    }

   private:
    double& bytes_;
  };
};

// Ten rows of one sequence are in its KV cache, none of another, which has its first rows in the same pass. A query
// with a window of four sees three of them.
TEST(KvCachePlan, VisibleRowsAloneAreCopied) {
  models::ModelDescription description = model_of().description();
  description.blocks.at(2).attention.window = 4;
  const models::Model model(std::move(description));
  const auto cpu = make_cpu_device();
  const auto mesh = comm::make_self_mesh();
  LoadedBytes device(*cpu);
  engine::Session session(model, layout_of(model, true), device, *mesh, {step::Purpose::logits});
  session.initialise(1);
  auto batch = std::make_shared<step::HostBatch>();
  batch->ids.assign(kRows, 1);
  batch->positions = {10, 11, 12, 0, 1, 2, 3, 4};
  batch->diagonal = {0, 3, 0, 13, 10, 0, 3, 5, 48, 5, 0, 0};
  batch->slot_mapping = {10, 11, 12, 48, 49, 50, 51, 52};
  batch->logit_positions = {2};
  step::StepInput input;
  input.batches.push_back(std::move(batch));
  session.enqueue(step::Purpose::logits, input);
  session.synchronize();
  EXPECT_EQ(device.bytes, 2 * kRowBytes * (10 * (kBlocks - 1) + 3));
}

// Of several micro-batches, each reads what the one before has written.
TEST(KvCachePlan, MicroBatchesSeeEarlierRows) {
  const models::Model model = model_of();
  step::ScheduleOptions options = plan::schedule_options(layout_of(model, true), step::Purpose::logits);
  options.micro_batches = 3;
  options.passes = step::forward_passes(3, options.partition, 0);
  const program::Program program = step::make_program(model, options);
  std::map<int, int> written;  // by layer
  int loads = 0, tables = 0;
  for (const program::Instruction& instruction : program.instructions) {
    if (instruction.op == Op::slots_out) ++tables;
    if (instruction.op == Op::write_slots) written[instruction.layer] = instruction.id;
    if (instruction.op != Op::load_cache) continue;
    ++loads;
    const bool waits = written.contains(instruction.layer) &&
                       std::ranges::find(instruction.after, written[instruction.layer]) != instruction.after.end();
    EXPECT_EQ(waits, instruction.micro_batch > 0) << instruction.id;
  }
  EXPECT_EQ(loads, 3 * kBlocks);
  EXPECT_EQ(tables, 3);
}

// A stage without attention has no KV cache, and copies none.
TEST(KvCachePlan, StageWithTheHeadAlone) {
  const models::Model model = model_of();
  plan::Layout layout = layout_of(model, true);
  plan::set_partition(layout, model, {.stages = 2, .ends = {kBlocks, kBlocks}});
  const std::vector<plan::RankPlan> plans = plan::plan_stages(model, layout, step::Purpose::logits, 0, false);
  EXPECT_EQ(plans[0].host_state_bytes, 2 * kBlocks * kCache);
  EXPECT_EQ(plans[1].pinned_bytes(), plans[1].staging_bytes);
  for (const program::Instruction& instruction : plans[1].program.instructions) {
    EXPECT_NE(instruction.op, Op::load_cache);
    EXPECT_NE(instruction.op, Op::slots_out);
  }
}

TEST(KvCachePlan, RejectsWhatHasNoCopies) {
  const models::Model model = model_of();
  const auto rejection = [&](const plan::Layout& layout, step::Purpose purpose) -> std::string {
    try {
      plan::plan_rank(model, layout, purpose, 0);
    } catch (const InternalError& error) {
      return error.what();
    }
    return "";
  };
  plan::Layout layout = layout_of(model, true);
  EXPECT_EQ(rejection(layout, step::Purpose::logits), "");
  for (const step::Purpose purpose : {step::Purpose::train, step::Purpose::loss, step::Purpose::gradient_norms}) {
    EXPECT_NE(rejection(layout, purpose).find("a KV cache in host memory in a step that is no pass of generation"),
              std::string::npos);
  }
  layout.kv_cache_rows = 0;
  EXPECT_NE(rejection(layout, step::Purpose::logits).find("a KV cache in host memory without rows"), std::string::npos);
  plan::Layout context = testing::make_test_layout({.mesh = {.context = 2}}, model);
  context.kv_cache_rows = kSlots;
  context.kv_cache_on_host = true;
  EXPECT_NE(rejection(context, step::Purpose::logits).find("a KV cache with context parallelism"), std::string::npos);
}

}  // namespace kv_cache_test
}  // namespace hawser
