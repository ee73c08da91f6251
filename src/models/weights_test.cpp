// Loading and initial values of flats in any pieces, states of pieces, and what does not fit a model.
#include <cmath>
#include <map>
#include <set>

#include "base/philox.h"
#include "checkpoint/formats/safetensors_writer.h"
#include "models/testing/weights_fixture.h"

namespace hawser::models {
namespace weights_test {

TEST_F(WeightsTest, AnyCutsOfAUnitLoadTheSameElements) {
  for (const std::string& name : golden_names()) {
    SCOPED_TRACE(name);
    const auto model = load_model(golden(name));
    auto folder = open_weights(golden(name));
    for (std::size_t f = 0; f < model->flats().size(); ++f) {
      const nn::Flat& flat = model->flats()[f];
      const std::int64_t total = flat.total(3);
      const std::vector<float> expected = expected_flat(flat, total, folder);
      for (const std::int64_t alignment : {std::int64_t{1}, nn::Flat::kAlignmentElements}) {
        const std::vector<std::int64_t> cuts = random_cuts(total, alignment, random_);
        for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
          const std::int64_t begin = cuts[i], count = cuts[i + 1] - begin;
          const Storage piece = buffer(count);
          std::fill_n(piece.view().data<float>(), count, -7.0f);
          load_flat(*model, static_cast<int>(f), folder, begin, count, piece);
          EXPECT_EQ(values(piece), std::vector<float>(expected.begin() + begin, expected.begin() + begin + count));
        }
      }
    }
  }
}

TEST_F(WeightsTest, InitialValuesDoNotDependOnCuts) {
  const auto model = load_model(golden("everything"));
  const auto stream = device_->make_stream("compute");
  for (std::size_t f = 0; f < model->flats().size(); ++f) {
    const nn::Flat& flat = model->flats()[f];
    const std::int64_t total = flat.total(3);
    const Storage full = buffer(total);
    std::fill_n(full.view().data<float>(), total, -7.0f);
    initialise_flat(*model, static_cast<int>(f), 11, 0, total, *stream, full);
    stream->synchronize();
    for (int round = 0; round < 4; ++round) {
      const std::vector<std::int64_t> cuts =
          random_cuts(total, round % 2 == 0 ? 1 : nn::Flat::kAlignmentElements, random_);
      std::vector<float> all;
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const Storage piece = buffer(cuts[i + 1] - cuts[i]);
        initialise_flat(*model, static_cast<int>(f), 11, cuts[i], cuts[i + 1] - cuts[i], *stream, piece);
        stream->synchronize();
        const std::vector<float> part = values(piece);
        all.insert(all.end(), part.begin(), part.end());
      }
      EXPECT_EQ(all, values(full));
    }
    const std::vector<float> all = values(full);
    for (const IndexRange& gap : flat.gaps(total)) {
      for (std::int64_t i = 0; i < gap.count; ++i) EXPECT_EQ(all[static_cast<std::size_t>(gap.begin + i)], 0.0f);
    }
  }
}

TEST_F(WeightsTest, InitialValuesAreNamedByTensorAndElement) {
  const auto model = load_model(golden("everything"));
  const auto stream = device_->make_stream("compute");
  const nn::Flat& block = model->flats()[1];
  const Storage full = buffer(block.used());
  initialise_flat(*model, 1, 11, 0, block.used(), *stream, full);
  stream->synchronize();
  const std::vector<float> all = values(full);
  const auto at = [&](const std::string& param, const std::string& slice) {
    for (std::size_t p = 0; p < block.params().size(); ++p) {
      if (block.params()[p].name != param) continue;
      for (const nn::Segment& s : block.params()[p].segments) {
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

// The model of tensor-parallel rank `part` of two: about half of all heads and of the MLP's inner width.
ModelDescription half_of(ModelDescription description, int part) {
  for (BlockDescription& block : description.blocks) {
    const auto cut = [&](std::int64_t& extent, nn::DimSlice& where) {
      where = {.begin = part * (extent / 2), .total = extent};
      extent = part == 0 ? extent / 2 : extent - extent / 2;
    };
    cut(block.mlp.inner, block.mlp.inner_slice);
    cut(block.attention.heads, block.attention.heads_slice);
    cut(block.attention.kv_heads, block.attention.kv_heads_slice);
  }
  return description;
}

// Initial values, loaded weights and the boxes of checkpoints of rows and columns of a tensor are those of one rank.
TEST_F(WeightsTest, SlicesHaveTheElementsOfTheGlobalTensor) {
  const auto whole = load_model(golden("everything"));
  auto folder = open_weights(golden("everything"));
  const auto stream = device_->make_stream("compute");
  std::map<std::string, std::vector<float>> initial;
  for (std::size_t f = 0; f < whole->flats().size(); ++f) {
    const std::int64_t total = whole->flats()[f].used();
    const Storage all = buffer(total);
    initialise_flat(*whole, static_cast<int>(f), 11, 0, total, *stream, all);
    stream->synchronize();
    for (const NamedState& state : states_of(*whole, static_cast<int>(f), 0, total, all)) {
      std::vector<float>& to = initial[state.name];
      for (const Box& box : state.boxes) {
        const std::vector<float> part = values(box.view);
        to.insert(to.end(), part.begin(), part.end());
      }
    }
  }
  std::map<std::string, std::vector<int>> seen;
  for (const int part : {0, 1}) {
    const Model model(half_of(whole->description(), part));
    for (std::size_t f = 0; f < model.flats().size(); ++f) {
      const nn::Flat& flat = model.flats()[f];
      const std::vector<std::int64_t> cuts = random_cuts(flat.total(3), 1, random_);
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const std::int64_t count = cuts[i + 1] - cuts[i];
        const Storage first = buffer(count), loaded = buffer(count);
        initialise_flat(model, static_cast<int>(f), 11, cuts[i], count, *stream, first);
        stream->synchronize();
        load_flat(model, static_cast<int>(f), folder, cuts[i], count, loaded);
        const auto states = states_of(model, static_cast<int>(f), cuts[i], count, first);
        const auto of_file = states_of(model, static_cast<int>(f), cuts[i], count, loaded);
        for (std::size_t s = 0; s < states.size(); ++s) {
          const NamedState& state = states[s];
          const std::vector<float> file = tensor(folder, state.name);
          ASSERT_EQ(static_cast<std::size_t>(state.shape.elements()), file.size()) << state.name;
          std::vector<int>& counts = seen[state.name];
          counts.resize(file.size());
          for (std::size_t b = 0; b < state.boxes.size(); ++b) {
            const std::vector<float> drawn = values(state.boxes[b].view), read = values(of_file[s].boxes[b].view);
            std::size_t at = 0;
            checkpoint::for_each_run(state.shape, checkpoint::region_of(state.boxes[b]),
                                     [&](std::int64_t begin, std::int64_t run) {
                                       for (std::int64_t e = begin; e < begin + run; ++e, ++at) {
                                         const auto element = static_cast<std::size_t>(e);
                                         ASSERT_EQ(drawn[at], initial[state.name][element]) << state.name << " " << e;
                                         ASSERT_EQ(read[at], file[element]) << state.name << " " << e;
                                         ++counts[element];
                                       }
                                     });
          }
        }
      }
    }
  }
  for (const auto& [name, counts] : seen) {
    const bool sliced =
        name.find("_proj") != std::string::npos && !name.ends_with("o_proj.bias") && !name.ends_with("down_proj.bias");
    EXPECT_EQ(counts, std::vector<int>(counts.size(), sliced ? 1 : 2)) << name;
  }
}

TEST_F(WeightsTest, StatesOfAllPiecesCoverEveryElementOnce) {
  const auto model = load_model(golden("everything"));
  std::map<std::string, std::vector<int>> seen;
  std::map<std::string, Shape> shapes;
  for (const HfTensor& tensor : hf_tensors(*model)) {
    seen["moment/" + tensor.name].resize(static_cast<std::size_t>(tensor.shape.elements()));
    shapes["moment/" + tensor.name] = tensor.shape;
  }
  for (std::size_t f = 0; f < model->flats().size(); ++f) {
    const std::int64_t total = model->flats()[f].total(3);
    const std::vector<std::int64_t> cuts = random_cuts(total, 1, random_);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::int64_t count = cuts[i + 1] - cuts[i];
      const Storage piece = buffer(count);
      std::int64_t gap = 0, covered = 0;
      for (const IndexRange& part : gap_ranges(model->flats()[f], cuts[i], count)) gap += part.count;
      for (const NamedState& state : states_of(*model, static_cast<int>(f), cuts[i], count, piece, "moment/")) {
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
    auto folder = open_weights(golden(name));
    std::vector<std::string> names;
    for (const HfTensor& tensor : hf_tensors(*model)) names.push_back(tensor.name);
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, folder.names());
    Problems problems;
    check_weights(*model, folder, problems);
    EXPECT_EQ(problems.lines(), "") << name;
  }
}

// A base model's folder has no adapters: they start with initial values. A second folder has some of them, named as
// PEFT names them, and a head in place of the base model's.
TEST_F(WeightsTest, TensorsComeFromTheLastFolderThatHasThem) {
  Problems problems;
  ModelDescription description = read_description(golden("tied"), problems);
  nn::AttentionConfig& first = description.blocks.front().attention;
  first.adapters = {{first.q, 2, 1.0, 0.0}, {first.output, 2, 1.0, 0.0}};
  const Model model(std::move(description));
  auto base = open_weights(golden("tied"));
  const nn::AttentionConfig& attention = model.description().blocks.front().attention;
  const std::string a = attention.q + ".lora_A.weight", norm = "model.norm.weight";
  const auto write = [&](const TemporaryFolder& folder, const std::string& prefix) {
    std::vector<checkpoint::SafetensorsSpec> specs;
    for (const HfTensor& tensor : hf_tensors(model)) {
      if (tensor.name == a || tensor.name == norm) specs.push_back({prefix + tensor.name, tensor.shape, DType::f32});
    }
    Storage out;
    checkpoint::write_safetensors(folder.path("adapter"), specs, [&](const checkpoint::SafetensorsSpec& spec) {
      out = Storage(*device_, spec.dtype, spec.shape);
      std::fill_n(out.view().data<float>(), spec.shape.elements(), 3.0f);
      return out.view();
    });
    return open_weights(folder.path("adapter"));
  };
  const TemporaryFolder folder, wrong;
  auto adapter = write(folder, "base_model.model."), unprefixed = write(wrong, "");
  WeightSources sources(base);
  sources.add(adapter, "base_model.model.");
  check_weights(model, sources, problems);
  EXPECT_EQ(problems.lines(), "");
  std::set<std::string> absent, replaced;
  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
    const nn::Flat& flat = model.flat(f);
    const std::int64_t total = flat.total(1);
    const Storage values = buffer(total), of_base = buffer(total);
    for (const SegmentRange& piece : load_flat(model, f, sources, 0, total, values)) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(piece.param)];
      absent.insert(param.segments[static_cast<std::size_t>(piece.segment)].name);
      EXPECT_EQ(piece.count, param.elements());
      EXPECT_EQ(piece.at, flat.offset(piece.param));
    }
    load_flat(model, f, base, 0, total, of_base);
    for (const SegmentRange& piece : segment_ranges(flat, 0, total)) {
      const float* const now = values.view().data<float>() + piece.at;
      if (std::equal(now, now + piece.count, of_base.view().data<float>() + piece.at)) continue;
      EXPECT_EQ(std::count(now, now + piece.count, 3.0f), piece.count);
      const nn::Param& param = flat.params()[static_cast<std::size_t>(piece.param)];
      replaced.insert(param.segments[static_cast<std::size_t>(piece.segment)].name);
    }
  }
  EXPECT_EQ(replaced, (std::set<std::string>{a, norm}));
  EXPECT_EQ(absent, (std::set<std::string>{attention.q + ".lora_B.weight", attention.output + ".lora_A.weight",
                                           attention.output + ".lora_B.weight"}));
  WeightSources both(base);
  both.add(unprefixed, "base_model.model.");
  check_weights(model, both, problems);
  EXPECT_EQ(problems.size(), 2u) << problems.lines();  // neither name has the prefix
}

TEST_F(WeightsTest, NamesThatAModelIgnores) {
  Problems problems;
  ModelDescription description = read_description(golden("tied"), problems);
  description.ignored_tensors = {"model.norm.*", "*q_proj.weight", "model.embed_tokens.weight"};
  auto weights = open_weights(golden("tied"));
  description.head.norm = "another.norm";
  const Model model(std::move(description));
  check_weights(model, weights, problems);
  ASSERT_EQ(problems.size(), 1u) << problems.lines();  // that it is there is ignored, that another is missing is not
  EXPECT_EQ(problems.all().front().at, "another.norm.weight");
}

// The bias of a head is a tensor of its own, also if the weight is the embedding's, and is not weight-decayed.
TEST_F(WeightsTest, AHeadWithABias) {
  for (const std::string name : {"tied", "gqa"}) {
    Problems problems;
    ModelDescription description = read_description(golden(name), problems);
    const std::int64_t vocabulary = description.head.vocabulary;
    description.head.bias = true;
    const Model model(std::move(description));
    const HfTensor last = hf_tensors(model).back();
    EXPECT_EQ(last.name, "lm_head.bias");
    EXPECT_EQ(last.file_shape, Shape{vocabulary});
    EXPECT_FALSE(model.flat(last.flat).params()[static_cast<std::size_t>(last.param)].decay);
    EXPECT_EQ(model.parameters(), load_model(golden(name))->parameters() + vocabulary);
    auto weights = open_weights(golden(name));
    check_weights(model, weights, problems);
    ASSERT_EQ(problems.size(), 1u) << problems.lines();
    EXPECT_EQ(problems.all().front().at, "lm_head.bias");
  }
}

// Files that have one weight under two names: the same bytes are one weight, others a problem that names both.
TEST_F(WeightsTest, ASecondNameOfAWeightHasItsBytes) {
  const auto lines = [&](const std::string& of, const std::string& second, const std::vector<std::string>& parts,
                         float change) {
    const auto model = load_model(golden(of));
    auto source = open_weights(golden(of));
    const TemporaryFolder folder;
    std::vector<checkpoint::SafetensorsSpec> specs;
    for (const std::string& name : source.names()) specs.push_back({name, source.find(name)->shape, DType::f32});
    std::vector<float> all;
    for (const std::string& part : parts) {
      const std::vector<float> values = tensor(source, part);
      all.insert(all.end(), values.begin(), values.end());
    }
    all.back() += change;
    Shape shape = source.find(parts.front())->shape;
    shape[0] = static_cast<std::int64_t>(all.size()) / (shape.elements() / shape[0]);
    specs.push_back({second, shape, DType::f32});
    Storage out;
    checkpoint::write_safetensors(folder.path("model"), specs, [&](const checkpoint::SafetensorsSpec& spec) {
      out = Storage(*device_, DType::f32, spec.shape);
      if (spec.name == second) {
        std::copy(all.begin(), all.end(), out.view().data<float>());
      } else {
        source.read(spec.name, checkpoint::full(spec.shape), out);
      }
      return out.view();
    });
    auto weights = open_weights(folder.path("model"));
    Problems problems;
    const auto again = load_model(folder.path("model"), golden(of));
    check_weights(*again, weights, problems);
    return problems.lines();
  };
  struct Case {
    std::string of, second;
    std::vector<std::string> parts;
  };
  const std::string block = "model.layers.0.";
  const std::vector<Case> cases = {
      {"gqa", "layers.0.mlp.up_proj.weight", {block + "mlp.up_proj.weight"}},
      {"gqa", "embed_tokens.weight", {"model.embed_tokens.weight"}},
      {"gqa", "module._orig_mod." + block + "mlp.up_proj.weight", {block + "mlp.up_proj.weight"}},
      {"gqa", block + "_orig_mod.mlp.up_proj.weight", {block + "mlp.up_proj.weight"}},
      {"gqa", "_fsdp_wrapped_module.lm_head.weight", {"lm_head.weight"}},
      {"gqa", "model.lm_head.weight", {"lm_head.weight"}},
      {"gqa", "embed_out.weight", {"lm_head.weight"}},
      {"tied", "module.lm_head.weight", {"model.embed_tokens.weight"}},
      {"gqa",
       block + "self_attn.qkv_proj.weight",
       {block + "self_attn.q_proj.weight", block + "self_attn.k_proj.weight", block + "self_attn.v_proj.weight"}},
      {"gqa", block + "mlp.gate_up_proj.weight", {block + "mlp.gate_proj.weight", block + "mlp.up_proj.weight"}},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(lines(one.of, one.second, one.parts, 0), "") << one.second;
    const std::string line = lines(one.of, one.second, one.parts, 1);
    EXPECT_NE(line.find("two tensors are the same weight of the model, with other values"), std::string::npos) << line;
    EXPECT_NE(line.find("at '" + one.second + "'"), std::string::npos) << line;
    for (const std::string& part : one.parts) EXPECT_NE(line.find("'" + part + "'"), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
  // A part of the weight is no second name of it.
  EXPECT_NE(lines("gqa", block + "mlp.gate_up_proj.weight", {block + "mlp.gate_proj.weight"}, 0), "");
  EXPECT_NE(lines("gqa", "another.weight", {"model.norm.weight"}, 0).find("not part of config.json's model"),
            std::string::npos);
}

// The table has more bytes than are compared at a time.
TEST_F(WeightsTest, ATiedHeadIsComparedToItsEnd) {
  const TemporaryFolder folder;
  std::string config = read_file(golden("tied") + "/config.json");
  const std::string size = "\"vocab_size\": 96";
  ASSERT_NE(config.find(size), std::string::npos);
  config.replace(config.find(size), size.size(), "\"vocab_size\": 9000");
  folder.write("model/config.json", config);
  const auto model = load_model(folder.path("model"));
  for (const float last : {0.0f, 1.0f}) {
    std::vector<checkpoint::SafetensorsSpec> specs;
    for (const HfTensor& tensor : hf_tensors(*model)) specs.push_back({tensor.name, tensor.shape, DType::f32});
    specs.push_back({"lm_head.weight", {9000, 32}, DType::f32});
    Storage out;
    const std::string to = folder.path(cat("out-", last));
    checkpoint::write_safetensors(to, specs, [&](const checkpoint::SafetensorsSpec& spec) {
      out = Storage(*device_, spec.dtype, spec.shape);
      std::fill_n(out.view().data<float>(), spec.shape.elements(), 0.0f);
      if (spec.name == "lm_head.weight") out.view().data<float>()[spec.shape.elements() - 1] = last;
      return out.view();
    });
    auto weights = open_weights(to);
    Problems problems;
    check_weights(*model, weights, problems);
    EXPECT_EQ(problems.empty(), last == 0.0f) << problems.lines();
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
    auto weights = open_weights(folder.path("model"));
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
      "model/model.safetensors: a tensor has an unsupported dtype (expected F32, BF16, F16, F64, or NF4 of "
      "bitsandbytes, got I32) "
      "at model.layers.0.self_attn.k_proj.weight\n"
      "model/model.safetensors: a tensor is not part of config.json's model (got F32 [32]) at "
      "'model.layers.0.self_attn.q_proj.bias'");
}

}  // namespace weights_test
}  // namespace hawser::models
