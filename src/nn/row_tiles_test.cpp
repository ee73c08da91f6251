// Layers in tiles of rows against whole layers.
#include <gtest/gtest.h>

#include "nn/row_tiles.h"
#include "nn/testing/layer_cases.h"

namespace hawser::nn {
namespace row_tiles_test {

using testing::Case;
using testing::cases;
using testing::distance;
using testing::LayerResult;
using testing::LayerRun;
using testing::prepare;
using testing::run;
using testing::TestContext;
using testing::TestSink;
using testing::Vector;

void expect_equal(const Case& c, const LayerResult& got, const LayerResult& whole, double max) {
  EXPECT_LT(distance(got.y, whole.y), max) << c.name << ": y";
  EXPECT_LT(distance(got.dx, whole.dx), max) << c.name << ": dx";
  for (std::size_t p = 0; p < whole.gradients.size(); ++p) {
    EXPECT_LT(distance(got.gradients[p], whole.gradients[p]), max) << c.name << ": " << c.layer->params()[p].name;
  }
}

TEST(RowTiles, EqualTheWholeLayer) {
  int in = 0;
  for (const Case& c : cases()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const double max = dtype == DType::f32 ? 1e-6 : 1e-2;
      const LayerResult whole = run(c, dtype, {});
      for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{3}, c.documents.rows(), std::int64_t{1000}}) {
        for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::block}) {
          expect_equal(c, run(c, dtype, {.checkpointing = checkpointing, .tile_rows = rows}), whole, max);
        }
      }
    }
    in += in_tiles(*c.layer, {.tile_rows = 3}) ? 1 : 0;
  }
  EXPECT_GT(in, 2);  // MLPs; attention runs whole
}

TEST(RowTiles, AddToGradients) {
  for (const Case& c : cases()) {
    LayerResult whole = run(c, DType::f32, {});
    for (Vector& gradient : whole.gradients) {
      for (double& value : gradient) value += 2.0;
    }
    expect_equal(c, run(c, DType::f32, {.tile_rows = 2}, true, 2.0), whole, 1e-6);
  }
}

// A gradient in bf16 is the sum over the tiles in float32, rounded once.
TEST(RowTiles, SumInFloat32) {
  for (const Case& c : cases()) {
    if (!in_tiles(*c.layer, {.tile_rows = 1})) continue;
    for (const bool accumulate : {false, true}) {
      const auto gradients = [&](DType dtype) {
        const auto device = make_cpu_device({.threads = 1});
        TestContext ctx(*device, DType::bf16);
        prepare(ctx, c);
        TestSink sink(ctx, c.layer->params(), accumulate, 0.5, dtype);
        LayerRun layer_run(ctx, *c.layer, c.documents.rows(), c.width, {.tile_rows = 1});
        layer_run.run(sink);
        for (const int asked : sink.asked()) EXPECT_EQ(asked, 1) << c.name;
        if (dtype == DType::bf16) return layer_run.result(sink).gradients;
        std::vector<Vector> rounded;
        for (const TensorView& exact : sink.views()) {
          rounded.push_back(testing::get(ctx.make(DType::bf16, exact.shape(), testing::get(exact))));
        }
        return rounded;
      };
      EXPECT_EQ(gradients(DType::bf16), gradients(DType::f32)) << c.name;
    }
  }
}

// Nothing is in the arena from forward to backward but the layer's input.
TEST(RowTiles, SaveNothing) {
  for (const Case& c : cases()) {
    const SavePolicy policy{.tile_rows = 2};
    if (!in_tiles(*c.layer, policy)) continue;
    EXPECT_FALSE(recomputes(*c.layer, policy, {})) << c.name;
    for (const SavedSpec& spec : saved_specs_of(*c.layer, {8, 8}, DType::f32, policy, {}, {})) {
      EXPECT_EQ(spec.shape.rank(), 0) << c.name << ": " << spec.name;
    }
  }
}

}  // namespace row_tiles_test
}  // namespace hawser::nn
