// Plans of steps that keep the input of a block alone, and whose MLPs run in tiles of rows.
#include <gtest/gtest.h>

#include "config/config.h"
#include "plan/forecast.h"
#include "plan/offload_text.h"
#include "support.h"

namespace hawser {
namespace tiles_test {

plan::RankPlan plan_of(const models::Model& model, const nn::SavePolicy& policy) {
  plan::LayoutChoices layout = testing::make_test_layout({.length = 1024, .micro_batches = 2}, model);
  for (nn::SavePolicy& of_layer : layout.policies) of_layer = policy;
  plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
  EXPECT_NO_THROW(plan::check_plans({&plan}, {0}));
  return plan;
}

TEST(TilesPlan, TilesAndBlockInputsTakeLessMemory) {
  const models::Model model(testing::llama_description({.vocabulary = 64, .blocks = 8}));
  const auto bytes = [&](Checkpointing checkpointing, std::int64_t rows, bool offload = false) {
    return plan_of(model, {.checkpointing = checkpointing, .offload = offload, .tile_rows = rows})
        .buffers.placement.bytes;
  };
  using enum Checkpointing;
  for (const bool offload : {false, true}) {
    EXPECT_LT(bytes(full, 128, offload), bytes(full, 0, offload)) << offload;
    EXPECT_LT(bytes(block, 128, offload), bytes(block, 0, offload)) << offload;
  }
  // Seven inputs of MLPs are not kept; that of the block whose backward runs is.
  const std::int64_t input = 1024 * model.width() * size_of(DType::f32);
  EXPECT_LE(bytes(block, 128), bytes(full, 128) - 6 * input);
  EXPECT_LT(bytes(none, 128), bytes(none, 0));
  const auto host = [&](Checkpointing checkpointing) {
    return plan_of(model, {.checkpointing = checkpointing, .offload = true, .tile_rows = 128}).host_bytes();
  };
  EXPECT_EQ(host(full), 2 * host(block));
}

// An instruction per pass, however many tiles; and the input of an MLP is written before its backward reads it.
TEST(TilesPlan, RecomputeWritesTheInputOfTheMlp) {
  const models::Model model(testing::llama_description({.vocabulary = 64, .blocks = 2}));
  const plan::RankPlan plan = plan_of(model, {.checkpointing = Checkpointing::block, .tile_rows = 128});
  int recomputes = 0, backwards = 0;
  for (const program::Instruction& instruction : plan.program.instructions) {
    if (instruction.op == program::Op::recompute) {
      ++recomputes;
      EXPECT_STREQ(model.kind_of(instruction.layer), "attention");
      EXPECT_EQ(instruction.residual, instruction.x);
    }
    if (instruction.op != program::Op::backward || model.kind_of(instruction.layer) != std::string("MLP")) continue;
    ++backwards;
    const program::Instruction& writer = plan.program.instructions[static_cast<std::size_t>(instruction.x)];
    EXPECT_EQ(writer.op, program::Op::recompute);
    EXPECT_EQ(writer.layer, instruction.layer - 1);
  }
  EXPECT_EQ(recomputes, 4);
  EXPECT_EQ(backwards, 4);
}

// What does not fit otherwise is offered with MLPs in tiles, and says so.
TEST(TilesPlan, AreSuggestedForLongSequences) {
  const models::Model model(testing::llama_description({.width = 256, .inner = 4096, .vocabulary = 512, .blocks = 4}));
  Recipe recipe;
  recipe.data.sequence_length = 32768;
  recipe.data.pack = Packing::chunks;
  recipe.train.global_batch_size = 1;
  recipe.run.ranks = 1;
  const plan::Target target = plan::load_target("h200");
  const auto planner = [&](const Recipe& of) {
    return plan::Forecaster(of, model, 1, target, {.cores = 4, .memory = std::int64_t{1} << 40}, 1);
  };
  const std::int64_t needed =
      planner(override_recipe(recipe, {"memory.activation_checkpointing=block", "memory.mlp_tile_rows=8192"}))
          .forecast()
          .needed();
  recipe.memory.capacity = Bytes(needed + needed / 20);
  recipe.memory.activation_offload = false;
  bool offered = false;
  for (const plan::Suggestion& suggestion : planner(recipe).suggestions(40)) {
    for (const plan::Change& change : suggestion.changes) offered |= change.flag() == "--set memory.mlp_tile_rows=8192";
    const plan::Forecast f = planner(suggestion.recipe).forecast();
    EXPECT_TRUE(f.fits());
    EXPECT_EQ(plan::tiles_text(f.layout, model),
              suggestion.recipe.memory.mlp_tile_rows > 0 ? "MLPs in tiles of 8,192 rows" : "");
  }
  EXPECT_TRUE(offered);
  recipe.data.sequence_length = 8192;  // a tile is all of it
  for (const plan::Suggestion& suggestion : planner(recipe).suggestions(40)) {
    EXPECT_EQ(suggestion.recipe.memory.mlp_tile_rows, 0);
  }
}

TEST(TilesPlan, ExpertsHaveNone) {
  const models::Model dense(testing::llama_description({.blocks = 2})), experts(testing::toy_with_experts());
  Recipe recipe;
  EXPECT_EQ(plan::useless_tiles(recipe, experts), "");
  recipe.memory.mlp_tile_rows = 128;
  EXPECT_EQ(plan::useless_tiles(recipe, dense), "");
  EXPECT_NE(plan::useless_tiles(recipe, experts), "");
}

}  // namespace tiles_test
}  // namespace hawser
