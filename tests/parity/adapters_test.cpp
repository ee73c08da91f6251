// Adapters against PEFT in float64 (tests/golden/adapters, made by tools/golden/make_adapters.py): loss, every
// gradient, training steps, export of the adapter and of the merged model.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/testing/temporary_folder.h"
#include "engine/host_copy.h"
#include "models/merge_adapters.h"
#include "models/peft.h"
#include "training.h"

namespace hawser {
namespace adapters_test {

namespace fs = std::filesystem;

using testing::golden_folder;

constexpr double kLossError = 1e-5;  // relative, as of gradients
constexpr double kGradientError = 1e-4;
constexpr double kMergedError = 1e-6;

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

evaluate::EvaluateRequest request_of(const fs::path& base, const std::vector<std::string>& adapters,
                                     const nlohmann::json& expected) {
  return {.model = base.string(),
          .adapters = adapters,
          .data = (base / "data.jsonl").string(),
          .sequence_length = expected.at("sequence_length")};
}

// A case, opened on one rank.
class OpenAdapter {
 public:
  explicit OpenAdapter(const std::string& name, const std::string& adapter = "")
      : folder(golden_folder(name)),
        expected(testing::read_json(folder / "expected.json")),
        base(golden_folder(expected.at("base"))) {
    Problems problems;
    auto opened = evaluate::open_evaluation(request_of(base, {adapter.empty() ? folder.string() : adapter}, expected),
                                            0, 1, problems);
    problems.throw_if_any();
    input = std::make_unique<evaluate::OpenEvaluation>(std::move(*opened));
    sources.emplace(engine::sources_of(input->open));
  }
  OpenAdapter(const OpenAdapter&) = delete;
  const models::Model& model() const { return *input->open.model; }

  const fs::path folder;
  const nlohmann::json expected;
  const fs::path base;
  std::unique_ptr<evaluate::OpenEvaluation> input;
  std::optional<models::WeightSources> sources;
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<comm::Mesh> mesh = comm::make_self_mesh();
};

class Adapters : public ::testing::TestWithParam<std::string> {};

TEST_P(Adapters, LossAndGradientsEqualPeft) {
  const fs::path folder = golden_folder(GetParam());
  const nlohmann::json expected = testing::read_json(folder / "expected.json");
  evaluate::EvaluateRequest request = request_of(golden_folder(expected.at("base")), {folder.string()}, expected);
  const double loss = expected.at("loss");
  EXPECT_NEAR(evaluate::evaluate(request, nullptr).loss, loss, kLossError * loss);
  request.gradient_norms = true;
  std::map<std::string, std::vector<double>> projections;
  const evaluate::Evaluation result = evaluate::evaluate(request, nullptr, [&](engine::Session& session) {
    projections = testing::gradient_projections(session, evaluate::gradient_purpose(session.model()),
                                                [](const std::string& name) { return models::peft_name(name, ""); });
  });
  EXPECT_EQ(result.tokens, expected.at("tokens").get<std::int64_t>());
  EXPECT_NEAR(result.loss, loss, kLossError * loss);
  const nlohmann::json &norms = expected.at("gradient_norms"), &projected = expected.at("projections");
  EXPECT_EQ(result.gradient_norms.size(), norms.size());
  EXPECT_EQ(projections.size(), norms.size());
  for (const auto& [name, value] : result.gradient_norms) {
    ASSERT_TRUE(norms.contains(name)) << name;
    const double norm = norms.at(name);
    EXPECT_NEAR(value, norm, kGradientError * norm) << name;
    EXPECT_LT(testing::projected_distance(projections.at(name), projected.at(name).get<std::vector<double>>()),
              kGradientError * norm)
        << name;
  }
}

TEST_P(Adapters, TrainingFollowsPeft) {
  const OpenAdapter of(GetParam());
  const nlohmann::json& steps = of.expected.at("steps");
  engine::Session session(of.model(), plan::derive(testing::training_layout(of.input->layout, steps), of.model()),
                          *of.device, *of.mesh, {step::Purpose::train});
  session.load(*of.sources, 0);
  testing::expect_losses(testing::train(session, *of.input->loader, steps),
                         steps.at("losses").get<std::vector<double>>());
  engine::HostCopy copy(session, {.optimizer = false, .frozen = false});
  copy.fetch();
  testing::Tensors tensors;
  testing::add_tensors(copy.states(), tensors);
  const nlohmann::json& norms = steps.at("norms");
  EXPECT_EQ(tensors.size(), norms.size());
  for (const auto& [name, values] : tensors) {
    double squares = 0;
    for (const float value : values) squares += double{value} * double{value};
    const double norm = norms.at(models::peft_name(name, ""));
    EXPECT_NEAR(std::sqrt(squares), norm, testing::kStepError * norm) << name;
  }
}

TEST_P(Adapters, ExportsAreTheFolderAndTheMergedModel) {
  const OpenAdapter of(GetParam());
  const models::Model& model = of.model();
  engine::Session session(model, plan::derive(of.input->layout, model), *of.device, *of.mesh, {step::Purpose::loss});
  session.load(*of.sources, 0);
  engine::HostCopy copy(session, {.optimizer = false});
  copy.fetch();
  testing::Tensors tensors;
  testing::add_tensors(copy.states(), tensors);
  const models::StateSource source = testing::source_of(tensors);

  const TemporaryFolder out;
  models::export_adapter(out.path("adapter"), model, source, {.config = read_text(of.folder / "adapter_config.json")});
  EXPECT_EQ(testing::read_json(out.path("adapter/adapter_config.json")),
            testing::read_json(of.folder / "adapter_config.json"));
  Problems problems;
  const auto exported = checkpoint::SafetensorsFolder::open(out.path("adapter/adapter_model.safetensors"), problems);
  ASSERT_EQ(problems.lines(), "");
  testing::expect_same_files(*exported, of.input->open.adapters.front().weights);

  const engine::OpenModel plain = engine::open_model(of.base.string(), false, problems);
  ASSERT_EQ(problems.lines(), "");
  models::export_folder(out.path("merged"), *plain.model, models::merge_adapters(model, source),
                        {.stored = DType::f32, .config = read_text(of.base / "config.json")});
  evaluate::EvaluateRequest merged = request_of(of.base, {}, of.expected);
  merged.model = out.path("merged");
  const double unmerged = evaluate::evaluate(*of.input, nullptr).loss;
  EXPECT_NEAR(evaluate::evaluate(merged, nullptr).loss, unmerged, kMergedError * unmerged);
}

INSTANTIATE_TEST_SUITE_P(All, Adapters, ::testing::ValuesIn(testing::golden_cases("adapters")),
                         [](const auto& of) { return fs::path(of.param).filename().string(); });

// The case with another config and the same tensors: the relative difference of its loss.
double difference(const std::string& name, const std::function<void(nlohmann::json& config)>& change) {
  const fs::path folder = golden_folder("adapters/" + name);
  nlohmann::json config = testing::read_json(folder / "adapter_config.json");
  change(config);
  const TemporaryFolder changed;
  changed.write("adapter_config.json", config.dump());
  fs::copy(folder / "adapter_model.safetensors", changed.path("adapter_model.safetensors"));
  const OpenAdapter of("adapters/" + name, changed.path());
  return std::abs(evaluate::evaluate(*of.input, nullptr).loss / of.expected.at("loss").get<double>() - 1);
}

// The golden files notice an option that is read wrongly; what the tensors show, opening rejects.
TEST(AdaptersDiffer, OtherOptions) {
  const auto with = [](const char* key, const nlohmann::json& value) {
    return [=](nlohmann::json& config) { config[key] = value; };
  };
  EXPECT_LT(difference("llama_rslora", [](nlohmann::json&) {}), kLossError);
  EXPECT_GT(difference("llama_lora", with("lora_alpha", 9)), 1e-3);
  EXPECT_GT(difference("llama_rslora", with("use_rslora", false)), 1e-3);
  EXPECT_GT(difference("gpt_neox_dora", with("use_rslora", false)), 1e-3);
  EXPECT_THROW(difference("llama_dora", with("use_dora", false)), UserError);
  EXPECT_THROW(difference("llama_lora", with("target_modules", {"q_proj"})), UserError);
  EXPECT_THROW(difference("mixtral", with("r", 3)), UserError);
}

}  // namespace adapters_test
}  // namespace hawser
