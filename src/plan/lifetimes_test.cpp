// Every buffer of a plan has one lifetime: where a step writes the same values or others again, such as recomputed
// tensors, gathered weights and loaded activations, they have a buffer of their own, and may be elsewhere. Tensors that
// one instruction uses several times, and delayed weight gradients, are not tested.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "models/families.h"
#include "models/testing/published.h"
#include "plan/plan.h"
#include "program/written.h"

namespace hawser::plan {
namespace lifetimes_test {

models::Model model_of(const std::string& name, int blocks) {
  for (const models::testing::Published& published : models::testing::kPublished) {
    if (name != published.name) continue;
    std::string config = published.config;
    const std::string key = "\"num_hidden_layers\": ";
    const std::size_t begin = config.find(key) + key.size();
    config.replace(begin, config.find(',', begin) - begin, std::to_string(blocks));
    Problems problems;
    models::ModelDescription description = models::describe_config(config, "config.json", problems);
    problems.throw_if_any();
    return models::Model(std::move(description));
  }
  HAWSER_CHECK(false, "no model ", name);
}

struct Use {
  int item = 0;
  const Access* access = nullptr;
};

// True if nothing that is read from use `from` on was written before it.
bool begins_lifetime(const std::vector<Use>& uses, std::size_t from, const program::Buffer& buffer) {
  program::Written written(buffer.address);
  for (std::size_t i = from; i < uses.size();) {
    std::size_t end = i;
    for (; end < uses.size() && uses[end].item == uses[i].item; ++end) {
      if (!uses[end].access->write && !written.covers(*uses[end].access)) return false;
    }
    for (; i < end; ++i) {
      if (uses[i].access->write) written.add(*uses[i].access);
    }
  }
  return true;
}

// The ops that begin a further lifetime of a buffer in another instruction: "saved activations: rms_norm_forward".
std::set<std::string> further_lifetimes(const RankPlan& plan) {
  const std::vector<program::Buffer>& buffers = plan.buffers.buffers;
  const program::BufferIndex index(buffers);
  std::map<int, std::vector<Use>> uses;
  for (std::size_t i = 0; i < plan.trace.items.size(); ++i) {
    for (const Access& access : plan.trace.items[i].record.accesses) {
      const std::optional<int> b = index.find(access.address);
      if (b && buffers[static_cast<std::size_t>(*b)].space != program::Space::persistent) {
        uses[*b].push_back({static_cast<int>(i), &access});
      }
    }
  }
  std::set<std::string> found;
  for (const auto& [b, of] : uses) {
    const program::Buffer& buffer = buffers[static_cast<std::size_t>(b)];
    bool read = false;
    for (std::size_t i = 1; i < of.size(); ++i) {
      read = read || !of[i - 1].access->write;
      if (!read || of[i].item == of[i - 1].item || !begins_lifetime(of, i, buffer)) continue;
      const TraceItem& item = plan.trace.items[static_cast<std::size_t>(of[i].item)];
      if (item.instruction == plan.trace.items[static_cast<std::size_t>(of[i - 1].item)].instruction) continue;
      found.insert(cat(buffer.category, ": ", item.record.name));
      break;
    }
  }
  return found;
}

struct Variant {
  int in_flight = 1;
  bool offload = false;
  GradientAccumulation accumulation = GradientAccumulation::sharded;
  ShardPolicy shard_policy = ShardPolicy::parameters;
};

LayoutChoices layout_of(const models::Model& model, Checkpointing policy, const Variant& variant) {
  LayoutChoices layout;
  layout.device = DeviceKind::cuda;
  layout.mesh = {.context = 2, .shard = 2};
  layout.compute = layout.reduce_dtype = layout.kv_reduce_dtype = DType::bf16;
  layout.head_groups = kCudaHeadGroups;
  layout.batch_sizes = {
      .sequences = 1, .sequence_length = 2048, .max_documents = 2, .context = 2, .chunks_per_rank = 2};
  layout.micro_batches = 3;
  layout.schedule.group = variant.in_flight;
  layout.accumulation = variant.accumulation;
  layout.shard_policy = variant.shard_policy;
  layout.policies.assign(static_cast<std::size_t>(model.layers()),
                         {.checkpointing = policy, .offload = variant.offload});
  return layout;
}

TEST(Lifetimes, EveryBufferHasOne) {
  const Variant variants[] = {{},
                              {.in_flight = 3},
                              {.offload = true},
                              {.accumulation = GradientAccumulation::local},
                              {.shard_policy = ShardPolicy::optimizer}};
  for (const char* name : {"Mistral-7B-v0.3", "Qwen3-30B-A3B", "gemma-3-1b"}) {
    const models::Model model = model_of(name, 6);
    for (const Checkpointing policy :
         {Checkpointing::none, Checkpointing::selective, Checkpointing::projections, Checkpointing::full}) {
      for (const Variant& variant : variants) {
        const RankPlan plan =
            plan_rank(model, derive(layout_of(model, policy, variant), model), step::Purpose::train, 0);
        for (const std::string& line : further_lifetimes(plan)) ADD_FAILURE() << name << ": " << line;
      }
    }
  }
}

// A buffer that the last instruction overwrites without reading it begins a further lifetime there.
TEST(Lifetimes, AnOverwriteBeginsAnother) {
  const models::Model model = model_of("Mistral-7B-v0.3", 2);
  RankPlan plan = plan_rank(model, derive(layout_of(model, Checkpointing::full, {}), model), step::Purpose::train, 0);
  for (const program::Buffer& buffer : plan.buffers.buffers) {
    if (buffer.category != "activations") continue;
    TraceItem item = plan.trace.items.back();
    item.kind = TraceItem::Kind::work;
    item.record.name = "overwrite";
    item.record.accesses = {{.address = buffer.address, .row_bytes = buffer.bytes, .write = true}};
    plan.trace.items.push_back(std::move(item));
    break;
  }
  EXPECT_EQ(further_lifetimes(plan), std::set<std::string>{"activations: overwrite"});
}

}  // namespace lifetimes_test
}  // namespace hawser::plan
