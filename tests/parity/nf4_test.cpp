// LoRA on a base in NF4 (QLoRA) against PEFT and bitsandbytes (tests/golden/nf4, made by tools/golden/make_nf4.py):
// blocks, loss, every gradient and training steps, of weights that are quantized as they are read, and of a folder that
// bitsandbytes has quantized.
#include <gtest/gtest.h>

#include <cmath>

#include "base/testing/temporary_folder.h"
#include "engine/host_copy.h"
#include "models/peft.h"
#include "training.h"

namespace hawser {
namespace nf4_test {

namespace fs = std::filesystem;

using testing::golden_folder;

constexpr double kLossError = 1e-5;  // relative, as of gradients
constexpr double kGradientError = 1e-4;

// `model`: a folder in tests/golden/nf4. `base`: adapter.base.
struct Case {
  std::string name, model;
  AdapterBase base = AdapterBase::nf4;

  fs::path folder() const { return golden_folder("nf4/" + name); }
  nlohmann::json expected() const { return testing::read_json(folder() / "expected.json"); }
};

evaluate::EvaluateRequest request_of(const Case& c) {
  const nlohmann::json expected = c.expected();
  evaluate::EvaluateRequest request{.model = golden_folder("nf4/" + c.model).string(),
                                    .adapters = {c.folder().string()},
                                    .data = golden_folder("nf4/base/data.jsonl").string(),
                                    .sequence_length = expected.at("sequence_length")};
  request.recipe.adapter.base = c.base;
  request.recipe.adapter.double_quantization = expected.at("double_quantization");
  request.recipe.places = {{"adapter.base", {}}, {"adapter.double_quantization", {}}};
  return request;
}

class Nf4 : public ::testing::TestWithParam<Case> {};

// On one rank, or as one of the ranks that share it.
struct Open {
  explicit Open(const Case& c) {
    Problems problems;
    auto opened = evaluate::open_evaluation(request_of(c), 0, 1, problems);
    problems.throw_if_any();
    input = std::make_unique<evaluate::OpenEvaluation>(std::move(*opened));
    sources.emplace(engine::sources_of(input->open));
  }
  const models::Model& model() const { return *input->open.model; }
  std::unique_ptr<engine::Session> session(const plan::LayoutChoices& layout, step::Purpose purpose) {
    auto out =
        std::make_unique<engine::Session>(model(), plan::derive(layout, model()), *device, *mesh, std::vector{purpose});
    out->load(*sources, 0);
    return out;
  }

  std::unique_ptr<evaluate::OpenEvaluation> input;
  std::optional<models::WeightSources> sources;
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<comm::Mesh> mesh = comm::make_self_mesh();
};

TEST_P(Nf4, LossAndGradientsEqualPeft) {
  const nlohmann::json expected = GetParam().expected();
  evaluate::EvaluateRequest request = request_of(GetParam());
  const double loss = expected.at("loss");
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
  for (const auto& [name, value] : result.gradient_norms) {
    ASSERT_TRUE(norms.contains(name)) << name;
    const double norm = norms.at(name);
    EXPECT_NEAR(value, norm, kGradientError * norm) << name;
    EXPECT_LT(testing::projected_distance(projections.at(name), projected.at(name).get<std::vector<double>>()),
              kGradientError * norm)
        << name;
  }
}

TEST_P(Nf4, FiftyStepsFollowPeft) {
  Open of(GetParam());
  const nlohmann::json expected = GetParam().expected();
  const nlohmann::json& steps = expected.at("steps");
  const auto session = of.session(testing::training_layout(of.input->layout, steps), step::Purpose::train);
  const auto losses = steps.at("losses").get<std::vector<double>>();
  EXPECT_EQ(losses.size(), 50u);
  testing::expect_losses(testing::train(*session, *of.input->loader, steps), losses);
}

INSTANTIATE_TEST_SUITE_P(All, Nf4,
                         ::testing::Values(Case{"double", "base"}, Case{"double", "double/quantized"},
                                           Case{"double", "double/quantized", AdapterBase::bf16},
                                           Case{"single", "single/quantized"},
                                           Case{"single", "single/quantized", AdapterBase::automatic}),
                         [](const auto& of) {
                           const char* const base = of.param.base == AdapterBase::nf4 ? "_nf4" : "_dequantized";
                           const std::string from = of.param.model == "base" ? "_quantized_here" : "";
                           return of.param.name + from + base;
                         });

// The flat and the parameter that have a tensor, alone or with others.
std::pair<int, int> place_of(const models::Model& model, const std::string& tensor) {
  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
    const std::vector<nn::Param>& params = model.flat(f).params();
    for (std::size_t p = 0; p < params.size(); ++p) {
      for (const nn::Segment& segment : params[p].segments) {
        if (segment.name == tensor) return {f, static_cast<int>(p)};
      }
    }
  }
  throw UserError("no " + tensor);
}

// Codes, scales and groups of a tensor: those of the file, if it is quantized; quantized here, those of bitsandbytes.
TEST(Nf4Blocks, AreThoseOfBitsandbytes) {
  const Case read{"double", "double/quantized"}, quantized{"double", "base"};
  const nlohmann::json expected = read.expected();
  const std::string tensor = expected.at("scaled");
  Problems problems;
  auto folder = checkpoint::SafetensorsFolder::open(golden_folder("nf4/double/quantized").string(), problems);
  ASSERT_EQ(problems.lines(), "");
  const std::int64_t count = folder->find_quantized(tensor)->blocks();
  std::vector<Nf4DoubleBlock> blocks(static_cast<std::size_t>(count));
  folder->read_blocks(tensor, 0, count, blocks.data());
  const std::vector<Nf4Group> groups = folder->read_groups(tensor);
  const auto scales = expected.at("scales").get<std::vector<float>>();
  ASSERT_EQ(scales.size(), blocks.size());
  std::vector<float> map(256);
  folder->read_bytes(checkpoint::QuantizedNames(tensor).map, 0, reinterpret_cast<std::byte*>(map.data()), 1024);
  EXPECT_TRUE(std::ranges::equal(map, kSignedDynamicMap));
  for (const Case& c : {read, quantized}) {
    Open of(c);
    const auto session = of.session(of.input->layout, step::Purpose::loss);
    const auto [flat, param] = place_of(of.model(), tensor);
    const nn::Param& weight = of.model().flat(flat).params()[static_cast<std::size_t>(param)];
    const auto segment = std::ranges::find(weight.segments, tensor, &nn::Segment::name);
    const TensorView view = of.model().flat(flat).view(session->state().flat(flat).unsharded, param);
    const nn::Nf4Matrix nf4 = session->state().nf4_matrix(flat, param);
    const auto* const own = reinterpret_cast<const Nf4Group*>(nf4.scales.groups.raw());
    const std::int64_t first = nf4.scales.row_places.data<std::int32_t>()[segment->row];
    for (std::int64_t b = 0; b < count; ++b) {
      const auto at = static_cast<std::size_t>(b);
      const Nf4DoubleBlock& block = view.data<Nf4DoubleBlock>()[segment->row * view.size(1) + b];
      const Nf4Group& group = own[(first + b) / kNf4GroupBlocks];
      EXPECT_EQ(block.codes, blocks[at].codes) << b;
      EXPECT_NEAR(group.scale, groups[at / 256].scale, 1e-6 * groups[at / 256].scale);
      EXPECT_NEAR(group.mean, groups[at / 256].mean, 1e-6 * groups[at / 256].mean);
      EXPECT_EQ(block.scale, blocks[at].scale) << b;
      EXPECT_NEAR(group.value(block.scale), scales[at], 1.3e-7 * scales[at]) << b;
    }
  }
}

// A problem for each way in which a quantized folder is not what it says.
TEST(Nf4Folder, WrongFilesAreRejected) {
  // `zeroed`: a tensor that becomes zeros.
  const auto lines = [](const std::function<void(nlohmann::json & state)>& change, const std::string& left_out,
                        const std::string& zeroed = "") {
    Problems problems;
    const fs::path from = golden_folder("nf4/double/quantized/model.safetensors");
    auto folder = checkpoint::SafetensorsFolder::open(from.string(), problems);
    const nlohmann::json header = [&] {
      std::ifstream file(from, std::ios::binary);
      std::uint64_t size = 0;
      file.read(reinterpret_cast<char*>(&size), 8);
      std::string text(size, ' ');
      file.read(text.data(), static_cast<std::streamsize>(size));
      return nlohmann::json::parse(text);
    }();
    // The same tensors again, with another text of one of them.
    const std::string state = "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4";
    nlohmann::json changed = nlohmann::json::object();
    std::string data;
    for (const auto& [name, info] : header.items()) {
      if (name == "__metadata__" || name == left_out) continue;
      std::string bytes(static_cast<std::size_t>(folder->find(name)->bytes), ' ');
      folder->read_bytes(name, 0, reinterpret_cast<std::byte*>(bytes.data()), static_cast<std::int64_t>(bytes.size()));
      nlohmann::json now = info;
      if (name == zeroed) bytes.assign(bytes.size(), '\0');
      if (name == state) {
        nlohmann::json text = nlohmann::json::parse(bytes);
        change(text);
        bytes = text.dump();
        now["shape"] = {bytes.size()};
      }
      now["data_offsets"] = {data.size(), data.size() + bytes.size()};
      changed[name] = now;
      data += bytes;
    }
    const TemporaryFolder out;
    const std::string text = changed.dump();
    std::string file(8, '\0');
    for (int i = 0; i < 8; ++i) file[static_cast<std::size_t>(i)] = static_cast<char>(text.size() >> (8 * i) & 0xff);
    out.write("model.safetensors", file + text + data);
    checkpoint::SafetensorsFolder::open(out.path("model.safetensors"), problems);
    std::string found = problems.lines();
    for (std::size_t at = 0; (at = found.find(out.path(""))) != std::string::npos;)
      found.erase(at, out.path("").size());
    return found;
  };
  const std::string place = " at 'model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4'";
  EXPECT_EQ(lines([](nlohmann::json&) {}, ""), "");
  EXPECT_EQ(lines([](nlohmann::json& state) { state["blocksize"] = 128; }, ""),
            "model.safetensors: blocks of another size (expected 64, got 128)" + place);
  EXPECT_EQ(
      lines([](nlohmann::json& state) { state["quant_type"] = "fp4"; }, ""),
      "model.safetensors: weights are quantized to a format that is not supported (expected nf4, got \"fp4\")" + place);
  EXPECT_EQ(lines([](nlohmann::json& state) { state["nested_blocksize"] = 128; }, ""),
            "model.safetensors: groups of another size (expected 256, got 128)" + place);
  EXPECT_EQ(lines([](nlohmann::json& state) { state.erase("shape"); }, ""),
            "model.safetensors: a quant_state without a shape (expected JSON text of bitsandbytes)" + place);
  EXPECT_EQ(lines(
                [](nlohmann::json& state) {
                  state["shape"] = {321, 65};
                },
                ""),
            "model.safetensors: a number of weights that blocks do not divide (expected a multiple of 64, got 20865)" +
                place);
  EXPECT_EQ(lines(
                [](nlohmann::json& state) {
                  state["shape"] = {64, 64};
                },
                "")
                .substr(0, 67),
            "model.safetensors: a tensor of quantized weights has another size (");
  for (const std::string map : {"quant_map", "nested_quant_map"}) {
    const std::string name = "model.layers.0.mlp.up_proj.weight." + map;
    EXPECT_EQ(lines([](nlohmann::json&) {}, "", name),
              "model.safetensors: codes have other values than those of bitsandbytes at '" + name + "'");
  }
  EXPECT_EQ(lines([](nlohmann::json&) {}, "model.layers.0.mlp.up_proj.weight.absmax"),
            "model.safetensors: a tensor of quantized weights is missing (expected 320 bytes) at "
            "'model.layers.0.mlp.up_proj.weight.absmax'");
}

}  // namespace nf4_test
}  // namespace hawser
