#include "ops/embedding/embedding.h"

#include "ops/case_support.h"

namespace hawser::ops {
namespace {

using namespace testing;

TEST(Embedding, AgreesWithFloat64) {
  const Values ids{3, 0, 3, 10, 3, 7};
  const std::int64_t tokens = 6, vocabulary = 11;
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const std::int64_t channels : {5, 150}) {
      const auto table = random_values(vocabulary * channels, 1, act), dy = random_values(tokens * channels, 2, act);
      const auto old = random_values(vocabulary * channels, 3);
      Values y;
      for (const double id : ids) {
        const auto row = table.begin() + static_cast<std::ptrdiff_t>(id) * channels;
        y.insert(y.end(), row, row + channels);
      }
      check_case({"embedding_forward",
                  [&](World& world) -> std::vector<Values> {
                    const EmbeddingForward args{.ids = world.in(DType::i32, {tokens}, ids),
                                                .table = world.in(act, {vocabulary, channels}, table),
                                                .y = world.out(act, {tokens, channels}, 3)};
                    embedding_forward(world.stream(), args);
                    return {world.values(args.y)};
                  },
                  {y},
                  0});
      for (const bool accumulate : {false, true}) {
        Values expected = accumulate ? old : Values(old.size());
        for (std::size_t t = 0; t < ids.size(); ++t) {
          for (std::int64_t c = 0; c < channels; ++c) {
            expected[static_cast<std::size_t>(ids[t]) * channels + c] += dy[t * channels + c];
          }
        }
        check_case({"embedding_backward",
                    [&](World& world) -> std::vector<Values> {
                      const Shape shape{vocabulary, channels};
                      const EmbeddingBackward args{
                          .ids = world.in(DType::i32, {tokens}, ids),
                          .dy = world.in(act, {tokens, channels}, dy, 2),
                          .dtable = accumulate ? world.in_out(DType::f32, shape, old) : world.out(DType::f32, shape),
                          .accumulate = accumulate};
                      embedding_backward(world.stream(), args);
                      return {world.values(args.dtable)};
                    },
                    {expected},
                    1e-6});
      }
    }
  }
}

TEST(Embedding, RefusesBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView ids = world.in(DType::i32, {2}, Values(2)), table = world.in(DType::f32, {4, 3}, Values(12));
  Stream& s = world.stream();
  expect_refused(
      [&] {
        embedding_forward(s, {.ids = ids, .table = table, .y = world.out(DType::f32, {3, 3})});
      },
      "y has shape");
  expect_refused([&] { embedding_forward(s, {.ids = ids, .table = table, .y = table.rows(0, 2)}); }, "share memory");
  expect_refused(
      [&] {
        embedding_backward(s, {.ids = ids, .dy = table.rows(0, 2), .dtable = world.out(DType::bf16, {4, 3})});
      },
      "dtable is bfloat16");
  for (const double bad : {-1.0, 4.0}) {
    World other(DeviceKind::cpu, 1);
    embedding_forward(other.stream(), {.ids = other.in(DType::i32, {2}, {0, bad}),
                                       .table = other.in(DType::f32, {4, 3}, Values(12)),
                                       .y = other.out(DType::f32, {2, 3})});
    EXPECT_THROW(other.stream().synchronize(), InternalError);
  }
}

}  // namespace
}  // namespace hawser::ops
