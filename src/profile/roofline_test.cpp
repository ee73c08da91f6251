// What the roofline counts of a step is what the step's plan does.
#include "profile/roofline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "engine/gemm_algorithms.h"
#include "models/families.h"
#include "models/testing/published.h"

namespace hawser::profile {
namespace roofline_test {

// A published shape with two blocks.
models::ModelDescription shape_of(std::string_view name) {
  for (const models::testing::Published& published : models::testing::kPublished) {
    if (published.name != name) continue;
    Problems problems;
    models::ModelDescription description = models::describe_config(published.config, "config.json", problems);
    EXPECT_EQ(problems.lines(), "");
    description.blocks.resize(2);
    return description;
  }
  ADD_FAILURE() << name;
  return {};
}

plan::LayoutChoices choices_of(int shard, int micro_batches, GradientAccumulation accumulation) {
  plan::LayoutChoices layout;
  layout.device = DeviceKind::cuda;
  layout.mesh.shard = shard;
  layout.compute = DType::bf16;
  layout.reduce_dtype = plan::default_reduce_dtype(layout.device, layout.compute);
  layout.batch_sizes = {.sequences = 1, .sequence_length = 2048, .max_documents = 1};
  layout.micro_batches = micro_batches;
  layout.accumulation = accumulation;
  return layout;
}

plan::Layout layout_of(const models::Model& model, int shard, int micro_batches, GradientAccumulation accumulation) {
  return plan::derive(choices_of(shard, micro_batches, accumulation), model);
}

// FLOPs and number of the plan's ops of these names.
struct Work {
  double flops = 0;
  std::int64_t ops = 0;
};
Work planned(const plan::RankPlan& plan, std::initializer_list<std::string_view> names) {
  Work work;
  for (const TraceItem& item : plan.trace.items) {
    if (item.kind != TraceItem::Kind::work || std::ranges::find(names, item.record.name) == names.end()) continue;
    work.flops += item.record.flops;
    ++work.ops;
  }
  return work;
}

template <class Gemms>
Work listed(const Gemms& gemms) {
  Work work;
  for (const auto& gemm : gemms) {
    work.flops += static_cast<double>(gemm.count) * gemm.flops();
    work.ops += gemm.count;
  }
  return work;
}

TEST(Roofline, ListsTheGemmsOfAStep) {
  for (const char* name : {"Mixtral-8x7B-v0.1", "Qwen3-30B-A3B", "Mistral-7B-v0.3"}) {
    const models::Model model(shape_of(name));
    for (const int shard : {1, 2}) {
      for (const int micro_batches : {1, 3}) {
        for (const auto accumulation : {GradientAccumulation::sharded, GradientAccumulation::local}) {
          SCOPED_TRACE(cat(name, " ", shard, " ", micro_batches));
          const plan::Layout layout = layout_of(model, shard, micro_batches, accumulation);
          const plan::RankPlan plan = plan::plan_rank(model, layout, step::Purpose::train, 0);
          const Work experts = planned(plan, {"grouped_gemm", "grouped_weight_gradient"});
          const Work others = planned(plan, {"gemm"});
          const Work listed_experts = listed(expert_gemms_of(model, layout));
          const Work listed_others = listed(engine::gemms_of(model, layout, false));
          EXPECT_EQ(listed_experts.ops, experts.ops);
          EXPECT_NEAR(listed_experts.flops, experts.flops, 1e-12 * experts.flops);
          EXPECT_EQ(listed_others.ops, others.ops);
          EXPECT_NEAR(listed_others.flops, others.flops, 1e-12 * others.flops);
          EXPECT_EQ(experts.ops > 0, std::string_view(name) != "Mistral-7B-v0.3");
        }
      }
    }
  }
}

TEST(Roofline, ListsExpertsInFp8) {
  const models::Model model(shape_of("Mixtral-8x7B-v0.1"),
                            nn::with_fp8_weights(nn::common_domain, [](int block) { return block == 1; }));
  plan::LayoutChoices choices = choices_of(1, 1, GradientAccumulation::sharded);
  plan::set_formats(choices, model, {});
  const plan::Layout layout = plan::derive(choices, model);
  Work work;
  for (const ExpertGemm& gemm : expert_gemms_of(model, layout)) {
    if (!gemm.fp8) continue;
    work.flops += static_cast<double>(gemm.count) * gemm.flops();
    work.ops += gemm.count;
  }
  EXPECT_EQ(work.ops, 3 * 2);
  const plan::RankPlan plan = plan::plan_rank(model, layout, step::Purpose::train, 0);
  double flops = 0;
  for (const TraceItem& item : plan.trace.items) {
    const bool experts = std::string_view(item.record.name).starts_with("grouped");
    if (experts && item.record.kind == OpKind::gemm_fp8) flops += item.record.flops;
  }
  EXPECT_NEAR(work.flops, flops, 1e-12 * flops);
}

TEST(Roofline, NamesTheGemmsOfExperts) {
  const models::Model model(shape_of("Mixtral-8x7B-v0.1"));
  const plan::Layout layout = layout_of(model, 1, 2, GradientAccumulation::sharded);
  std::string text;
  for (const ExpertGemm& gemm : expert_gemms_of(model, layout)) {
    text += cat(gemm.name, " ", gemm.experts, " x ", gemm.assignments, " x ", gemm.outputs, " x ", gemm.inputs, " to ",
                to_string(gemm.out), ", ", gemm.count, "\n");
  }
  EXPECT_EQ(text,
            "experts.gate_up, y 8 x 4096 x 28672 x 4096 to bfloat16, 4\n"
            "experts.gate_up, dx 8 x 4096 x 28672 x 4096 to bfloat16, 4\n"
            "experts.gate_up, dW 8 x 4096 x 28672 x 4096 to float32, 2\n"
            "experts.gate_up, dW += 8 x 4096 x 28672 x 4096 to float32, 2\n"
            "experts.down, y 8 x 4096 x 4096 x 14336 to bfloat16, 4\n"
            "experts.down, dx 8 x 4096 x 4096 x 14336 to bfloat16, 4\n"
            "experts.down, dW 8 x 4096 x 4096 x 14336 to float32, 2\n"
            "experts.down, dW += 8 x 4096 x 4096 x 14336 to float32, 2\n");
}

// Copies of rows to their experts and back are part of the traffic: a model of these experts moves more than one whose
// MLP has the width of two of them.
TEST(Roofline, CountsTheTrafficOfExperts) {
  models::ModelDescription dense = shape_of("Mixtral-8x7B-v0.1");
  for (models::BlockDescription& block : dense.blocks) {
    block.mlp.inner = 2 * block.moe->inner;
    block.moe.reset();
  }
  const models::Model experts(shape_of("Mixtral-8x7B-v0.1")), mlp(std::move(dense));
  const auto bytes = [](const models::Model& model) {
    const double twice = fused_bytes(model, layout_of(model, 1, 2, GradientAccumulation::sharded));
    return twice - fused_bytes(model, layout_of(model, 1, 1, GradientAccumulation::sharded));  // without the optimizer
  };
  // In units of the rows of all tokens in bf16, with a quarter of padding: four copies to rows and two back, about 11,
  // and the rows of F = 3.5 C columns that backward multiplies with the weights of experts, read twice and written
  // once, 13. The rest is what routers read in float32, and padding in the activation.
  const double rows = 2.0 * 2 * 2048 * 4096 * 2;  // of both layers
  const double added = bytes(experts) - bytes(mlp);
  EXPECT_GT(added, 24 * rows);
  EXPECT_LT(added, 36 * rows);
}

// Of each micro-batch, the reductions of a rank read the members' gradients in bf16 and add them to its float32 shard.
TEST(Roofline, CountsTheLocalSumsOfReductions) {
  const models::Model model(shape_of("Mistral-7B-v0.3"));
  for (const int shard : {2, 4}) {
    const auto sums_of = [&](int micro_batches) {
      const plan::Layout layout = layout_of(model, shard, micro_batches, GradientAccumulation::sharded);
      double others = 0;
      for (const TraceItem& item : plan::plan_rank(model, layout, step::Purpose::train, 0).trace.items) {
        if (item.kind != TraceItem::Kind::work || item.record.collective.kind != CollectiveKind::none) continue;
        if (bound_of(item.record.kind) != Bound::bytes) continue;
        double bytes = 0;
        for (const Access& access : item.record.accesses) bytes += static_cast<double>(access.row_bytes * access.rows);
        others += item.record.bytes > 0 ? item.record.bytes : bytes;
      }
      return fused_bytes(model, layout) - others;
    };
    const auto parameters = static_cast<double>(model.parameters());
    const double parts = 2 * parameters, of_shard = 4 * parameters / shard;
    EXPECT_NEAR(sums_of(1), parts + of_shard, 1e-3 * parts);
    EXPECT_NEAR(sums_of(3), 3 * (parts + of_shard) + 2 * of_shard, 1e-3 * parts);  // later ones read the shard, too
  }
}

TEST(Roofline, IsMeasuredOnAGpuOnly) {
  const models::Model model(shape_of("Mistral-7B-v0.3"));
  const auto device = make_cpu_device();
  const Roofline roofline = measure_roofline(model, layout_of(model, 1, 1, GradientAccumulation::sharded), {}, *device);
  EXPECT_TRUE(roofline.terms.empty());
  EXPECT_EQ(roofline.problem, "measured on a GPU only");
}

}  // namespace roofline_test
}  // namespace hawser::profile
