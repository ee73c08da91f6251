// The steps that R_mix times have a step's work, each instruction counted as often as it says.
#include "profile/step_mix.h"

#include <gtest/gtest.h>

#include "models/families.h"
#include "plan/plan.h"

namespace hawser::profile {
namespace step_mix_test {

using program::Op;

models::ModelDescription llama(int layers) {
  Problems problems;
  models::ModelDescription description = models::describe_config(
      cat(R"({"model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, )",
          R"("intermediate_size": 256, "vocab_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, )",
          R"("tie_word_embeddings": false, "num_hidden_layers": )", layers, "}"),
      "config.json", problems);
  EXPECT_EQ(problems.lines(), "");
  return description;
}

plan::RunPlan plan_of(const models::Model& model, int ranks, int context, DeviceKind device) {
  Recipe recipe;
  recipe.model.config = "config.json";
  recipe.data.sequence_length = 256;
  recipe.train.steps = 2;
  recipe.train.global_batch_size = 2 * ranks / context;
  recipe.parallel.context_parallel_degree = context;
  set_packing(recipe, {});
  plan::RunPlan plan = plan::resolve(recipe);
  plan::lay_out(plan, model, ranks, 1, device);
  return plan;
}

struct Work {
  double flops = 0, update_bytes = 0;
};

// Of the compute stream.
template <class Weight>
Work work_of(const models::Model& model, const plan::Layout& layout, Weight weight) {
  const plan::RankPlan plan = plan::plan_rank(model, layout, step::Purpose::train, 0);
  Work work;
  for (const TraceItem& item : plan.trace.items) {
    if (item.kind != TraceItem::Kind::work || item.instruction < 0) continue;
    const program::Instruction& instruction = plan.program.instructions[static_cast<std::size_t>(item.instruction)];
    if (instruction.stream != program::StreamId::compute) continue;
    const bool update = instruction.op == Op::update;
    if (!update) work.flops += weight(instruction) * item.record.flops;
    for (const Access& access : item.record.accesses) {
      if (update) work.update_bytes += weight(instruction) * static_cast<double>(access.row_bytes * access.rows);
    }
  }
  return work;
}

void expect_the_work_of_the_step(const plan::RunPlan& plan, const models::Model& model, int blocks) {
  const MixPlan mix = plan_mix(plan, model, nn::common_domain, blocks);
  const Work step = work_of(model, plan.layout, [](const program::Instruction&) { return 1.0; });
  const Work of_mix = work_of(*mix.model, mix.plan.layout,
                              [&](const program::Instruction& instruction) { return mix.weight(instruction); });
  EXPECT_NEAR(of_mix.flops, step.flops, 0.01 * step.flops);
  EXPECT_NEAR(of_mix.update_bytes, step.update_bytes, 0.02 * step.update_bytes);
}

TEST(StepMix, HasTheWorkOfTheStep) {
  const models::Model model(llama(12));
  for (const auto& [ranks, context] : {std::pair{1, 1}, {2, 1}, {4, 1}, {2, 2}, {4, 2}}) {
    for (const int blocks : {1, 5, 12}) {
      SCOPED_TRACE(cat(ranks, " ranks, context ", context, ", ", blocks, " blocks"));
      expect_the_work_of_the_step(plan_of(model, ranks, context, DeviceKind::cpu), model, blocks);
    }
  }
}

TEST(StepMix, HasBlocksOfEachKind) {
  const models::Model model(llama(12));
  plan::RunPlan plan = plan_of(model, 2, 1, DeviceKind::cpu);
  plan::LayoutChoices choices = plan.layout;
  for (int layer = 0; layer < 6; ++layer)  // of three blocks
    choices.policies[static_cast<std::size_t>(layer)].checkpointing = Checkpointing::full;
  plan.layout = plan::derive(choices, model);
  MixPlan mix = plan_mix(plan, model, nn::common_domain, 4);
  EXPECT_EQ(mix.blocks, (std::vector<int>{0, 3, 4, 5}));
  EXPECT_EQ(mix.block_weights, (std::vector<double>{3, 3, 3, 3}));
  expect_the_work_of_the_step(plan, model, 4);
  mix = plan_mix(plan, model, nn::common_domain, 1);  // one of each kind at least
  EXPECT_EQ(mix.blocks, (std::vector<int>{0, 3}));
  EXPECT_EQ(mix.block_weights, (std::vector<double>{3, 9}));
  EXPECT_EQ(plan_mix(plan, model, nn::common_domain, 40).blocks.size(), 12u);
}

TEST(StepMix, KeepsTheSpecsOfTheBlocks) {
  const auto spec_of = [](const nn::Param& param, const nn::UnitId& place) {
    nn::FlatSpec spec = nn::common_domain(param);
    spec.trainable = place.block != 0 && place.block != 1;
    return spec;
  };
  const models::Model model(llama(6), spec_of);
  const plan::RunPlan plan = plan_of(model, 1, 1, DeviceKind::cpu);
  const MixPlan mix = plan_mix(plan, model, spec_of, 2);
  EXPECT_EQ(mix.blocks, (std::vector<int>{0, 2}));
  EXPECT_EQ(mix.block_weights, (std::vector<double>{2, 4}));
  EXPECT_FALSE(mix.model->flat(mix.model->units()[1].flats[0]).spec().trainable);
  EXPECT_TRUE(mix.model->flat(mix.model->units()[2].flats[0]).spec().trainable);
}

TEST(StepMix, IsMeasuredOnOneRank) {
  const models::Model model(llama(3));
  const plan::RunPlan plan = plan_of(model, 2, 2, DeviceKind::cpu);
  const auto device = make_cpu_device();
  const PowerMeter meter(nullptr);
  const StepMix mix =
      measure_mix(plan, model, nn::common_domain, {}, *device, meter, {.settle_s = 0.01, .measure_s = 0.1});
  EXPECT_EQ(mix.problem, "");
  EXPECT_GT(mix.seconds, 0);
  EXPECT_EQ(mix.blocks, 3);
  EXPECT_EQ(mix.power.gpus, 0);
}

}  // namespace step_mix_test
}  // namespace hawser::profile
