#include "ops/embedding/embedding.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace embedding_cases {

using namespace testing;

TEST(Embedding, AgreesWithFloat64) {
  const Values ids{3, 0, 3, 10, 3, 7};
  const std::int64_t tokens = 6, vocabulary = 11;
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const std::int64_t channels : {5, 150, 544}) {
      const std::int64_t pad = channels % 16 == 0 ? 8 : 1;
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
                                                .y = world.out(act, {tokens, channels}, 3 * pad)};
                    embedding_forward(world.stream(), args);
                    return {world.values(args.y)};
                  },
                  {y},
                  0});
      for (const auto& [out, accumulate] :
           {std::pair{DType::f32, false}, {DType::f32, true}, {DType::bf16, false}, {DType::bf16, true}}) {
        Values before = old;
        for (double& x : before) x = rounded(x, out);
        Values expected = accumulate ? before : Values(old.size());
        for (std::size_t t = 0; t < ids.size(); ++t) {
          for (std::int64_t c = 0; c < channels; ++c) {
            expected[static_cast<std::size_t>(ids[t]) * channels + c] += dy[t * channels + c];
          }
        }
        check_case({cat("embedding_backward into ", to_string(out)),
                    [&, out = out, accumulate = accumulate](World& world) -> std::vector<Values> {
                      const Shape shape{vocabulary, channels};
                      const EmbeddingBackward args{
                          .ids = world.in(DType::i32, {tokens}, ids),
                          .dy = world.in(act, {tokens, channels}, dy, 2 * pad),
                          .dtable = accumulate ? world.in_out(out, shape, before) : world.out(out, shape),
                          .accumulate = accumulate};
                      embedding_backward(world.stream(), args);
                      return {world.values(args.dtable)};
                    },
                    {expected},
                    out == DType::f32 ? 1e-6 : kBf16Tolerance});
      }
    }
  }
}

// Gemma's factor of the embeddings: y rounded once, and the gradient scaled.
TEST(Embedding, ScalesEmbeddingsAndGradients) {
  const Values ids{3, 0, 3, 10, 3, 7};
  const std::int64_t tokens = 6, vocabulary = 11;
  constexpr double kScale = 6.75;  // exact in float32
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const std::int64_t channels : {5, 150, 544}) {
      const std::int64_t pad = channels % 16 == 0 ? 8 : 1;
      const auto table = random_values(vocabulary * channels, 1, act), dy = random_values(tokens * channels, 2, act);
      const auto old = random_values(vocabulary * channels, 3);
      Values y;
      for (const double id : ids) {
        for (std::int64_t c = 0; c < channels; ++c) {
          y.push_back(rounded(kScale * table[static_cast<std::size_t>(id) * channels + c], act));
        }
      }
      check_case({"embedding_forward, scaled",
                  [&](World& world) -> std::vector<Values> {
                    const EmbeddingForward args{.ids = world.in(DType::i32, {tokens}, ids),
                                                .table = world.in(act, {vocabulary, channels}, table),
                                                .y = world.out(act, {tokens, channels}, 3 * pad),
                                                .scale = kScale};
                    embedding_forward(world.stream(), args);
                    return {world.values(args.y)};
                  },
                  {y},
                  0});
      for (const DType out : {DType::f32, DType::bf16}) {
        Values before = old;
        for (double& x : before) x = rounded(x, out);
        Values expected = before;
        for (std::size_t t = 0; t < ids.size(); ++t) {
          for (std::int64_t c = 0; c < channels; ++c) {
            expected[static_cast<std::size_t>(ids[t]) * channels + c] += kScale * dy[t * channels + c];
          }
        }
        check_case({cat("embedding_backward, scaled, into ", to_string(out)),
                    [&](World& world) -> std::vector<Values> {
                      const EmbeddingBackward args{.ids = world.in(DType::i32, {tokens}, ids),
                                                   .dy = world.in(act, {tokens, channels}, dy, 2 * pad),
                                                   .dtable = world.in_out(out, {vocabulary, channels}, before),
                                                   .accumulate = true,
                                                   .scale = kScale};
                      embedding_backward(world.stream(), args);
                      return {world.values(args.dtable)};
                    },
                    {expected},
                    out == DType::f32 ? 1e-6 : kBf16Tolerance});
      }
    }
  }
}

// Runs of equal ids longer than any piece of work and across piece boundaries, and ids that occur once.
TEST(Embedding, SumsManyTokensOfOneId) {
  const std::int64_t tokens = 700, vocabulary = 50, channels = 8;
  const RandomStream random(5, "ids");
  for (const std::int64_t share : {2, 100}) {  // one token in `share` has an id other than 7
    Values ids;
    for (std::int64_t t = 0; t < tokens; ++t) {
      ids.push_back(random.below(static_cast<std::uint64_t>(share), 2 * t) == 0 ? random.below(50, 2 * t + 1) : 7);
    }
    const auto dy = random_values(tokens * channels, 2);
    Values expected(static_cast<std::size_t>(vocabulary * channels));
    for (std::size_t i = 0; i < dy.size(); ++i) {
      expected[static_cast<std::size_t>(ids[i / 8]) * 8 + i % 8] += dy[i];
    }
    check_case({cat("embedding_backward of one id, but for one in ", share),
                [&](World& world) -> std::vector<Values> {
                  const EmbeddingBackward args{.ids = world.in(DType::i32, {tokens}, ids),
                                               .dy = world.in(DType::f32, {tokens, channels}, dy),
                                               .dtable = world.out(DType::f32, {vocabulary, channels})};
                  embedding_backward(world.stream(), args);
                  return {world.values(args.dtable)};
                },
                {expected},
                2e-6});
  }
}

// Rows [3, 8) of a table of 11: other ids have zeros, and no gradient.
TEST(Embedding, PartOfATable) {
  constexpr std::int64_t kFirst = 3, kRows = 5, kTotal = 11, kChannels = 12;
  const Values ids = {0, 3, 7, 8, 10, 3, 5, 2}, part = random_values(kRows * kChannels, 1, DType::f32),
               dy = random_values(static_cast<std::int64_t>(ids.size()) * kChannels, 2, DType::f32);
  const auto tokens = static_cast<std::int64_t>(ids.size());
  for (const double scale : {1.0, 2.0}) {
    Values y(ids.size() * kChannels), dtable(kRows * kChannels);
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const auto row = static_cast<std::int64_t>(ids[t]) - kFirst;
      if (row < 0 || row >= kRows) continue;
      for (std::size_t c = 0; c < kChannels; ++c) {
        const std::size_t at = static_cast<std::size_t>(row) * kChannels + c;
        y[t * kChannels + c] = scale * part[at];
        dtable[at] += scale * dy[t * kChannels + c];
      }
    }
    check_case({cat("embedding_forward of part of a table, scale ", scale),
                [&](World& world) -> std::vector<Values> {
                  const EmbeddingForward args{.ids = world.in(DType::i32, {tokens}, ids),
                                              .table = world.in(DType::f32, {kRows, kChannels}, part),
                                              .y = world.out(DType::f32, {tokens, kChannels}),
                                              .scale = scale,
                                              .first_row = kFirst,
                                              .total_rows = kTotal};
                  embedding_forward(world.stream(), args);
                  return {world.values(args.y)};
                },
                {y},
                1e-7});
    for (const DType out : {DType::f32, DType::bf16}) {
      check_case({cat("embedding_backward of part of a table into ", to_string(out), ", scale ", scale),
                  [&](World& world) -> std::vector<Values> {
                    const EmbeddingBackward args{.ids = world.in(DType::i32, {tokens}, ids),
                                                 .dy = world.in(DType::f32, {tokens, kChannels}, dy),
                                                 .dtable = world.out(out, {kRows, kChannels}),
                                                 .scale = scale,
                                                 .first_row = kFirst,
                                                 .total_rows = kTotal};
                    embedding_backward(world.stream(), args);
                    return {world.values(args.dtable)};
                  },
                  {dtable},
                  out == DType::bf16 ? kBf16Tolerance : 2e-6});
    }
  }
  World world(DeviceKind::cpu, 1);
  expect_rejected(
      [&] {
        embedding_forward(world.stream(), {.ids = world.in(DType::i32, {1}, {0}),
                                           .table = world.in(DType::f32, {4, 3}, Values(12)),
                                           .y = world.out(DType::f32, {1, 3}),
                                           .first_row = 5,
                                           .total_rows = 5});
      },
      "4 rows from 5 of 5");
}

TEST(Embedding, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView ids = world.in(DType::i32, {2}, Values(2)), table = world.in(DType::f32, {4, 3}, Values(12));
  Stream& s = world.stream();
  expect_rejected(
      [&] {
        embedding_forward(s, {.ids = ids, .table = table, .y = world.out(DType::f32, {3, 3})});
      },
      "y has shape");
  expect_rejected([&] { embedding_forward(s, {.ids = ids, .table = table, .y = table.rows(0, 2)}); }, "share memory");
  expect_rejected(
      [&] {
        embedding_backward(s, {.ids = ids, .dy = table.rows(0, 2), .dtable = world.out(DType::i32, {4, 3})});
      },
      "dtable is int32");
  expect_rejected(
      [&] {
        embedding_forward(s, {.ids = ids, .table = table, .y = world.out(DType::f32, {2, 3}), .scale = NAN});
      },
      "scale is nan");
  for (const double bad : {-1.0, 4.0}) {
    for (const DeviceKind kind : devices()) {
      World other(kind, 1);
      embedding_forward(other.stream(), {.ids = other.in(DType::i32, {2}, {0, bad}),
                                         .table = other.in(DType::f32, {4, 3}, Values(12)),
                                         .y = other.out(DType::f32, {2, 3})});
      EXPECT_THROW(other.stream().synchronize(), InternalError);
    }
  }
}

}  // namespace embedding_cases
}  // namespace hawser::ops
