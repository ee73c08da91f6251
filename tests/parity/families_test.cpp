// Models of every family against transformers in float64 (tests/golden/families, made by
// tools/golden/make_families.py): training steps, export and greedy text. Loss and gradients are golden_test.cpp's.
// Also the table of docs/families.md.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "fp8_golden.h"
#include "generate/generate.h"
#include "models/families.h"
#include "nn/granularity.h"
#include "training.h"

namespace hawser {
namespace families_test {

namespace fs = std::filesystem;

using testing::golden_folder;

class Families : public ::testing::TestWithParam<std::string> {};

TEST_P(Families, TrainingFollowsTransformers) {
  const fs::path folder = golden_folder(GetParam());
  const nlohmann::json expected = testing::read_json(folder / "expected.json");
  const auto input = testing::open_golden(folder, expected.at("sequence_length"));
  const auto device = make_cpu_device();
  const auto mesh = comm::make_self_mesh();
  engine::Session session(
      *input->open.model,
      plan::derive(testing::training_layout(input->layout, expected.at("steps")), *input->open.model), *device, *mesh,
      {step::Purpose::train});
  session.load(*input->open.weights, 0);
  testing::expect_losses(testing::train(session, *input->loader, expected.at("steps")),
                         expected["steps"]["losses"].get<std::vector<double>>());
}

TEST_P(Families, Fp8FollowsTransformers) {
  testing::expect_fp8_follows_transformers(golden_folder(GetParam()), {});
}

// The same tensors, names and bytes, and the same config.json.
TEST_P(Families, AnExportIsTheFolder) {
  const fs::path folder = golden_folder(GetParam());
  Problems problems;
  engine::OpenModel opened = engine::open_model(folder.string(), false, problems);
  ASSERT_EQ(problems.lines(), "");
  const models::Model& model = *opened.model;
  // The tensors in the model's form, by way of the flats.
  testing::Tensors tensors;
  const auto device = make_cpu_device();
  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
    const std::int64_t count = model.flat(f).total(1);
    const Storage flat(*device, DType::f32, {count});
    models::load_flat(model, f, *opened.weights, 0, count, flat);
    testing::add_tensors(nn::value_states(model.flat(f), {}, 0, count, flat, "", true), tensors);
  }
  std::ifstream file(folder / "config.json");
  const std::string config{std::istreambuf_iterator<char>(file), {}};
  const TemporaryFolder out;
  models::export_folder(out.path("out"), model, testing::source_of(tensors),
                        {.stored = DType::f32, .config = models::config_json(model.description(), DType::f32, config)});
  EXPECT_EQ(testing::read_json(out.path("out/config.json")), testing::read_json(folder / "config.json"));
  // A config that is written anew describes the same model.
  const models::ModelDescription again =
      models::describe_config(models::config_json(model.description(), DType::f32), "config.json", problems);
  EXPECT_EQ(problems.lines(), "");
  EXPECT_EQ(models::description_changes(model.description(), again), "");

  auto exported = checkpoint::SafetensorsFolder::open(out.path("out"), problems);
  ASSERT_EQ(problems.lines(), "");
  testing::expect_same_files(*exported, *opened.weights);
}

TEST_P(Families, GreedyTextEqualsTransformers) {
  const fs::path folder = golden_folder(GetParam());
  const nlohmann::json expected = testing::read_json(folder / "expected.json").at("generation");
  const auto ids = expected.at("ids").get<std::vector<std::int32_t>>();
  Problems problems;
  auto input = generate::open_generation({.model = folder.string(),
                                          .prompt_ids = expected.at("prompt_ids").get<std::vector<std::int64_t>>(),
                                          .max_tokens = static_cast<std::int64_t>(ids.size())},
                                         problems);
  ASSERT_EQ(problems.lines(), "");
  input->ends.clear();
  generate::Generator generator(*input);
  const std::vector<generate::Answer> answers = generator.answer_all();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].ids, ids);
}

INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::ValuesIn(testing::golden_cases("families")),
                         [](const auto& of) { return fs::path(of.param).filename().string(); });
INSTANTIATE_TEST_SUITE_P(OfSizesForFp8, Families, ::testing::ValuesIn(testing::golden_cases("families_fp8")),
                         [](const auto& of) { return fs::path(of.param).filename().string(); });

// A copy of a case, with its files' texts changed; tensors are swapped by their names in the header.
double loss_of_changed(const std::string& name, const std::function<void(nlohmann::json&)>& config,
                       const std::string& from = "", const std::string& to = "") {
  const fs::path folder = golden_folder("families/" + name);
  const TemporaryFolder changed;
  nlohmann::json json = testing::read_json(folder / "config.json");
  config(json);
  changed.write("config.json", json.dump());
  std::ifstream file(folder / "model.safetensors", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(from.size(), to.size());
  for (const auto& [old, now] :
       {std::pair(from, std::string(from.size(), '~')), {to, from}, {std::string(from.size(), '~'), to}}) {
    for (std::size_t at = 0; !old.empty() && (at = bytes.find(old, at)) != std::string::npos; at += old.size()) {
      bytes.replace(at, old.size(), now);
    }
  }
  changed.write("model.safetensors", bytes);
  const nlohmann::json expected = testing::read_json(folder / "expected.json");
  const double loss = evaluate::evaluate({.model = changed.path(),
                                          .data = (folder / "data.jsonl").string(),
                                          .sequence_length = expected.at("sequence_length")},
                                         nullptr)
                          .loss;
  return std::abs(loss / expected.at("loss").get<double>() - 1);
}

// The golden files notice a key that is read wrongly and a tensor in another's place.
TEST(FamiliesDiffer, WrongKeysAndTensors) {
  const auto same = [](nlohmann::json&) {};
  const auto with = [](const char* key, const nlohmann::json& value) {
    return [=](nlohmann::json& config) { config[key] = value; };
  };
  EXPECT_LT(loss_of_changed("qwen3", same), 1e-5);
  EXPECT_GT(loss_of_changed("qwen3", same, ".q_norm.", ".k_norm."), 1e-4);
  EXPECT_GT(loss_of_changed("mistral", with("sliding_window", 8)), 1e-4);
  EXPECT_GT(loss_of_changed("qwen2", with("max_window_layers", 0)), 1e-4);
  EXPECT_GT(loss_of_changed("mixtral", same, ".w1.", ".w3."), 1e-4);
  EXPECT_GT(loss_of_changed("mixtral", same, "experts.1.", "experts.4."), 1e-4);
  EXPECT_GT(loss_of_changed("qwen3_moe", with("norm_topk_prob", false)), 1e-4);
  EXPECT_GT(loss_of_changed("gemma3", with("rope_local_base_freq", 1000)), 1e-4);
  EXPECT_GT(loss_of_changed("gemma3", with("query_pre_attn_scalar", 10)), 1e-4);
  EXPECT_GT(loss_of_changed("gpt_neox", with("rotary_pct", 0.5)), 1e-4);
  EXPECT_GT(loss_of_changed("gpt_neox", with("use_parallel_residual", false)), 1e-4);
}

// The table of docs/families.md. HAWSER_UPDATE_DOCS=1 writes it into the page.
std::string families_table() {
  const struct {
    const char *models, *types, *block;
  } kRows[] = {
      {"Llama 2, 3, 3.1, 3.2, SmolLM2, TinyLlama", "llama", "biases by `attention_bias` and `mlp_bias`"},
      {"Mistral", "mistral", "a sliding window in all layers, or none (`sliding_window: null`)"},
      {"Mixtral", "mixtral", "experts, load-balancing loss; a sliding window"},
      {"Qwen2, Qwen2.5", "qwen2", "biases of q, k and v; windows by layer"},
      {"Qwen3", "qwen3", "norms of queries and keys; windows by layer"},
      {"Qwen3-MoE", "qwen3_moe", "experts in all layers or some, load-balancing loss; norms of queries and keys"},
      {"Gemma 3, text", "gemma3_text",
       "norms before and after each layer, GeGLU, norms of queries and keys; a window and a RoPE by layer"},
      {"GPT-NeoX, Pythia", "gpt_neox",
       "LayerNorm, GELU, a part of each head rotated, attention and MLP side by side or in turn"},
  };
  std::map<std::string, std::vector<std::string>> cases;
  for (const std::string set : {"tiny", "families"}) {
    for (const std::string& name : testing::golden_cases(set)) {
      cases[testing::read_json(golden_folder(name) / "config.json").at("model_type")].push_back(name);
    }
  }
  std::string out = "| models | `model_type` | besides Llama's block | golden cases |\n| --- | --- | --- | --- |\n";
  std::vector<std::string> types;
  for (const auto& row : kRows) {
    types.emplace_back(row.types);
    out += cat("| ", row.models, " | `", row.types, "` | ", row.block, " | ", cases[row.types].size(), " |\n");
    EXPECT_FALSE(cases[row.types].empty()) << row.types;
  }
  EXPECT_EQ(types, models::model_types());
  return out;
}

TEST(FamiliesDocs, TheTableIsCurrent) {
  const std::string path = std::string(testing::kSourceFolder) + "/docs/families.md";
  const std::string begin = "<!-- table: parity_families_test -->\n", end = "<!-- end of table -->\n";
  std::ifstream file(path);
  std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::size_t from = page.find(begin) + begin.size(), to = page.find(end);
  ASSERT_TRUE(from < to && to != std::string::npos);
  const std::string table = families_table();
  if (std::getenv("HAWSER_UPDATE_DOCS") != nullptr) {
    page.replace(from, to - from, table);
    std::ofstream(path) << page;
    return;
  }
  EXPECT_EQ(page.substr(from, to - from), table) << "run HAWSER_UPDATE_DOCS=1 build/cpu/parity_families_test";
}

}  // namespace families_test
}  // namespace hawser
