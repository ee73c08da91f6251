// Initial values that are norms of the rows of another parameter: magnitudes of adapters.
#include <cmath>
#include <numeric>

#include "models/testing/model_files.h"

namespace hawser::models {
namespace row_norms_test {

Model with_magnitudes(const std::string& folder) {
  Problems problems;
  ModelDescription description = read_description(folder, problems);
  for (BlockDescription& block : description.blocks) {
    nn::AttentionConfig& a = block.attention;
    for (const std::string& name : {a.q, a.k, a.v, a.output}) {
      a.adapters.push_back({.target = name, .rank = 2, .magnitude = true});
    }
    for (const std::string& name : {block.mlp.gate, block.mlp.up, block.mlp.down}) {
      block.mlp.adapters.push_back({.target = name, .rank = 2, .magnitude = true});
    }
  }
  return Model(std::move(description));
}

// The norms of the rows that the global tensor `name` has among `flats`.
std::vector<float> norms_of(const Model& model, const std::vector<std::vector<float>>& flats, const std::string& name) {
  std::vector<float> out;
  for (std::size_t f = 0; f < flats.size(); ++f) {
    const nn::Flat& flat = model.flat(static_cast<int>(f));
    for (std::size_t p = 0; p < flat.params().size(); ++p) {
      for (const nn::Segment& segment : flat.params()[p].segments) {
        if (segment.name != name) continue;
        const std::int64_t columns = flat.params()[p].shape[1];
        const float* at = flats[f].data() + flat.offset(static_cast<int>(p)) + segment.row * columns;
        for (std::int64_t row = 0; row < segment.rows; ++row, at += columns) {
          out.push_back(static_cast<float>(std::sqrt(std::inner_product(at, at + columns, at, 0.0))));
        }
      }
    }
  }
  return out;
}

TEST(RowNorms, MagnitudesStartWithTheNormsOfTheirRows) {
  const std::string path = golden("everything");
  const Model model = with_magnitudes(path);
  auto folder = open_weights(path);
  const WeightSources sources(folder);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("compute");
  constexpr std::int64_t kPiece = 100;  // elements of a matrix, of which a row has about 40
  for (const WeightSources* from : {&sources, static_cast<const WeightSources*>(nullptr)}) {
    std::vector<std::vector<float>> flats;
    for (std::size_t f = 0; f < model.flats().size(); ++f) {
      const std::int64_t total = model.flats()[f].used();
      std::vector<float> all;
      const std::int64_t cut = total / 3;  // in the middle of parameters
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, cut}, {cut, total}}) {
        const Storage piece(*device, DType::f32, {end - begin});
        if (from == nullptr) {
          initialise_flat(model, static_cast<int>(f), 11, begin, end - begin, *stream, piece, nullptr, kPiece);
        } else {
          for (const SegmentRange& absent :
               load_flat(model, static_cast<int>(f), *from, begin, end - begin, piece.view())) {
            initialise_flat(model, static_cast<int>(f), 11, begin + absent.at, absent.count, *stream,
                            piece.view().rows(absent.at, absent.count), from, kPiece);
          }
        }
        stream->synchronize();
        const std::vector<float> part = values(piece);
        all.insert(all.end(), part.begin(), part.end());
      }
      flats.push_back(std::move(all));
    }
    int checked = 0;
    for (std::size_t f = 0; f < flats.size(); ++f) {
      const nn::Flat& flat = model.flats()[f];
      for (std::size_t p = 0; p < flat.params().size(); ++p) {
        const nn::Param& param = flat.params()[p];
        if (param.initial.kind != nn::Initial::Kind::row_norms) continue;
        const std::vector<float> expected = norms_of(model, flats, param.initial.rows_of);
        ASSERT_EQ(static_cast<std::int64_t>(expected.size()), param.elements()) << param.name;
        const float* got = flats[f].data() + flat.offset(static_cast<int>(p));
        for (std::size_t i = 0; i < expected.size(); ++i, ++checked) {
          EXPECT_NEAR(got[i], expected[i], 1e-6 * expected[i]) << param.name << " " << i;
        }
      }
    }
    EXPECT_GT(checked, 100);
  }
}

}  // namespace row_norms_test
}  // namespace hawser::models
