// Adapters against PEFT in float64 (tests/golden/adapters, made by tools/golden/make_adapters.py): loss, every
// gradient, training steps, export of the adapter and of the merged model.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/testing/temporary_folder.h"
#include "engine/evaluate_loss.h"
#include "engine/host_copy.h"
#include "engine/model_changes.h"
#include "models/families.h"
#include "models/merge_adapters.h"
#include "models/peft.h"
#include "training.h"

namespace hawser {
namespace {

namespace fs = std::filesystem;

using testing::golden_folder;

constexpr double kLossError = 1e-5;  // relative, as of gradients
constexpr double kGradientError = 1e-4;
constexpr double kMergedError = 1e-6;

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Whether PEFT adapts the module `name`.
bool is_target(const nlohmann::json& targets, const std::string& name) {
  return std::ranges::any_of(targets, [&](const nlohmann::json& target) {
    return name == target.get<std::string>() || name.ends_with("." + target.get<std::string>());
  });
}

std::vector<nn::AdapterConfig> adapters_of(const nlohmann::json& config, const std::vector<std::string>& linears) {
  const auto rank = config.at("r").get<std::int64_t>();
  const double divisor = config.at("use_rslora").get<bool>() ? std::sqrt(rank) : static_cast<double>(rank);
  std::vector<nn::AdapterConfig> out;
  for (const std::string& name : linears) {
    if (name.empty() || !is_target(config.at("target_modules"), name)) continue;
    out.push_back({.target = name,
                   .rank = rank,
                   .scale = config.at("lora_alpha").get<double>() / divisor,
                   .magnitude = config.at("use_dora")});
  }
  return out;
}

// The base model with the adapters of an adapter_config.json; all else is frozen.
engine::ModelChanges changes_of(const nlohmann::json& config) {
  const auto describe = [config](models::ModelDescription& description, Problems& problems) {
    engine::changes_for_evaluation().describe(description, problems);
    for (models::BlockDescription& block : description.blocks) {
      nn::AttentionConfig& a = block.attention;
      nn::MlpConfig& m = block.mlp;
      a.adapters =
          adapters_of(config, a.q.empty() ? std::vector{a.fused, a.output} : std::vector{a.q, a.k, a.v, a.output});
      if (!block.moe) m.adapters = adapters_of(config, {m.gate, m.up, m.down});
    }
  };
  const auto spec_of = [modules = config.at("modules_to_save")](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    const std::string module = param.name.substr(0, param.name.rfind('.'));
    spec.trainable = param.name.find(".lora_") != std::string::npos ||
                     std::ranges::any_of(modules, [&](const nlohmann::json& saved) {
                       return module.ends_with(saved.get<std::string>());
                     });
    return spec;
  };
  return {.describe = describe, .spec_of = spec_of};
}

// A case, opened on one rank.
class OpenAdapter {
 public:
  explicit OpenAdapter(const std::string& name, const std::function<void(nlohmann::json& config)>& change = {})
      : folder(golden_folder(name)),
        expected(testing::read_json(folder / "expected.json")),
        base(golden_folder(expected.at("base"))),
        input(testing::open_golden(base, expected.at("sequence_length"))) {
    nlohmann::json config = testing::read_json(folder / "adapter_config.json");
    if (change) change(config);
    Problems problems;
    open = engine::open_model(base.string(), false, problems, changes_of(config));
    adapter = checkpoint::SafetensorsFolder::open((folder / "adapter_model.safetensors").string(), problems);
    problems.throw_if_any();
    sources.emplace(*open.weights);
    sources->add_adapter(*adapter);
  }
  OpenAdapter(const OpenAdapter&) = delete;

  std::string problems() const {
    Problems problems;
    models::check_weights(*open.model, *sources, problems);
    return problems.lines();
  }

  const fs::path folder;
  const nlohmann::json expected;
  const fs::path base;
  const std::unique_ptr<evaluate::OpenEvaluation> input;  // of the base model
  engine::OpenModel open;
  std::optional<checkpoint::SafetensorsFolder> adapter;
  std::optional<models::WeightSources> sources;
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<comm::Mesh> mesh = comm::make_self_mesh();
};

// A model's loss as `eval` computes it, with that of routers.
struct Loss {
  double loss = 0;
  step::StepInput input;  // with the statistics of the routers
};
Loss loss_of(engine::Session& session, const OpenAdapter& of) {
  std::vector<double> statistics;
  const auto [sum, targets] = engine::evaluate_loss(session, *of.input->loader, 1, nullptr, &statistics);
  Loss out{.loss = sum / static_cast<double>(targets), .input = testing::whole_file(*of.input->loader)};
  if (of.input->layout.auxiliary_given) out.loss += of.open.model->router_loss()->of(statistics);
  out.input.auxiliary_statistics.assign(statistics.begin(), statistics.end());
  return out;
}

class Adapters : public ::testing::TestWithParam<std::string> {};

TEST_P(Adapters, LossAndGradientsEqualPeft) {
  const OpenAdapter of(GetParam());
  EXPECT_EQ(of.problems(), "");
  const models::Model& model = *of.open.model;
  constexpr step::Purpose kGradients = step::Purpose::gradient_norms;
  engine::Session session(model, of.input->layout, *of.device, *of.mesh, {kGradients, step::Purpose::loss});
  session.load(*of.sources, 0);
  const Loss loss = loss_of(session, of);
  EXPECT_EQ(of.input->loader->step_targets(0), of.expected.at("tokens").get<std::int64_t>());
  const double reference = of.expected.at("loss");
  EXPECT_NEAR(loss.loss, reference, kLossError * reference);

  const step::StepOutput output = session.enqueue(kGradients, loss.input);
  session.synchronize();
  const auto projections = testing::gradient_projections(
      session, kGradients, [](const std::string& name) { return models::peft_name(name, ""); });
  const nlohmann::json &norms = of.expected.at("gradient_norms"), &projected = of.expected.at("projections");
  EXPECT_EQ(projections.size(), norms.size());
  const auto tensors = models::hf_tensors(model);
  std::size_t compared = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = models::peft_name(tensors[i].name, "");
    const double got = (*output.parameter_norms)[i];
    if (!model.flat(tensors[i].flat).spec().trainable) {
      EXPECT_EQ(got, 0) << name;
      EXPECT_FALSE(norms.contains(name)) << name;
      continue;
    }
    ASSERT_TRUE(norms.contains(name)) << name;
    const double norm = norms.at(name);
    EXPECT_NEAR(got, norm, kGradientError * norm) << name;
    EXPECT_LT(testing::projected_distance(projections.at(name), projected.at(name).get<std::vector<double>>()),
              kGradientError * norm)
        << name;
    ++compared;
  }
  EXPECT_EQ(compared, norms.size());
}

TEST_P(Adapters, TrainingFollowsPeft) {
  const OpenAdapter of(GetParam());
  const nlohmann::json& steps = of.expected.at("steps");
  engine::Session session(*of.open.model, testing::training_layout(of.input->layout, steps), *of.device, *of.mesh,
                          {step::Purpose::train});
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
  const models::Model& model = *of.open.model;
  engine::Session session(model, of.input->layout, *of.device, *of.mesh, {step::Purpose::loss});
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
  testing::expect_same_files(*exported, *of.adapter);

  const engine::OpenModel plain = engine::open_model(of.base.string(), false, problems);
  ASSERT_EQ(problems.lines(), "");
  models::export_folder(out.path("merged"), *plain.model, models::merge_adapters(model, source),
                        {.stored = DType::f32, .config = read_text(of.base / "config.json")});
  const evaluate::Evaluation merged = evaluate::evaluate({.model = out.path("merged"),
                                                          .data = (of.base / "data.jsonl").string(),
                                                          .sequence_length = of.expected.at("sequence_length")},
                                                         nullptr);
  const double unmerged = loss_of(session, of).loss;
  EXPECT_NEAR(merged.loss, unmerged, kMergedError * unmerged);
}

INSTANTIATE_TEST_SUITE_P(All, Adapters, ::testing::ValuesIn(testing::golden_cases("adapters")),
                         [](const auto& of) { return fs::path(of.param).filename().string(); });

// The relative difference of the loss with another config and the same tensors.
double difference(const std::string& name, const std::function<void(nlohmann::json&)>& change) {
  const OpenAdapter of("adapters/" + name, change);
  engine::Session session(*of.open.model, of.input->layout, *of.device, *of.mesh, {step::Purpose::loss});
  session.load(*of.sources, 0);
  return std::abs(loss_of(session, of).loss / of.expected.at("loss").get<double>() - 1);
}

// The golden files notice an option that is read wrongly, and a target without its adapter.
TEST(AdaptersDiffer, OtherOptions) {
  const auto with = [](const char* key, const nlohmann::json& value) {
    return [=](nlohmann::json& config) { config[key] = value; };
  };
  EXPECT_LT(difference("llama_rslora", [](nlohmann::json&) {}), kLossError);
  EXPECT_GT(difference("llama_lora", with("lora_alpha", 9)), 1e-3);
  EXPECT_GT(difference("llama_rslora", with("use_rslora", false)), 1e-3);
  EXPECT_GT(difference("llama_dora", with("use_dora", false)), 1e-3);
  EXPECT_GT(difference("gpt_neox_dora", with("use_rslora", false)), 1e-3);
  EXPECT_GT(difference("gpt_neox", with("target_modules", {"query_key_value", "dense", "dense_h_to_4h"})), 1e-3);
  EXPECT_GT(difference("mixtral", with("target_modules", {"q_proj", "k_proj", "o_proj"})), 1e-3);
}

// Tensors of the file that the config does not name.
TEST(AdaptersDiffer, TensorsWithoutATarget) {
  const OpenAdapter of("adapters/llama_lora", [](nlohmann::json& config) { config["target_modules"] = {"q_proj"}; });
  EXPECT_NE(of.problems().find("down_proj.lora_A.weight"), std::string::npos) << of.problems();
}

}  // namespace
}  // namespace hawser
