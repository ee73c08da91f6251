// Weights in NF4: what flats of them are, and that a Linear computes with the dequantized values.
#include <gtest/gtest.h>

#include "nn/blocks/linear.h"
#include "nn/flat.h"
#include "nn/nf4_places.h"
#include "nn/testing/context.h"
#include "ops/quantize/quantize_nf4.h"

namespace hawser::nn {
namespace nf4_weights_test {

using testing::get;
using testing::normals;
using testing::TestContext;
using testing::TestSink;
using Vector = std::vector<double>;

Param of_linear(const std::string& name, const Shape& shape) {
  Param param = full_param(name, shape, {}, true);
  param.of_linear = true;
  return param;
}

FlatSpec packed() {
  return {.trainable = false, .stored = {}, .gathered = DType::nf4};
}

TEST(Nf4Weights, ViewsCountBlocks) {
  const auto device = make_cpu_device();
  const Flat flat("w", packed(), {of_linear("a", {3, 64}), of_linear("b", {2, 128})});
  EXPECT_EQ(flat.offset(1), 256);  // a multiple of 128 weights
  EXPECT_EQ(flat.total(3), 768);
  const Storage blocks(*device, DType::nf4, flat_shape(DType::nf4, flat.total(3)));
  EXPECT_EQ(blocks.view().bytes(), 12 * 36);
  EXPECT_EQ(flat.view(blocks, 0).shape(), (Shape{3, 1}));
  EXPECT_EQ(flat.view(blocks, 1).shape(), (Shape{2, 2}));
  EXPECT_EQ(flat.view(blocks, 1).raw() - blocks.view().raw(), 4 * 36);
}

TEST(Nf4Weights, OtherFlatsAreRejected) {
  EXPECT_NO_THROW(Flat("w", packed(), {of_linear("a", {3, 64})}));
  EXPECT_THROW(Flat("w", packed(), {of_linear("a", {4, 96})}), InternalError);             // rows of 1.5 blocks
  EXPECT_THROW(Flat("w", packed(), {full_param("a", {3, 64}, {}, true)}), InternalError);  // no Linear's
  const auto rejected = [](const std::function<void(FlatSpec&)>& change) {
    FlatSpec spec = packed();
    change(spec);
    EXPECT_THROW(Flat("w", spec, {of_linear("a", {3, 64})}), InternalError);
  };
  rejected([](FlatSpec& spec) { spec.trainable = true; });
  rejected([](FlatSpec& spec) { spec.stored = DType::bf16; });
  rejected([](FlatSpec& spec) { spec.transposed = true; });
  rejected([](FlatSpec& spec) { spec.quantized_on_use = true; });
  rejected([](FlatSpec& spec) { spec.scaled = true; });
}

TEST(Nf4Weights, TheRuleLeavesWhatTrains) {
  const auto spec_of = with_nf4_weights(
      [](const Param& param) {
        FlatSpec spec = param.flat;
        spec.trainable = param.name == "trains";
        return spec;
      },
      [](int block) { return block == 1; });
  const UnitId other{UnitId::Kind::block, 0}, own{UnitId::Kind::block, 1}, head{UnitId::Kind::head};
  EXPECT_TRUE(spec_of(of_linear("w", {2, 64}), own).packed());
  EXPECT_FALSE(spec_of(of_linear("w", {2, 64}), other).packed());
  EXPECT_FALSE(spec_of(of_linear("w", {2, 64}), head).packed());
  EXPECT_FALSE(spec_of(of_linear("trains", {2, 64}), own).packed());
  EXPECT_FALSE(spec_of(full_param("norm", {2, 64}, {}, false), own).packed());
}

// The tensor ranks' slices of a down projection whose columns cut blocks.
TEST(Nf4Weights, SlicesHaveWholeBlocks) {
  const auto slice_of = [](std::int64_t columns, std::int64_t total, int ranks, int rank) {
    Param param = sliced_param("down", {4, columns}, 1, {.begin = columns * rank, .total = total}, {}, true);
    EXPECT_EQ(columns * ranks, total);
    return with_whole_blocks(param);
  };
  struct Expected {
    std::int64_t begin, stored, first;
  };
  const auto expect = [&](std::int64_t total, const std::vector<Expected>& ranks) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const auto count = static_cast<int>(ranks.size());
      const Param param = slice_of(total / count, total, count, static_cast<int>(r));
      EXPECT_EQ(param.shape, (Shape{4, ranks[r].stored}));
      EXPECT_EQ(param.segments[0].slice, (Slice{.dim = 1, .begin = ranks[r].begin, .size = ranks[r].stored}));
      EXPECT_EQ(param.read_columns, (IndexRange{ranks[r].first, total / count}));
    }
  };
  expect(320, {{0, 192, 0}, {128, 192, 32}});
  expect(192, {{0, 128, 0}, {64, 128, 32}});
  expect(192, {{0, 128, 0}, {0, 128, 48}, {64, 128, 32}, {64, 128, 80}});
}

// Blocks of q_proj and k_proj of a fused parameter, of a slice and in the order of the file's rows.
TEST(Nf4Weights, PlacesAreThoseOfTheGlobalTensors) {
  Param qkv = fused_param("qkv",
                          {row_segment("q", 0, 2, {2, 128}, {.begin = 2, .total = 300}),
                           row_segment("k", 2, 1, {1, 128}, {.begin = 1, .total = 2})},
                          {3, 128}, {}, true);
  Param down = sliced_param("down", {2, 64}, 1, {.begin = 64, .total = 192}, {}, true);
  Param mixed = of_linear("mixed", {4, 64});
  mixed.segments.edit()[0].file.row_order = {{2, 2}, {0, 2}};
  for (Param* const param : {&qkv, &down}) param->of_linear = true;
  const Flat flat("w", {.trainable = false, .stored = {}, .gathered = DType::nf4_double}, {qkv, down, mixed});
  const Nf4Places places(flat);
  ASSERT_EQ(places.tensors().size(), 4u);
  EXPECT_EQ(places.tensors()[0].groups(), 3);  // 600 blocks
  EXPECT_EQ(places.groups(), 6);
  // Elements 384 to 639 are down and the gap after it.
  const std::vector<std::int32_t> expected = {4,        5,        6,        7,        768 + 2,  768 + 3, 1024 + 1,
                                              1024 + 4, 1280 + 2, 1280 + 3, 1280 + 0, 1280 + 1, -1,      -1};
  EXPECT_EQ(places.of_blocks(0, 14 * 64), expected);
  EXPECT_EQ(places.of_blocks(128, 384), std::vector<std::int32_t>(expected.begin() + 2, expected.begin() + 8));
  EXPECT_EQ(places.of_rows(), (std::vector<std::int32_t>{4, 6, 770, 1025, 1028, 1282, 1283, 1280, 1281}));
  EXPECT_EQ(rows_before(flat, 2), 5);
}

constexpr std::int64_t kRows = 5, kIn = 128, kOut = 64, kRank = 3;

struct Output {
  Vector y, dx, da, db;
};

// W in NF4, or the values of that in the compute dtype.
Output run(DType dtype, bool in_nf4, const std::vector<Adapter>& adapters) {
  const auto device = make_cpu_device({.threads = 1});
  TestContext ctx(*device, dtype);
  const std::vector<Param> params = {of_linear("w", {kOut, kIn}), full_param("a", {kRank, kIn}, {}, true),
                                     full_param("b", {kOut, kRank}, {}, true), full_param("m", {kOut}, {}, true)};
  ctx.rows_ = {kRows, kRows};
  ctx.trainable_ = TrainableParams({false, true, true, true});
  const auto make = [&](const Shape& shape, const char* name) {
    return ctx.make(dtype, shape, normals(name, shape.elements()));
  };
  const TensorView w = make({kOut, kIn}, "w"), q = ctx.make(DType::nf4, {kOut, kIn / kNf4Block});
  ops::quantize_nf4(ctx.compute(), {.x = w, .q = q});
  ops::dequantize_nf4(ctx.compute(), {.q = q, .y = w});
  ctx.finish();
  ctx.weights_ = {in_nf4 ? q : w, make(params[1].shape, "a"), make(params[2].shape, "b"), make({kOut}, "m")};
  const TensorView x = make({kRows, kIn}, "x"), dy = make({kRows, kOut}, "dy"), y = ctx.make(dtype, {kRows, kOut}),
                   dx = ctx.make(dtype, {kRows, kIn});
  const Linear linear{.site = Site::up_projection, .weight = 0, .adapters = adapters};
  TestSink sink(ctx, params);
  sink.reject(0);
  const AdapterTensors tensors{
      linear.adapter_ranks() > 0 ? ctx.make(dtype, {linear.adapter_ranks(), kRows}) : TensorView(),
      linear.make_inner_gradient(ctx)};
  linear.forward(ctx, x, y, tensors.inner);
  linear.adapter_gradient(ctx, dy, tensors.inner_gradient);
  linear.input_gradient(ctx, dy, dx, tensors.inner_gradient);
  linear.weight_gradient(ctx, dy, x, sink, tensors);
  ctx.finish();
  return {get(y), get(dx), get(sink.views()[1]), get(sink.views()[2])};
}

TEST(Nf4Weights, ALinearHasTheBitsOfTheDequantizedWeight) {
  const Adapter adapter{.a = 1, .b = 2, .rank = kRank, .outputs = kOut, .scale = 0.5};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Output packed = run(dtype, true, {adapter}), plain = run(dtype, false, {adapter});
    EXPECT_EQ(packed.y, plain.y);
    EXPECT_EQ(packed.dx, plain.dx);
    EXPECT_EQ(packed.da, plain.da);
    EXPECT_EQ(packed.db, plain.db);
  }
}

// DoRA reads the rows of W.
TEST(Nf4Weights, AMagnitudeIsRejected) {
  const Adapter dora{.a = 1, .b = 2, .magnitude = 3, .rank = kRank, .outputs = kOut};
  EXPECT_NO_THROW(run(DType::f32, false, {dora}));
  EXPECT_THROW(run(DType::f32, true, {dora}), InternalError);
}

}  // namespace nf4_weights_test
}  // namespace hawser::nn
