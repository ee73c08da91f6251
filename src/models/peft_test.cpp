#include "models/peft.h"

#include <cmath>

#include "checkpoint/boxes.h"
#include "checkpoint/formats/safetensors_writer.h"
#include "models/merge_adapters.h"
#include "models/testing/model_files.h"
#include "nn/granularity.h"

namespace hawser::models {
namespace peft_test {

TEST(Peft, NamesOfItsFiles) {
  const std::string p = kPeftPrefix, q = "model.layers.0.self_attn.q_proj";
  const auto expect = [&](const std::string& file, const std::string& adapter, const std::string& name) {
    EXPECT_EQ(name_of_peft(p + file, adapter).value_or("none"), name) << file;
  };
  for (const std::string inserted : {"", ".default", ".a.b"}) {
    expect(q + ".lora_A" + inserted + ".weight", "", q + ".lora_A.weight");
    expect(q + ".lora_B" + inserted + ".weight", "mine", q + ".lora_B.mine.weight");
    expect(q + ".lora_magnitude_vector" + inserted, "", q + ".lora_magnitude_vector");
    expect(q + ".lora_magnitude_vector" + inserted + ".weight", "mine", q + ".lora_magnitude_vector.mine.weight");
  }
  expect("lm_head.weight", "", "lm_head.weight");
  expect("lm_head.modules_to_save.default.weight", "mine", "lm_head.weight");
  expect("model.embed_tokens.base_layer.weight", "", "model.embed_tokens.weight");
  expect("model.embed_tokens.lora_embedding_A", "", "model.embed_tokens.lora_embedding_A");
  EXPECT_FALSE(name_of_peft(q + ".lora_A.weight", "").has_value());
  for (const std::string adapter : {"", "mine"}) {
    const std::string own = adapter.empty() ? "" : "." + adapter;
    EXPECT_EQ(peft_name(q + ".lora_A" + own + ".weight", adapter), p + q + ".lora_A.weight");
    EXPECT_EQ(peft_name(q + ".lora_magnitude_vector" + (own.empty() ? "" : own + ".weight"), adapter),
              p + q + ".lora_magnitude_vector");
    EXPECT_EQ(peft_name("lm_head.weight", adapter), p + "lm_head.weight");
  }
}

// Two adapters, one with magnitudes, and a trainable head.
std::unique_ptr<Model> adapted(const std::string& folder) {
  Problems problems;
  ModelDescription description = read_description(folder, problems);
  for (BlockDescription& block : description.blocks) {
    block.attention.adapters = {{.target = block.attention.q, .rank = 2, .magnitude = true},
                                {.target = block.attention.q, .rank = 3, .name = "mine"},
                                {.target = block.attention.output, .rank = 3, .name = "mine"}};
  }
  return std::make_unique<Model>(std::move(description), [](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    spec.trainable = param.name.find("lora_") != std::string::npos || param.name == "model.norm.weight";
    return spec;
  });
}

// The values of all flats, with the adapter's tensors of `sources` or, without, initial values.
std::vector<std::vector<float>> load_all(const Model& model, const WeightSources& sources, Device& device) {
  const auto stream = device.make_stream("compute");
  std::vector<std::vector<float>> out;
  for (std::size_t f = 0; f < model.flats().size(); ++f) {
    const std::int64_t total = model.flats()[f].used();
    const Storage all(device, DType::f32, {total});
    for (const SegmentRange& absent : load_flat(model, static_cast<int>(f), sources, 0, total, all)) {
      initialise_flat(model, static_cast<int>(f), 5, absent.at, absent.count, *stream,
                      all.view().rows(absent.at, absent.count), &sources);
    }
    stream->synchronize();
    out.push_back(values(all));
  }
  return out;
}

TEST(Peft, ExportedAdaptersAreReadBesideTheBase) {
  const std::string path = golden("everything");
  const auto model = adapted(path);
  auto base = open_weights(path);
  const auto device = make_cpu_device();
  std::vector<std::vector<float>> all = load_all(*model, base, *device);
  for (std::size_t f = 0; f < all.size(); ++f) {  // as if it had been trained
    if (!model->flats()[f].spec().trainable) continue;
    for (const nn::Param& param : model->flats()[f].params()) {
      const auto p = static_cast<int>(&param - model->flats()[f].params().data());
      float* const at = all[f].data() + model->flats()[f].offset(p);
      for (std::int64_t i = 0; i < param.elements(); ++i) at[i] += 0.25f * static_cast<float>(i % 7);
    }
  }
  const auto source = [&](const std::vector<NamedState>& wanted) {
    for (std::size_t f = 0; f < all.size(); ++f) {
      const auto count = static_cast<std::int64_t>(all[f].size());
      const TensorView view(reinterpret_cast<std::byte*>(all[f].data()), DType::f32, {count}, DeviceKind::cpu);
      for (const NamedState& state :
           nn::value_states(model->flat(static_cast<int>(f)), {}, 0, count, view, "", false)) {
        for (const NamedState& want : wanted) {
          if (want.name != state.name) continue;
          for (const Box& to : want.boxes) {
            for (const Box& from : state.boxes) {
              const auto common = checkpoint::intersect(checkpoint::region_of(from), checkpoint::region_of(to));
              if (!common) continue;
              checkpoint::copy_region(*common, {checkpoint::region_of(from), from.view.raw(), 4},
                                      {checkpoint::region_of(to), to.view.raw(), 4},
                                      checkpoint::cast_run(DType::f32, DType::f32));
            }
          }
        }
      }
    }
  };
  const TemporaryFolder folder;
  for (const std::string adapter : {"", "mine"}) {
    const std::string at = folder.path("adapter" + adapter);
    export_adapter(at, *model, source, {.adapter = adapter, .config = "{}"});
    const std::string in_pieces = folder.path("pieces" + adapter);
    export_adapter(in_pieces, *model, source, {.adapter = adapter, .config = "{}", .piece_elements = 40});
    EXPECT_TRUE(read_file(in_pieces + "/adapter_model.safetensors") == read_file(at + "/adapter_model.safetensors"));
    EXPECT_TRUE(std::filesystem::exists(at + "/adapter_config.json"));
  }
  auto first = open_weights(folder.path("adapter") + "/adapter_model.safetensors"),
       second = open_weights(folder.path("adaptermine") + "/adapter_model.safetensors");
  const auto blocks = static_cast<std::size_t>(model->blocks());
  EXPECT_EQ(first.names().size(), 3 * blocks + 1);
  EXPECT_EQ(second.names().size(), 4 * blocks + 1);
  EXPECT_EQ(first.names().front(), "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  WeightSources sources(base);
  sources.add_adapter(first);
  sources.add_adapter(second, "mine");
  Problems problems;
  check_weights(*model, sources, problems);
  EXPECT_EQ(problems.lines(), "");
  EXPECT_TRUE(load_all(*model, sources, *device) == all);

  // The merged export is the base's model, with other matrices where there are adapters.
  const auto plain = load_model(path);
  export_folder(folder.path("merged"), *plain, merge_adapters(*model, source),
                {.stored = DType::f32, .config = read_file(path + "/config.json")});
  export_folder(folder.path("merged-in-pieces"), *plain, merge_adapters(*model, source),
                {.stored = DType::f32, .config = read_file(path + "/config.json"), .piece_elements = 40});
  EXPECT_TRUE(read_file(folder.path("merged-in-pieces") + "/model.safetensors") ==
              read_file(folder.path("merged") + "/model.safetensors"));
  auto merged = open_weights(folder.path("merged"));
  const auto tensor = [&](checkpoint::SafetensorsFolder& from, const std::string& name) {
    const Storage out(*device, DType::f32, {from.find(name)->shape.elements()});
    from.read(name, checkpoint::full(from.find(name)->shape), out);
    return values(out);
  };
  const std::string p = kPeftPrefix, q = "model.layers.0.self_attn.q_proj", o = "model.layers.0.self_attn.o_proj";
  EXPECT_EQ(merged.names(), base.names());
  EXPECT_EQ(tensor(merged, "model.layers.0.mlp.up_proj.weight"), tensor(base, "model.layers.0.mlp.up_proj.weight"));
  for (const std::string& name : {q, o}) {
    const auto w = tensor(base, name + ".weight"), got = tensor(merged, name + ".weight"),
               a = tensor(second, p + name + ".lora_A.weight"), b = tensor(second, p + name + ".lora_B.weight");
    const std::size_t columns = a.size() / 3, rows = w.size() / columns;
    for (std::size_t r = 0; r < rows; ++r) {
      std::vector<double> decomposed(columns);
      double squares = 0;
      if (name == q) {
        const auto a1 = tensor(first, p + q + ".lora_A.weight"), b1 = tensor(first, p + q + ".lora_B.weight"),
                   m1 = tensor(first, p + q + ".lora_magnitude_vector");
        for (std::size_t c = 0; c < columns; ++c) {
          decomposed[c] = w[r * columns + c];
          for (std::size_t k = 0; k < 2; ++k) decomposed[c] += double{b1[r * 2 + k]} * double{a1[k * columns + c]};
          squares += decomposed[c] * decomposed[c];
        }
        for (std::size_t c = 0; c < columns; ++c) {
          decomposed[c] = double{m1[r]} / std::sqrt(squares) * decomposed[c] - double{w[r * columns + c]};
        }
      }
      for (std::size_t c = 0; c < columns; ++c) {
        double expected = w[r * columns + c] + decomposed[c];
        for (std::size_t k = 0; k < 3; ++k) expected += double{b[r * 3 + k]} * double{a[k * columns + c]};
        ASSERT_NEAR(got[r * columns + c], expected, 1e-5) << name << " row " << r;
      }
    }
  }
  EXPECT_EQ(base.identity(), open_weights(path).identity());
  EXPECT_NE(base.identity(), merged.identity());

  // A second name of a tensor, with the adapter's name or without PEFT's prefix.
  const std::string a = q + ".lora_A.weight",
                    names_of_a[] = {p + q + ".lora_A.default.weight", "module." + p + q + ".lora_A.weight", a};
  for (const std::string& name : names_of_a) {
    for (const float change : {0.0f, 1.0f}) {
      std::vector<checkpoint::SafetensorsSpec> specs;
      for (const std::string& known : first.names()) specs.push_back({known, first.find(known)->shape, DType::f32});
      specs.push_back({name, first.find(p + a)->shape, DType::f32});
      Storage out;
      const TemporaryFolder twice;
      checkpoint::write_safetensors(twice.path("adapter"), specs, [&](const checkpoint::SafetensorsSpec& spec) {
        out = Storage(*device, DType::f32, spec.shape);
        first.read(spec.name == name ? p + a : spec.name, checkpoint::full(spec.shape), out);
        if (spec.name == name) out.view().data<float>()[0] += change;
        return out.view();
      });
      auto of_both = open_weights(twice.path("adapter"));
      WeightSources with(base);
      with.add_adapter(of_both);
      with.add_adapter(second, "mine");
      Problems found;
      check_weights(*model, with, found);
      EXPECT_EQ(found.size(), change == 0 ? 0u : 1u) << name << "\n" << found.lines();
      if (change == 0) continue;
      for (const std::string& both : {name, p + a}) {
        EXPECT_NE(found.lines().find("'" + both + "'"), std::string::npos) << found.lines();
      }
    }
  }

  // A tensor that is no parameter of the model.
  WeightSources wrong(base);
  wrong.add_adapter(second, "other");
  Problems of_wrong;
  check_weights(*model, wrong, of_wrong);
  EXPECT_NE(of_wrong.lines().find("a tensor is not part of adapter_config.json's adapter of this model"),
            std::string::npos);
}

}  // namespace peft_test
}  // namespace hawser::models
