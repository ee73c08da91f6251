#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/philox.h"
#include "checkpoint/formats/safetensors_writer.h"
#include "models/file_form.h"
#include "models/testing/model_files.h"
#include "nn/extent.h"

namespace hawser::models {
namespace {

// The boxes of a value for each element.
std::vector<NamedState> states_of(const Model& model, int flat, std::int64_t begin, std::int64_t count,
                                  const TensorView& values, const std::string& prefix = "") {
  return nn::extent_states(model.flat(flat), {}, begin, count, values, prefix, false);
}

class WeightsTest : public ::testing::Test {
 protected:
  Storage buffer(std::int64_t count, DType dtype = DType::f32) const { return Storage(*device_, dtype, {count}); }

  std::vector<float> tensor(checkpoint::SafetensorsFolder& folder, const std::string& name) const {
    const checkpoint::TensorInfo* info = folder.find(name);
    if (info == nullptr) return ADD_FAILURE() << name, std::vector<float>{};
    const Storage out = buffer(info->shape.elements());
    folder.read(name, checkpoint::full(info->shape), out);
    return values(out);
  }

  // The expected values of a flat, built tensor by tensor.
  std::vector<float> expected_flat(const nn::Flat& flat, std::int64_t total,
                                   checkpoint::SafetensorsFolder& folder) const {
    std::vector<float> all(static_cast<std::size_t>(total), 0.0f);
    for (std::size_t p = 0; p < flat.params().size(); ++p) {
      auto to = all.begin() + flat.offset(static_cast<int>(p));
      for (const nn::Segment& segment : flat.params()[p].segments) {
        const std::vector<float> part = tensor(folder, segment.name);
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
    for (const nn::Flat::Gap& gap : flat.gaps(total)) {
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
    const auto cut = [&](std::int64_t& extent, nn::PartOf& where) {
      where = {.begin = part * (extent / 2), .total = extent};
      extent = part == 0 ? extent / 2 : extent - extent / 2;
    };
    cut(block.mlp.inner, block.mlp.inner_part);
    cut(block.attention.heads, block.attention.heads_part);
    cut(block.attention.kv_heads, block.attention.kv_heads_part);
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

// Writes a tensor in the form of its file, reads regions of it, and writes it again.
TEST_F(WeightsTest, FileFormsAreConvertedThereAndBack) {
  const Shape shape{12, 5};
  std::vector<float> model(60);
  for (std::size_t i = 0; i < model.size(); ++i) model[i] = static_cast<float>(i);
  // The rows of three heads of two rows: query, key and value of head 0, of head 1...
  std::vector<nn::FileForm::Rows> by_head;
  for (const std::int64_t head : {0, 1}) {
    for (const std::int64_t kind : {0, 1, 2}) by_head.push_back({(kind * 2 + head) * 2, 2});
  }
  for (const bool transposed : {false, true}) {
    for (const bool permuted : {false, true}) {
      SCOPED_TRACE(cat(transposed, permuted));
      nn::Segment segment{.name = "w", .row = 0, .rows = 12};
      segment.file = {transposed, permuted ? by_head : std::vector<nn::FileForm::Rows>()};
      const nn::Param param = nn::fused_param("w", {segment}, shape, {}, true);
      std::vector<std::int64_t> rows;  // of the model, in the file's order
      for (const auto& run : by_head) rows.insert(rows.end(), {run.row, run.row + 1});
      if (!permuted) std::iota(rows.begin(), rows.end(), 0);
      std::vector<float> file;
      for (std::int64_t i = 0; i < (transposed ? 5 : 12); ++i) {
        for (std::int64_t j = 0; j < (transposed ? 12 : 5); ++j) {
          const std::int64_t row = rows[static_cast<std::size_t>(transposed ? j : i)];
          file.push_back(model[static_cast<std::size_t>(row * 5 + (transposed ? i : j))]);
        }
      }
      const HfTensor hf{
          .name = "w", .shape = shape, .file = param.segments[0].file, .file_shape = nn::file_shape(param.segments[0])};
      EXPECT_EQ(hf.file_shape, transposed ? Shape({5, 12}) : shape);
      const StateSource source = [&](const std::vector<NamedState>& wanted) {
        for (const Box& box : wanted.at(0).boxes) {
          std::int64_t at = 0;
          checkpoint::for_each_run(shape, checkpoint::region_of(box), [&](std::int64_t begin, std::int64_t run) {
            for (std::int64_t e = begin; e < begin + run; ++e) {
              box.view.data<float>()[at++] = model[static_cast<std::size_t>(e)];
            }
          });
        }
      };
      const TemporaryFolder folder;
      checkpoint::SafetensorsWriter writer(folder.path("out"), {{"w", hf.file_shape, DType::f32}}, {});
      std::vector<float> written;
      for (std::int64_t first = 0; first < hf.file_shape[0]; first += 2) {
        const std::int64_t count = std::min<std::int64_t>(2, hf.file_shape[0] - first);
        const Storage piece = buffer(count * hf.file_shape[1]);
        read_file_rows(source, hf, first, count, piece);
        writer.append(piece);
        const std::vector<float> part = values(piece);
        written.insert(written.end(), part.begin(), part.end());
      }
      writer.finish();
      EXPECT_EQ(written, file);
      auto opened = open_weights(folder.path("out"));
      for (int round = 0; round < 20; ++round) {
        const auto pick = [&](std::int64_t n) {
          const std::int64_t begin = static_cast<std::int64_t>(random_()) % n;
          return std::pair{begin, 1 + static_cast<std::int64_t>(random_()) % (n - begin)};
        };
        const auto [row, row_count] = pick(12);
        const auto [column, column_count] = pick(5);
        const checkpoint::Region region{{row, column}, {row_count, column_count}};
        const Storage out = buffer(region.elements());
        read_region(opened, "w", hf.file, region, out);
        std::vector<float> expected;
        checkpoint::for_each_run(shape, region, [&](std::int64_t begin, std::int64_t run) {
          expected.insert(expected.end(), model.begin() + begin, model.begin() + begin + run);
        });
        EXPECT_EQ(values(out), expected) << region.text();
      }
      if (!permuted) continue;
      nn::FileForm wrong = hf.file;
      std::swap(wrong.row_order[0], wrong.row_order[1]);
      const Storage out = buffer(60);
      read_region(opened, "w", wrong, checkpoint::full(shape), out);
      EXPECT_NE(values(out), model);
      wrong.row_order[0] = wrong.row_order[1];
      segment.file = wrong;
      EXPECT_THROW(nn::fused_param("w", {segment}, shape, {}, true), InternalError) << "a row twice";
    }
  }
}

// A layer with one more parameter; it never runs.
class WithParam : public nn::Layer {
 public:
  WithParam(const nn::Layer& layer, const nn::Param& param) : params_(layer.params()) { params_.push_back(param); }
  const std::vector<nn::Param>& params() const override { return params_; }
  std::vector<nn::SavedSpec> saved_specs(std::int64_t, DType, const nn::SavePolicy&,
                                         const nn::TrainableParams&) const override {
    return {};
  }
  void forward(nn::LayerContext&, const TensorView&, const TensorView&, const TensorView&,
               const nn::Saved&) const override {}
  void recompute(nn::LayerContext&, const nn::Saved&, const nn::SavePolicy&) const override {}
  void backward(nn::LayerContext&, const TensorView&, const TensorView&, const TensorView&, const nn::Saved&,
                nn::GradientSink&, const nn::SavePolicy&) const override {}
  void backward_weight(nn::LayerContext&, const TensorView&, const nn::Saved&, nn::GradientSink&) const override {}
  double flops(std::int64_t, double) const override { return 0; }

 private:
  std::vector<nn::Param> params_;
};

// Experts' weights in one tensor of the file [E, out, in], in a parameter with their rows one after another: all
// experts, some of them, or a part of the rows of each.
TEST_F(WeightsTest, StackedTensorsAreRowsOfAParameter) {
  constexpr std::int64_t kExperts = 4, kRows = 6, kColumns = 5, kAll = kExperts * kRows * kColumns;
  const TemporaryFolder folder;
  Storage stacked;
  checkpoint::write_safetensors(folder.path("w"), {{"experts", {kExperts, kRows, kColumns}, DType::f32}},
                                [&](const checkpoint::SafetensorsSpec& spec) {
                                  stacked = buffer(spec.shape.elements());
                                  std::iota(stacked.view().data<float>(), stacked.view().data<float>() + kAll, 0.0f);
                                  return stacked.view().reshape(spec.shape);
                                });
  auto weights = open_weights(folder.path("w")), base = open_weights(golden("tied"));
  WeightSources sources(base);
  sources.add(weights);
  const auto stream = device_->make_stream("compute");
  // The elements of the global tensor that the parameter of a slice has, and the initial values of these.
  const auto read = [&](const nn::Slice& slice) {
    nn::Segment segment{.name = "experts", .global = {kExperts, kRows, kColumns}, .slice = slice};
    segment.rows = nn::segment_shape(segment).elements() / kColumns;
    const nn::Param param =
        nn::fused_param("experts", {segment}, {segment.rows, kColumns}, {nn::Initial::Kind::normal, 1.0}, true);
    Problems problems;
    const Model model(read_description(golden("tied"), problems), nn::common_domain,
                      [&](std::unique_ptr<nn::Layer> layer, int number) -> std::unique_ptr<nn::Layer> {
                        if (number != 1) return layer;
                        return std::make_unique<WithParam>(*layer, param);
                      });
    check_weights(model, sources, problems);
    EXPECT_EQ(problems.lines(), "");
    const nn::ParamPlace place = model.layer_params(1).back();
    const std::int64_t total = model.flat(place.flat).total(1), count = param.elements();
    const Storage loaded = buffer(total), drawn = buffer(total);
    load_flat(model, place.flat, sources, 0, total, loaded);
    initialise_flat(model, place.flat, 3, 0, total, *stream, drawn);
    stream->synchronize();
    std::vector<float> elements(kAll, -1.0f), initial(kAll, 0.0f);
    for (const NamedState& state : states_of(model, place.flat, 0, total, loaded)) {
      if (state.name != "experts") continue;
      EXPECT_TRUE(state.shape == Shape({kExperts, kRows, kColumns}));
      const float* const first = drawn.view().data<float>();
      const float* const own = loaded.view().data<float>();
      for (const Box& box : state.boxes) {
        const float* at = box.view.data<float>();
        checkpoint::for_each_run(state.shape, checkpoint::region_of(box), [&](std::int64_t begin, std::int64_t run) {
          for (std::int64_t e = begin; e < begin + run; ++e, ++at) {
            elements[static_cast<std::size_t>(e)] = *at;
            initial[static_cast<std::size_t>(e)] = first[at - own];
          }
        });
      }
    }
    EXPECT_EQ(std::count_if(elements.begin(), elements.end(), [](float x) { return x >= 0; }), count);
    return std::pair(elements, initial);
  };
  const auto [all, initial] = read({});
  EXPECT_EQ(all, values(stacked));
  for (const int dim : {0, 1}) {
    const std::int64_t half = dim == 0 ? kExperts / 2 : kRows / 2;
    const auto low = read({dim, 0, half}), high = read({dim, half, half});
    for (std::size_t e = 0; e < all.size(); ++e) {
      const bool is_low = low.first[e] >= 0;
      EXPECT_NE(is_low, high.first[e] >= 0) << e;
      EXPECT_EQ((is_low ? low : high).first[e], all[e]);
      EXPECT_EQ((is_low ? low : high).second[e], initial[e]);
    }
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
      for (const nn::Flat::Gap& part : gap_pieces(model->flats()[f], cuts[i], count)) gap += part.count;
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
    for (const SegmentPiece& piece : load_flat(model, f, sources, 0, total, values)) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(piece.param)];
      absent.insert(param.segments[static_cast<std::size_t>(piece.segment)].name);
      EXPECT_EQ(piece.count, param.elements());
      EXPECT_EQ(piece.at, flat.offset(piece.param));
    }
    load_flat(model, f, base, 0, total, of_base);
    for (const SegmentPiece& piece : segment_pieces(flat, 0, total)) {
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
