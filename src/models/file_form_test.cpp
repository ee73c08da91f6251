// Weights whose files have another form than the model: transposed, with rows in another order, stacked.
#include "models/file_form.h"

#include <numeric>

#include "checkpoint/formats/safetensors_writer.h"
#include "models/testing/weights_fixture.h"

namespace hawser::models {
namespace file_form_test {

using FileFormTest = WeightsTest;

// Writes a tensor in the form of its file, reads regions of it, and writes it again.
TEST_F(FileFormTest, FileFormsAreConvertedThereAndBack) {
  const Shape shape{12, 5};
  std::vector<float> model(60);
  for (std::size_t i = 0; i < model.size(); ++i) model[i] = static_cast<float>(i);
  // The rows of three heads of two rows: query, key and value of head 0, of head 1...
  std::vector<IndexRange> by_head;
  for (const std::int64_t head : {0, 1}) {
    for (const std::int64_t kind : {0, 1, 2}) by_head.push_back({(kind * 2 + head) * 2, 2});
  }
  for (const bool transposed : {false, true}) {
    for (const bool permuted : {false, true}) {
      SCOPED_TRACE(cat(transposed, permuted));
      nn::Segment segment{.name = "w", .row = 0, .rows = 12};
      segment.file = {transposed, permuted ? by_head : std::vector<IndexRange>()};
      const nn::Param param = nn::fused_param("w", {segment}, shape, {}, true);
      std::vector<std::int64_t> rows;  // of the model, in the file's order
      for (const auto& run : by_head) rows.insert(rows.end(), {run.begin, run.begin + 1});
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
        const std::int64_t piece_elements = round % 2 == 0 ? 1000 : 1 + round;
        read_region(opened, "w", hf.file, region, out, piece_elements);
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
  std::vector<nn::SavedSpec> saved_specs(const nn::RowCounts&, DType, const nn::SavePolicy&, const nn::TrainableParams&,
                                         const nn::Seams&) const override {
    return {};
  }
  void forward(nn::LayerContext&, const TensorView&, const TensorView&, const TensorView&,
               const nn::Saved&) const override {}
  void recompute(nn::LayerContext&, const nn::Saved&, const TensorView&, const nn::SavePolicy&) const override {}
  void backward(nn::LayerContext&, const TensorView&, const TensorView&, const TensorView&, const nn::Saved&,
                nn::GradientSink&, const nn::SavePolicy&) const override {}
  void backward_weight(nn::LayerContext&, const TensorView&, const nn::Saved&, nn::GradientSink&) const override {}
  double flops(const nn::RowCounts&, double) const override { return 0; }

 private:
  std::vector<nn::Param> params_;
};

// Experts' weights in one tensor of the file [E, out, in], in a parameter with their rows one after another: all
// experts, some of them, or a part of the rows of each.
TEST_F(FileFormTest, StackedTensorsAreRowsOfAParameter) {
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
  const auto read = [&](const std::optional<nn::Slice>& slice) {
    nn::Segment segment{.name = "experts", .global = {kExperts, kRows, kColumns}, .slice = slice};
    segment.rows = nn::segment_shape(segment).elements() / kColumns;
    const nn::Param param =
        nn::fused_param("experts", {segment}, {segment.rows, kColumns}, {nn::Initial::Kind::normal, 1.0}, true);
    Problems problems;
    const Model model(read_description(golden("tied"), problems), nn::common_domain, {},
                      [&](std::unique_ptr<nn::Layer> layer, int number) -> std::unique_ptr<nn::Layer> {
                        if (number != 1) return layer;
                        return std::make_unique<WithParam>(*layer, param);
                      });
    check_weights(model, sources, problems);
    EXPECT_EQ(problems.lines(), "");
    const nn::ParamIndex place = model.layer_params(1).back();
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
    const auto low = read(nn::Slice{dim, 0, half}), high = read(nn::Slice{dim, half, half});
    for (std::size_t e = 0; e < all.size(); ++e) {
      const bool is_low = low.first[e] >= 0;
      EXPECT_NE(is_low, high.first[e] >= 0) << e;
      EXPECT_EQ((is_low ? low : high).first[e], all[e]);
      EXPECT_EQ((is_low ? low : high).second[e], initial[e]);
    }
  }
}

}  // namespace file_form_test
}  // namespace hawser::models
