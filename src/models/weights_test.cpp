#include <cmath>
#include <map>

#include "base/philox.h"
#include "checkpoint/formats/safetensors_writer.h"
#include "models/testing/model_files.h"

namespace hawser::models {
namespace {

class WeightsTest : public ::testing::Test {
 protected:
  Storage flat(std::int64_t count, DType dtype = DType::f32) const { return Storage(*device_, dtype, {count}); }

  std::vector<float> tensor(checkpoint::SafetensorsFolder& folder, const std::string& name) const {
    const checkpoint::TensorInfo* info = folder.find(name);
    if (info == nullptr) return ADD_FAILURE() << name, std::vector<float>{};
    const Storage out = flat(info->shape.elements());
    folder.read(name, checkpoint::full(info->shape), out);
    return values(out);
  }

  // A unit's expected flat buffer, built tensor by tensor.
  std::vector<float> expected_unit(const nn::Unit& unit, std::int64_t total,
                                   checkpoint::SafetensorsFolder& folder) const {
    std::vector<float> all(static_cast<std::size_t>(total), 0.0f);
    for (std::size_t p = 0; p < unit.params().size(); ++p) {
      auto to = all.begin() + unit.offset(static_cast<int>(p));
      for (const nn::FusedSlice& slice : unit.params()[p].slices) {
        const std::vector<float> part = tensor(folder, slice.name);
        to = std::copy(part.begin(), part.end(), to);
      }
    }
    return all;
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
  std::mt19937 random_{7};
};

TEST_F(WeightsTest, AnyCutsOfAUnitLoadTheSameElements) {
  for (const std::string& name : golden_names()) {
    SCOPED_TRACE(name);
    const auto model = load_model(golden(name));
    auto folder = open_weights(golden(name));
    for (std::size_t u = 0; u < model->units().size(); ++u) {
      const nn::Unit& unit = model->units()[u];
      const std::int64_t total = unit.total(3);
      const std::vector<float> expected = expected_unit(unit, total, folder);
      for (const std::int64_t alignment : {std::int64_t{1}, nn::Unit::kAlignmentElements}) {
        const std::vector<std::int64_t> cuts = random_cuts(total, alignment, random_);
        for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
          const std::int64_t begin = cuts[i], count = cuts[i + 1] - begin;
          const Storage piece = flat(count);
          std::fill_n(piece.view().data<float>(), count, -7.0f);
          load_flat(*model, static_cast<int>(u), folder, begin, count, piece);
          EXPECT_EQ(values(piece), std::vector<float>(expected.begin() + begin, expected.begin() + begin + count));
        }
      }
    }
  }
}

TEST_F(WeightsTest, InitialValuesDoNotDependOnCuts) {
  const auto model = load_model(golden("everything"));
  const auto stream = device_->make_stream("compute");
  for (std::size_t u = 0; u < model->units().size(); ++u) {
    const nn::Unit& unit = model->units()[u];
    const std::int64_t total = unit.total(3);
    const Storage full = flat(total);
    std::fill_n(full.view().data<float>(), total, -7.0f);
    initialise_flat(*model, static_cast<int>(u), 11, 0, total, *stream, full);
    stream->synchronize();
    for (int round = 0; round < 4; ++round) {
      const std::vector<std::int64_t> cuts =
          random_cuts(total, round % 2 == 0 ? 1 : nn::Unit::kAlignmentElements, random_);
      std::vector<float> all;
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const Storage piece = flat(cuts[i + 1] - cuts[i]);
        initialise_flat(*model, static_cast<int>(u), 11, cuts[i], cuts[i + 1] - cuts[i], *stream, piece);
        stream->synchronize();
        const std::vector<float> part = values(piece);
        all.insert(all.end(), part.begin(), part.end());
      }
      EXPECT_EQ(all, values(full));
    }
    const std::vector<float> all = values(full);
    for (const nn::Unit::Gap& gap : unit.gaps(total)) {
      for (std::int64_t i = 0; i < gap.count; ++i) EXPECT_EQ(all[static_cast<std::size_t>(gap.begin + i)], 0.0f);
    }
  }
}

TEST_F(WeightsTest, InitialValuesAreNamedByTensorAndElement) {
  const auto model = load_model(golden("everything"));
  const auto stream = device_->make_stream("compute");
  const nn::Unit& block = model->units()[1];
  const Storage full = flat(block.used());
  initialise_flat(*model, 1, 11, 0, block.used(), *stream, full);
  stream->synchronize();
  const std::vector<float> all = values(full);
  const auto at = [&](const std::string& param, const std::string& slice) {
    for (std::size_t p = 0; p < block.params().size(); ++p) {
      if (block.params()[p].name != param) continue;
      for (const nn::FusedSlice& s : block.params()[p].slices) {
        if (s.name == slice) return all.data() + block.offset(static_cast<int>(p)) + s.row * block.params()[p].shape[1];
      }
    }
    return static_cast<const float*>(nullptr);
  };
  const std::string k = "model.layers.0.self_attn.k_proj.weight";
  const float* first = at("model.layers.0.self_attn.qkv_proj.weight", k);
  ASSERT_NE(first, nullptr);
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_NEAR(first[i], 0.02 * RandomStream(11, k).normal(i), 1e-7) << i;
  }
  EXPECT_EQ(all[0], 1.0f);  // a norm
  double squares = 0;
  const std::int64_t count = 20 * 36;
  for (std::int64_t i = 0; i < count; ++i) squares += static_cast<double>(first[i]) * first[i];
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(count)), 0.02, 0.002);
}

TEST_F(WeightsTest, StatesOfAllPiecesCoverEveryElementOnce) {
  const auto model = load_model(golden("everything"));
  std::map<std::string, std::vector<int>> seen;
  std::map<std::string, Shape> shapes;
  for (const HfTensor& tensor : hf_tensors(*model)) {
    seen["moment/" + tensor.name].resize(static_cast<std::size_t>(tensor.shape.elements()));
    shapes["moment/" + tensor.name] = tensor.shape;
  }
  for (std::size_t u = 0; u < model->units().size(); ++u) {
    const std::int64_t total = model->units()[u].total(3);
    const std::vector<std::int64_t> cuts = random_cuts(total, 1, random_);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::int64_t count = cuts[i + 1] - cuts[i];
      const Storage piece = flat(count);
      std::int64_t gap = 0, covered = 0;
      for (const nn::Unit::Gap& part : gap_pieces(model->units()[u], cuts[i], count)) gap += part.count;
      for (const NamedState& state : unit_states(*model, static_cast<int>(u), cuts[i], count, piece, "moment/")) {
        ASSERT_TRUE(seen.contains(state.name)) << state.name;
        EXPECT_TRUE(state.shape == shapes[state.name]);
        EXPECT_LE(static_cast<int>(state.boxes.size()), 2 * state.shape.rank() - 1);
        for (const Box& box : state.boxes) {
          covered += box.view.elements();
          checkpoint::for_each_run(state.shape, checkpoint::region_of(box), [&](std::int64_t first, std::int64_t run) {
            for (std::int64_t e = first; e < first + run; ++e) ++seen[state.name][static_cast<std::size_t>(e)];
          });
        }
      }
      EXPECT_EQ(covered + gap, count);
    }
  }
  for (const auto& [name, counts] : seen) {
    EXPECT_EQ(counts, std::vector<int>(counts.size(), 1)) << name;
  }
}

TEST_F(WeightsTest, TensorsAreThoseOfTheFolder) {
  for (const std::string& name : golden_names()) {
    const auto model = load_model(golden(name));
    const auto folder = open_weights(golden(name));
    std::vector<std::string> names;
    for (const HfTensor& tensor : hf_tensors(*model)) names.push_back(tensor.name);
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, folder.names());
    Problems problems;
    check_weights(*model, folder, problems);
    EXPECT_EQ(problems.lines(), "") << name;
  }
}

TEST_F(WeightsTest, WhatDoesNotFitTheModelIsReportedAllAtOnce) {
  const auto model = load_model(golden("tied"));
  auto source = open_weights(golden("tied"));
  const auto lines = [&](const std::function<void(std::vector<checkpoint::SafetensorsSpec>&)>& change,
                         float head = 0.0f) {
    const TemporaryFolder folder;
    std::vector<checkpoint::SafetensorsSpec> specs;
    for (const HfTensor& tensor : hf_tensors(*model)) specs.push_back({tensor.name, tensor.shape, DType::f32});
    change(specs);
    Storage out;
    checkpoint::write_safetensors(folder.path("model"), specs, [&](const checkpoint::SafetensorsSpec& spec) {
      out = Storage(*device_, spec.dtype, spec.shape);
      if (spec.name == "lm_head.weight" || spec.name == "model.embed_tokens.weight") {
        source.read("model.embed_tokens.weight", checkpoint::full(spec.shape), out);
        if (spec.name == "lm_head.weight") out.view().data<float>()[17] += head;
      }
      return out.view();
    });
    const auto weights = open_weights(folder.path("model"));
    Problems problems;
    check_weights(*model, weights, problems);
    std::string text = problems.lines();
    for (std::size_t at; (at = text.find(folder.path() + "/")) != std::string::npos;) {
      text.erase(at, folder.path().size() + 1);
    }
    return text;
  };
  EXPECT_EQ(lines([](auto&) {}), "");
  EXPECT_EQ(lines([](auto& specs) {
              specs.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {4}, DType::f32});
            }),
            "");
  EXPECT_EQ(lines([](auto& specs) { specs.push_back({"lm_head.weight", {96, 32}, DType::f32}); }), "");
  EXPECT_EQ(lines(
                [](auto& specs) {
                  specs.push_back({"lm_head.weight", {96, 32}, DType::f32});
                },
                0.5f),
            "model/model.safetensors: the head differs from the embedding it is tied to (expected "
            "model.embed_tokens.weight) at lm_head.weight; try tie_word_embeddings: false in config.json");
  EXPECT_EQ(
      lines([](auto& specs) {
        specs.erase(specs.begin() + 1);  // model.layers.0.input_layernorm.weight
        specs[1].shape = {32, 31};       // q_proj
        specs[2].dtype = DType::i32;     // k_proj
        specs.push_back({"model.layers.0.self_attn.q_proj.bias", {32}, DType::f32});
      }),
      "model: a tensor of the model is missing (expected [32], got none) at model.layers.0.input_layernorm.weight\n"
      "model/model.safetensors: a tensor's shape differs from config.json (expected [32, 32], got [32, "
      "31]) at model.layers.0.self_attn.q_proj.weight\n"
      "model/model.safetensors: a tensor has an unsupported dtype (expected F32, BF16, F16 or F64, got I32) "
      "at model.layers.0.self_attn.k_proj.weight\n"
      "model/model.safetensors: a tensor is not part of config.json's model (got F32 [32]) at "
      "'model.layers.0.self_attn.q_proj.bias'");
}

class ExportTest : public WeightsTest {
 protected:
  // Supplies states from a golden folder.
  StateSource source(checkpoint::SafetensorsFolder& folder) {
    return [&folder](const std::vector<NamedState>& states) {
      for (const NamedState& state : states) {
        for (const Box& box : state.boxes) folder.read(state.name, checkpoint::region_of(box), box.view);
      }
    };
  }
};

TEST_F(ExportTest, AnExportHoldsTheSameModel) {
  for (const std::string& name : golden_names()) {
    SCOPED_TRACE(name);
    const auto model = load_model(golden(name));
    auto weights = open_weights(golden(name));
    for (const std::int64_t shard_bytes : {std::int64_t{5'000'000'000}, std::int64_t{20'000}}) {
      const TemporaryFolder folder;
      const std::string config =
          config_json(model->description(), DType::f32, read_file(golden(name) + "/config.json"));
      export_folder(folder.path("out"), *model, source(weights),
                    {.stored = DType::f32, .config = config, .max_shard_bytes = shard_bytes});
      EXPECT_EQ(std::filesystem::exists(folder.path("out/model.safetensors.index.json")), shard_bytes < 1'000'000);
      const auto again = load_model(folder.path("out"));
      auto exported = open_weights(folder.path("out"));
      Problems problems;
      check_weights(*again, exported, problems);
      EXPECT_EQ(problems.lines(), "");
      EXPECT_EQ(exported.names(), weights.names());
      for (const std::string& tensor_name : weights.names()) {
        EXPECT_EQ(tensor(exported, tensor_name), tensor(weights, tensor_name)) << tensor_name;
      }
    }
  }
}

TEST_F(ExportTest, Bf16RoundsAndFilesOfTheTokenizerComeAlong) {
  const auto model = load_model(golden("gqa"));
  auto weights = open_weights(golden("gqa"));
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path("from"));
  folder.write("from/tokenizer.json", "{\"a\": 1}");
  folder.write("from/special_tokens_map.json", "{}");
  folder.write("from/notes.txt", "not of the tokenizer");
  ExportOptions options{.config = config_json(model->description(), DType::bf16),
                        .tokenizer = tokenizer_files(folder.path("from/tokenizer.json"))};
  export_folder(folder.path("out"), *model, source(weights), options);
  auto exported = open_weights(folder.path("out"));
  for (const std::string& name : weights.names()) {
    std::vector<float> expected = tensor(weights, name);
    for (float& value : expected) value = static_cast<float>(Bf16(value));
    EXPECT_EQ(tensor(exported, name), expected);
    EXPECT_STREQ(exported.find(name)->type->name, "BF16");
  }
  EXPECT_EQ(read_file(folder.path("out/tokenizer.json")), "{\"a\": 1}");
  EXPECT_EQ(read_file(folder.path("out/special_tokens_map.json")), "{}");
  EXPECT_FALSE(std::filesystem::exists(folder.path("out/notes.txt")));
  EXPECT_NE(read_file(folder.path("out/tokenizer_config.json")).find("PreTrainedTokenizerFast"), std::string::npos);

  EXPECT_THROW(export_folder(folder.path("out"), *model, source(weights), options), UserError);
  for (const std::string name : {"tokenizer.model", "tekken.json", "tokenizer.json"}) {
    const std::string out = folder.path(name);
    export_folder(out, *model, source(weights), {.config = "{}", .tokenizer = {{name, "..."}}});
    EXPECT_EQ(read_file(std::filesystem::path(out) / name), "...");
    EXPECT_EQ(std::filesystem::exists(out + "/tokenizer_config.json"), name == "tokenizer.json")
        << "it would name a class that needs a tokenizer.json";
  }
  folder.write("from/tokenizer_config.json", "{\"own\": true}");
  options.replace = true;
  options.tokenizer = tokenizer_files(folder.path("from"));
  export_folder(folder.path("out"), *model, source(weights), options);
  EXPECT_EQ(read_file(folder.path("out/tokenizer_config.json")), "{\"own\": true}");
}

TEST_F(ExportTest, ASourceThatFailsLeavesNothing) {
  const auto model = load_model(golden("gqa"));
  const TemporaryFolder folder;
  const StateSource failing = [](const std::vector<NamedState>&) { throw UserError("no"); };
  EXPECT_THROW(export_folder(folder.path("out"), *model, failing, {.config = "{}"}), UserError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace hawser::models
