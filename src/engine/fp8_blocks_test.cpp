#include "engine/fp8_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/testing/test_paths.h"
#include "engine/fp8_exclusions.h"
#include "engine/gemm_algorithms.h"
#include "engine/model_changes.h"
#include "models/linear_names.h"
#include "models/lora.h"
#include "plan/layout.h"
#include "plan/report.h"
#include "step/schedule.h"
#include "tensor/fp8.h"

namespace hawser::engine {
namespace fp8_blocks_test {

Recipe recipe_of(const std::vector<std::string>& layers) {
  Recipe recipe;
  recipe.file = "recipe.yaml";
  recipe.precision.compute = ComputePrecision::fp8;
  recipe.precision.fp8.layers = layers;
  return recipe;
}

TEST(Fp8Blocks, ReadsNumbersAndRanges) {
  Problems problems;
  const Fp8Blocks some(recipe_of({"1", "3-5"})), all(recipe_of({"all"})), none(recipe_of({}));
  std::vector<int> in;
  for (int block = 0; block < 8; ++block) {
    if (some.contains(block)) in.push_back(block);
    EXPECT_TRUE(all.contains(block));
    EXPECT_FALSE(none.contains(block));
  }
  EXPECT_EQ(in, (std::vector<int>{1, 3, 4, 5}));
  some.check(6, problems);
  all.check(6, problems);
  EXPECT_EQ(problems.lines(), "");
}

TEST(Fp8Blocks, NamesEachEntryThatTheModelHasNot) {
  Problems beyond;
  Fp8Blocks(recipe_of({"2", "1", "all", "0-6"})).check(2, beyond);
  EXPECT_EQ(beyond.lines(),
            "recipe.yaml: the model has no such block (expected blocks 0 to 1, got 2) at precision.fp8.layers\n"
            "recipe.yaml: the model has no such block (expected blocks 0 to 1, got 0-6) at precision.fp8.layers");
}

// The formats of a layout are those of the blocks whose weights are in FP8; a GPU gets padded micro-batches, and GEMMs
// that its tensor cores read.
TEST(Fp8Blocks, ChooseTheFormatsOfALayout) {
  Problems problems;
  const Recipe recipe = recipe_of({"1"});
  const OpenModel open =
      open_model(std::string(testing::kSourceFolder) + "/tests/golden/tiny/gqa", false, problems, changes_of(recipe));
  ASSERT_EQ(problems.lines(), "");
  const models::Model& model = *open.model;
  for (const nn::Flat& flat : model.flats()) {
    EXPECT_EQ(flat.spec().gathered == DType::f8e4m3, flat.spec().scaled) << flat.name();
  }
  Recipe own = recipe;
  own.data.sequence_length = 25;
  const plan::Layout on_cpu = plan::make_layout(own, model, 1, DType::f32, 1);
  const plan::Layout on_gpu = plan::make_layout(own, model, 1, DType::bf16, 1, DeviceKind::cuda);
  EXPECT_EQ(on_cpu.batch.local_rows(), 25);
  EXPECT_EQ(on_gpu.batch.local_rows(), 32);
  for (int layer = 0; layer < model.layers(); ++layer) {
    const auto& formats = on_gpu.policies[static_cast<std::size_t>(layer)].formats;
    const auto in_fp8 = std::ranges::count(formats, LinearFormat::fp8_delayed);
    EXPECT_EQ(in_fp8, model.block_of(layer) == 1 ? 2 : 0) << layer;
  }
  EXPECT_EQ(plan::scaled_sites(on_gpu).size(), 4u * nn::kOperands);
  int fp8 = 0;
  for (const GemmShape& gemm : gemms_of(model, on_gpu, false)) {
    if (!is_fp8(gemm.in_a)) continue;
    ++fp8;
    EXPECT_TRUE(is_fp8(gemm.in_b) && gemm.transpose_b && !gemm.transpose_a) << gemm.name;
    EXPECT_EQ(gemm.k % 16, 0) << gemm.name;
    EXPECT_EQ(gemm.scaling_a, ops::ScaleKind::one);
    EXPECT_EQ(gemm.scaling_b, ops::ScaleKind::one);
  }
  EXPECT_EQ(fp8, 3 * 4);
}

// Weights of Linears are gathered as they are; all GEMMs read E4M3 with a scale for each block; nothing is kept from
// step to step.
TEST(Fp8Blocks, BlockScalingHasFormatsAndGemmsOfItsOwn) {
  Recipe recipe = recipe_of({"1"});
  recipe.precision.fp8.scaling = Fp8Scaling::block;
  recipe.data.sequence_length = 25;
  Problems problems;
  const OpenModel open =
      open_model(std::string(testing::kSourceFolder) + "/tests/golden/tiny/gqa", false, problems, changes_of(recipe));
  ASSERT_EQ(problems.lines(), "");
  const models::Model& model = *open.model;
  int weights = 0;
  for (const nn::Flat& flat : model.flats()) {
    EXPECT_EQ(flat.scale_count(), 0);
    if (!flat.spec().quantized_on_use) continue;
    EXPECT_EQ(flat.spec().gathered_in(DType::bf16), DType::bf16);
    for (const nn::Param& param : flat.params()) weights += param.of_linear ? 1 : 100;
  }
  EXPECT_EQ(weights, 4);
  const plan::Layout layout = plan::make_layout(recipe, model, 1, DType::bf16, 1, DeviceKind::cuda);
  EXPECT_EQ(layout.batch.local_rows(), 32);
  EXPECT_TRUE(plan::scaled_sites(layout).empty());
  EXPECT_FALSE(plan::needs_calibration(layout));
  for (int layer = 0; layer < model.layers(); ++layer) {
    const nn::SavePolicy& policy = layout.policies[static_cast<std::size_t>(layer)];
    EXPECT_EQ(std::ranges::count(policy.formats, LinearFormat::fp8_block), model.block_of(layer) == 1 ? 2 : 0);
  }
  std::int64_t fp8 = 0;
  for (const GemmShape& gemm : gemms_of(model, layout, false)) {
    if (!is_fp8(gemm.in_a)) continue;
    fp8 += gemm.count;  // y and dx of o_proj are one
    EXPECT_TRUE(gemm.in_a == DType::f8e4m3 && gemm.in_b == DType::f8e4m3) << gemm.name;
    EXPECT_TRUE(gemm.transpose_b && !gemm.transpose_a) << gemm.name;
    EXPECT_EQ(gemm.scaling_a, ops::ScaleKind::vec128);
    const bool of_weight = gemm.name.find(", dW") != std::string::npos;
    EXPECT_EQ(gemm.scaling_b, of_weight ? ops::ScaleKind::vec128 : ops::ScaleKind::block128) << gemm.name;
  }
  EXPECT_EQ(fp8, 3 * 4 * layout.micro_batches);
}

TEST(Fp8Blocks, BlockScalingOfExpertsIsRejected) {
  Recipe recipe = recipe_of({"all"});
  recipe.precision.fp8.scaling = Fp8Scaling::block;
  recipe.data.sequence_length = 32;
  const std::string mixtral = cat(testing::kSourceFolder, "/tests/golden/families_fp8/mixtral");
  const auto layout = [&] {
    Problems problems;
    const OpenModel open = open_model(mixtral, false, problems, changes_of(recipe));
    EXPECT_EQ(problems.lines(), "");
    return plan::make_layout(recipe, *open.model, 1, DType::f32, 1);
  };
  try {
    layout();
    FAIL() << "not rejected";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              "recipe.yaml: block scaling of experts is not supported (expected delayed or current, got block) at "
              "precision.fp8.scaling; try precision.fp8.scaling: delayed, or precision.fp8.exclude: "
              "[\".*experts.*\"]");
  }
  recipe.precision.fp8.exclude = {".*experts.*"};
  for (const nn::SavePolicy& policy : layout().policies) {
    EXPECT_EQ(policy.format(nn::Site::up_projection), LinearFormat::compute);
  }
}

// An override is blamed for what it says, not the file.
TEST(Fp8Blocks, AProblemIsAtThePlaceOfItsKey) {
  Recipe recipe = recipe_of({"9"});
  recipe.precision.fp8.exclude = {"["};
  recipe.places = {{"precision.fp8.layers", "line 7"}, {"precision.fp8.exclude", "--set"}};
  Problems problems;
  Fp8Blocks(recipe).check(2, problems);
  const Fp8Exclusions exclusions(recipe, {}, problems);
  const std::string lines = problems.lines();
  EXPECT_NE(lines.find("recipe.yaml: the model has no such block"), lines.npos) << lines;
  EXPECT_NE(lines.find("at precision.fp8.layers, line 7\n"), lines.npos) << lines;
  EXPECT_NE(lines.find("--set: not a regular expression (got [) at precision.fp8.exclude;"), lines.npos) << lines;
}

// Settings that do nothing are said, and a plan counts the Linears in FP8 by their names.
TEST(Fp8Blocks, SaysWhatIsInFp8) {
  const auto says = [](Recipe recipe) {
    recipe.data.sequence_length = 32;
    Problems problems;
    const OpenModel open =
        open_model(std::string(testing::kSourceFolder) + "/tests/golden/tiny/gqa", false, problems, changes_of(recipe));
    EXPECT_EQ(problems.lines(), "");
    const plan::Layout layout = plan::make_layout(recipe, *open.model, 1, DType::f32, 1);
    return std::pair(plan::fp8_text(layout, *open.model), useless_fp8(recipe, *open.model));
  };
  Recipe recipe = recipe_of({"all"});
  EXPECT_EQ(says(recipe), std::pair(std::string("14 of 14 Linears of the blocks in FP8"), std::string()));
  recipe.precision.fp8.layers = {"1"};
  recipe.precision.fp8.exclude = {"k_proj"};
  EXPECT_EQ(says(recipe), std::pair(std::string("4 of 14 Linears of the blocks in FP8"), std::string()));
  recipe.precision.fp8.exclude = {"k_proj", ".*layers[.]0[.].*", "model.layers.0.mlp.down_proj", "o_proj"};
  EXPECT_EQ(says(recipe),
            std::pair(std::string("3 of 14 Linears of the blocks in FP8"),
                      std::string("no effect of precision.fp8.exclude, as no block of precision.fp8.layers has such a "
                                  "Linear: .*layers[.]0[.].*, model.layers.0.mlp.down_proj")));
  recipe.precision.fp8.exclude = {".*"};
  EXPECT_EQ(says(recipe), std::pair(std::string("0 of 14 Linears of the blocks in FP8"),
                                    std::string("no Linear is in FP8: precision.fp8.layers and exclude leave none")));
  recipe.precision.compute = ComputePrecision::bf16;
  EXPECT_EQ(says(recipe).second, "") << "no key is given";
  recipe.places = {{"precision.fp8.exclude", "line 3"}, {"precision.fp8.margin", "line 4"}};
  EXPECT_EQ(says(recipe).second, "no effect without precision.compute: fp8: precision.fp8.exclude");
}

// One name of a fused Linear is enough; a fallback has the names of all of its parts.
TEST(Fp8Blocks, ExcludedLinearsAreNotInFp8) {
  Recipe recipe = recipe_of({"1"});
  recipe.precision.fp8.exclude = {"k_proj"};
  Problems problems;
  const OpenModel open = open_model(std::string(testing::kSourceFolder) + "/tests/golden/tiny/gqa", false, problems,
                                    changes_of(recipe, 0, {"model.layers.1.mlp.down_proj"}));
  ASSERT_EQ(problems.lines(), "");
  const models::Model& model = *open.model;
  recipe.data.sequence_length = 32;
  const plan::Layout layout = plan::make_layout(recipe, model, 1, DType::f32, 1);
  std::vector<std::string> in_fp8, sites;
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      if (flat.spec().scaled) in_fp8.push_back(param.segments.front().name);
    }
  }
  for (const step::ScaledSite& site : plan::scaled_sites(layout)) {
    if (site.operand == nn::Operand::x) sites.push_back(cat(model.block_of(site.layer), " ", to_string(site.site)));
  }
  EXPECT_EQ(in_fp8, (std::vector<std::string>{"model.layers.1.self_attn.o_proj.weight",
                                              "model.layers.1.mlp.gate_proj.weight"}));
  EXPECT_EQ(sites, (std::vector<std::string>{"1 output_projection", "1 up_projection"}));
  EXPECT_EQ(models::modules_at(model, 2, nn::Site::qkv_projection),
            (std::vector<std::string>{"model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.k_proj",
                                      "model.layers.1.self_attn.v_proj"}));
  EXPECT_TRUE(models::modules_at(model, 2, nn::Site::down_projection).empty());
}

TEST(Fp8Blocks, EachExclusionThatNamesNoLinearIsOneLine) {
  Recipe recipe = recipe_of({"all"});
  recipe.precision.fp8.exclude = {"down_proj", "down_prj", "norm", "[", ".*layers[.]7.*"};
  Problems problems;
  open_model(std::string(testing::kSourceFolder) + "/tests/golden/tiny/gqa", false, problems, changes_of(recipe));
  const std::string known = "(expected q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, got ";
  EXPECT_EQ(
      problems.lines(),
      cat("recipe.yaml: not a regular expression (got [) at precision.fp8.exclude; try a name such as down_proj, "
          "or .*[.][01][.].*down_proj\n",
          "recipe.yaml: the model has no such Linear ", known, "down_prj) at precision.fp8.exclude; try down_proj\n",
          "recipe.yaml: the model has no such Linear ", known, ".*layers[.]7.*) at precision.fp8.exclude\n",
          "recipe.yaml: this module is never in FP8 ", known, "norm) at precision.fp8.exclude"));
}

TEST(Fp8Blocks, WeightsThatAGpuCannotMultiplyAreNamed) {
  Problems problems;
  const Recipe recipe = recipe_of({"all"});
  const OpenModel open = open_model(std::string(testing::kSourceFolder) + "/tests/golden/tiny/odd_sizes", false,
                                    problems, changes_of(recipe));
  ASSERT_EQ(problems.lines(), "");
  Recipe own = recipe;
  own.data.sequence_length = 32;
  EXPECT_NO_THROW(plan::make_layout(own, *open.model, 1, DType::f32, 1));
  try {
    plan::make_layout(own, *open.model, 1, DType::bf16, 1, DeviceKind::cuda);
    FAIL() << "not rejected";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("rows and columns that are multiples of 16"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("got model.layers.0.self_attn"), std::string::npos) << error.what();
  }
}

OpenModel open_in_fp8(const std::string& name, const Recipe& recipe) {
  Problems problems;
  OpenModel open = open_model(cat(testing::kSourceFolder, "/tests/golden/", name), false, problems, changes_of(recipe));
  EXPECT_EQ(problems.lines(), "");
  return open;
}

// Experts have the formats of an MLP; their grouped GEMMs are none whose algorithms are chosen. A GPU's limit is of
// each expert's matrix.
TEST(Fp8Blocks, ExpertsAreInFp8) {
  Recipe recipe = recipe_of({"all"});
  recipe.data.sequence_length = 32;
  const OpenModel open = open_in_fp8("families_fp8/mixtral", recipe);
  const plan::Layout layout = plan::make_layout(recipe, *open.model, 1, DType::bf16, 1, DeviceKind::cuda);
  int experts = 0;
  for (int layer = 0; layer < open.model->layers(); ++layer) {
    if (open.model->attention(layer) != nullptr) continue;
    for (const nn::Site site : {nn::Site::up_projection, nn::Site::down_projection}) {
      EXPECT_EQ(layout.policies[static_cast<std::size_t>(layer)].format(site), LinearFormat::fp8_delayed);
    }
    for (const models::ParamIndex& place : open.model->layer_params(layer)) {
      const nn::Flat& flat = open.model->flat(place.flat);
      const nn::Param& param = flat.params()[static_cast<std::size_t>(place.index)];
      if (param.matrices == 0) continue;
      EXPECT_EQ(param.matrices, 4);
      EXPECT_EQ(flat.params()[static_cast<std::size_t>(place.index)].gemm_matrices(), 4);
      EXPECT_EQ(flat.spec().gathered, DType::f8e4m3);
      ++experts;
    }
  }
  EXPECT_EQ(experts, 2 * 2);
  const std::vector<GemmShape> gemms = gemms_of(*open.model, layout, false);
  EXPECT_FALSE(gemms.empty());
  for (const GemmShape& gemm : gemms) EXPECT_EQ(gemm.name.find("experts"), std::string::npos) << gemm.name;
  const OpenModel odd = open_in_fp8("families/mixtral", recipe_of({"1"}));
  try {
    plan::make_layout(recipe, *odd.model, 1, DType::bf16, 1, DeviceKind::cuda);
    FAIL() << "not rejected";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("rows and columns that are multiples of 16"), std::string::npos)
        << error.what();
  }
}

// The Linears that an adapter leaves frozen are in FP8, in the blocks that the recipe names; the adapter is not.
TEST(Fp8Blocks, AnAdaptersBaseIsInFp8) {
  Recipe recipe = recipe_of({"1"});
  recipe.adapter.kind = AdapterKind::lora;
  Problems problems;
  const std::string path = std::string(testing::kSourceFolder) + "/tests/golden/tiny/gqa";
  const OpenModel open = open_model(path, false, problems, changes_of(recipe));
  ASSERT_EQ(problems.lines(), "");
  int in_fp8 = 0, adapters = 0;
  for (const nn::Flat& flat : open.model->flats()) {
    const bool fp8 = step::quantizes_loaded_weights(flat.spec());
    EXPECT_EQ(flat.spec().scaled, fp8);
    for (const nn::Param& param : flat.params()) {
      const bool adapter = models::is_lora_tensor(param.segments.front().name);
      EXPECT_EQ(flat.spec().trainable, adapter) << param.name;
      EXPECT_EQ(fp8, param.of_linear && param.name.find("layers.1.") != std::string::npos) << param.name;
      in_fp8 += fp8 ? 1 : 0;
      adapters += adapter ? 1 : 0;
    }
  }
  EXPECT_EQ(in_fp8, 4);
  EXPECT_GT(adapters, 4);
  recipe.adapter.dora = true;
  open_model(path, false, problems, changes_of(recipe));
  EXPECT_EQ(problems.lines(),
            "recipe.yaml: FP8 with DoRA is not supported at adapter.dora; try adapter.dora: false, or "
            "precision.compute: bf16");
}

}  // namespace fp8_blocks_test
}  // namespace hawser::engine
