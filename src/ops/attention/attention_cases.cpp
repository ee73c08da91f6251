#include "ops/attention/attention.h"
#include "ops/testing/attention_checks.h"
#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace attention_cases {

using namespace testing;

std::vector<Problem> problems() {
  return {
      {"one token", 1, 1, 1, 1, 8, {{0, 1, 0, 1, 0, 0}}},
      {"causal", 77, 77, 3, 1, 16, {{0, 77, 0, 77, 0, 0}}},
      {"causal over several blocks", 431, 431, 2, 1, 20, {{0, 431, 0, 431, 0, 0}}, true, 0, DType::f32, 6},
      {"full", 50, 211, 4, 2, 32, {{0, 50, 0, 211, 0, 0}}, false},
      {"documents",
       330,
       330,
       2,
       2,
       10,
       {{0, 1, 0, 1, 0, 0},
        {1, 95, 1, 95, 0, 0},
        {96, 201, 96, 201, 0, 0},
        {297, 3, 297, 3, 0, 0},
        {300, 30, 300, 30, 0, 0}}},
      {"window", 300, 300, 2, 1, 24, {{0, 300, 0, 300, 0, 0}}, true, 37},
      {"window of one", 60, 60, 1, 1, 8, {{0, 60, 0, 60, 0, 0}}, true, 1},
      {"window without causal", 90, 120, 2, 2, 12, {{0, 90, 0, 120, 40, 0}}, false, 25},
      {"off-diagonal blocks that share keys",
       150,
       400,
       3,
       3,
       16,
       {{0, 70, 10, 300, 0, 0}, {100, 50, 250, 150, 0, 0}},
       false},
      {"queries behind their keys", 40, 260, 2, 1, 64, {{0, 40, 0, 260, 220, 0}}},
      {"queries before their keys", 100, 80, 2, 1, 16, {{0, 100, 0, 80, 30, 60}}},
      {"rows without keys", 64, 64, 1, 1, 16, {{8, 10, 0, 0, 0, 0}, {40, 20, 5, 20, 0, 0}}},
      {"no segment", 20, 20, 2, 1, 16, {}},
      {"segments out of order", 90, 90, 8, 1, 8, {{60, 30, 60, 30, 0, 0}, {0, 60, 0, 60, 0, 0}}},
      {"wide heads", 100, 100, 2, 1, 128, {{0, 100, 0, 100, 0, 0}}},
      {"odd head dim", 70, 70, 5, 5, 33, {{0, 70, 0, 70, 0, 0}}, true, 0, DType::f32, 3},
      {"bf16", 210, 210, 3, 1, 64, {{0, 100, 0, 100, 0, 0}, {100, 110, 100, 110, 0, 0}}, true, 0, DType::bf16, 8},
      // Decoding with the KV cache.
      {"one row each", 4, 900, 6, 2, 64, {{0, 1, 0, 7, 6, 0}, {1, 1, 7, 200, 199, 0}, {3, 1, 210, 650, 649, 0}}},
      {"one row each, a window", 3, 500, 5, 1, 33, {{0, 1, 0, 400, 399, 0}, {2, 1, 400, 90, 89, 0}}, true, 50},
      {"one row each, all keys", 2, 300, 4, 4, 128, {{0, 1, 3, 290, 0, 0}, {1, 1, 0, 300, 0, 0}}, false},
      {"one row each, bf16",
       2,
       450,
       4,
       1,
       20,
       {{0, 1, 0, 193, 192, 0}, {1, 1, 200, 250, 249, 0}},
       true,
       0,
       DType::bf16,
       4},
      {"bf16 window", 210, 210, 2, 2, 20, {{0, 210, 0, 210, 0, 0}}, true, 64, DType::bf16, 4},
  };
}

TEST(Attention, ForwardAgreesWithFloat64) {
  for (const Problem& p : problems()) check_forward(p);
}

// As of sequences whose earlier keys were not loaded.
TEST(Attention, ForwardDoesNotReadKeysBeforeTheWindow) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Problem p{"decoding", 9, 500, 4, 2, 32, {{0, 1, 0, 400, 399, 0}, {1, 8, 400, 98, 90, 0}}, true, 50, dtype};
    Tensors x(p);
    const Outputs expected = reference(p, x);
    for (Values* values : {&x.k, &x.v}) {
      const std::int64_t columns = p.hkv * p.d;
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 350}, {400, 441}}) {
        std::fill(values->begin() + begin * columns, values->begin() + end * columns,
                  std::numeric_limits<double>::quiet_NaN());
      }
    }
    check_case({cat("attention_forward with keys that are NaN, ", to_string(dtype)),
                [&](World& world) -> std::vector<Values> {
                  const AttentionCall args = forward_args(world, p, x);
                  attention_forward(world.stream(), args);
                  return {world.values(args.o), world.values(args.lse)};
                },
                {expected.o, expected.lse},
                dtype == DType::bf16 ? kBf16Tolerance : 4e-6});
  }
}

TEST(Attention, BackwardAgreesWithFloat64) {
  for (const Problem& p : problems()) {
    check_backward(p, DType::f32, false);
    if (p.tq * p.hq < 250) check_backward(p, DType::f32, true);
    if (p.dtype == DType::bf16) {
      check_backward(p, DType::bf16, false);
      check_backward(p, DType::bf16, true);
    }
  }
}

// Checks the reference itself against central differences of its forward.
TEST(Attention, ReferenceAgreesWithFiniteDifferences) {
  const Problem p{"small", 7, 9, 4, 2, 3, {{0, 4, 0, 5, 1, 0}, {4, 3, 2, 7, 3, 0}}, true, 4};
  Tensors x(p);
  const Outputs analytic = reference(p, x);
  const auto loss = [&] { return dot(reference(p, x).o, x.d_o); };
  expect_close(analytic.dq, numeric_gradient(loss, x.q), 1e-7, "dq");
  expect_close(analytic.dk, numeric_gradient(loss, x.k), 1e-7, "dk");
  expect_close(analytic.dv, numeric_gradient(loss, x.v), 1e-7, "dv");
}

// A chunk in the middle of a packed sequence: its diagonal and off-diagonal blocks, combined, must equal one call over
// all keys, and the gradients of the parts must add up to that call's.
void check_combined(const Problem& full) {
  Problem diagonal = full, off_diagonal = full;
  diagonal.segments = {{0, 40, 60, 40, 60, 60}, {40, 100, 100, 100, 0, 0}};
  off_diagonal.segments = {{0, 40, 0, 60, 60, 0}};
  off_diagonal.causal = false;
  const Tensors x(full);
  const Outputs expected = reference(full, x);

  for (const DeviceKind kind : devices()) {
    World world(kind, 2);
    const AttentionCall a = forward_args(world, diagonal, x), b = forward_args(world, off_diagonal, x);
    attention_forward(world.stream(), a);
    attention_forward(world.stream(), b);
    attention_combine(world.stream(), {.o_a = a.o, .lse_a = a.lse, .o_b = b.o, .lse_b = b.lse});
    expect_close(world.values(a.o), expected.o, 4e-6, "o");
    expect_close(world.values(a.lse), expected.lse, 4e-6, "lse");

    AttentionBackward first = backward_args(world, diagonal, x, expected, {});
    attention_backward(world.stream(), first);
    AttentionBackward second = backward_args(world, off_diagonal, x, expected, {});
    second.dq = first.dq;
    second.dk = first.dk;
    second.dv = first.dv;
    second.accumulate_q = second.accumulate_kv = true;
    attention_backward(world.stream(), second);
    expect_close(world.values(first.dq), expected.dq, 1e-5, "dq");
    expect_close(world.values(first.dk), expected.dk, 1e-5, "dk");
    expect_close(world.values(first.dv), expected.dv, 1e-5, "dv");
  }
}

TEST(Attention, CombinedBlocksEqualOneCall) {
  // Documents of 100 and 150 tokens; the chunk holds tokens 60 to 200.
  Problem full{"full", 140, 200, 4, 2, 16, {{0, 40, 0, 100, 60, 0}, {40, 100, 100, 100, 0, 0}}};
  check_combined(full);
  full.softcap = 0.5;
  full.slopes = {0.25, 0.0625, 0.015625, 0.5};
  check_combined(full);
}

TEST(AttentionCombine, AgreesWithFloat64AndSupportsRowsWithoutKeys) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const std::int64_t t = 4, h = 2, d = 5;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Values o_a = random_values(t * h * d, 1, dtype), o_b = random_values(t * h * d, 2, dtype);
    Values lse_a = random_values(h * t, 3), lse_b = random_values(h * t, 4);
    lse_a[1] = kNone;             // row 1 of head 0: only b
    lse_b[2] = kNone;             // row 2 of head 0: only a
    lse_a[7] = lse_b[7] = kNone;  // row 3 of head 1: neither
    for (std::int64_t i = 0; i < d; ++i) {
      o_a[static_cast<std::size_t>((1 * h + 0) * d + i)] = o_b[static_cast<std::size_t>((2 * h + 0) * d + i)] = 0;
      o_a[static_cast<std::size_t>((3 * h + 1) * d + i)] = o_b[static_cast<std::size_t>((3 * h + 1) * d + i)] = 0;
    }
    Values o = o_a, lse = lse_a;
    for (std::int64_t row = 0; row < t; ++row) {
      for (std::int64_t head = 0; head < h; ++head) {
        const auto at = static_cast<std::size_t>(head * t + row);
        const double max = std::max(lse_a[at], lse_b[at]);
        if (max == kNone) continue;
        lse[at] = max + std::log(std::exp(lse_a[at] - max) + std::exp(lse_b[at] - max));
        for (std::int64_t i = 0; i < d; ++i) {
          const auto e = static_cast<std::size_t>((row * h + head) * d + i);
          o[e] = std::exp(lse_a[at] - lse[at]) * o_a[e] + std::exp(lse_b[at] - lse[at]) * o_b[e];
        }
      }
    }
    check_case({cat("attention_combine ", to_string(dtype)),
                [&](World& world) -> std::vector<Values> {
                  const AttentionCombine args{.o_a = world.in_out(dtype, {t, h, d}, o_a, 3),
                                              .lse_a = world.in_out(DType::f32, {h, t}, lse_a),
                                              .o_b = world.in(dtype, {t, h, d}, o_b, 1),
                                              .lse_b = world.in(DType::f32, {h, t}, lse_b)};
                  attention_combine(world.stream(), args);
                  return {world.values(args.o_a), world.values(args.lse_a)};
                },
                {o, lse},
                dtype == DType::bf16 ? kBf16Tolerance : 2e-6});
  }
}

TEST(Attention, ForwardMergesIntoEarlierResults) {
  for (const Problem& p : problems()) {
    if (p.dtype == DType::f32) check_accumulate(p, DType::f32, 4e-6);
    if (p.dtype == DType::bf16) check_accumulate(p, DType::bf16, kBf16Tolerance);
    if (p.dtype == DType::bf16) check_accumulate(p, DType::f32, kBf16Tolerance);
  }
}

// A row that is in no segment keeps its bits, even those of a negative zero.
TEST(Attention, MergingDoesNotChangeOtherRows) {
  const Problem p{"rows without keys", 64, 64, 1, 1, 16, {{8, 10, 0, 0, 0, 0}, {40, 20, 5, 20, 0, 0}}};
  const Tensors x(p);
  for (const DeviceKind kind : devices()) {
    World world(kind, 2);
    AttentionCall args = call_args(world, p, x, {});
    args.accumulate = true;
    args.o = world.in_out(DType::f32, {p.tq, p.hq, p.d}, Values(x.q.size(), -0.0));
    args.lse = world.in_out(DType::f32, {p.hq, p.tq}, Values(64, 0.0));
    args.workspace = world.workspace(attention_workspace(args, world.stream().target(), 2));
    attention_forward(world.stream(), args);
    const Values o = world.values(args.o);
    for (std::size_t row = 0; row < 64; ++row) {
      if (row < 40 || row >= 60) {
        EXPECT_TRUE(std::signbit(o[row * 16])) << row;
      }
    }
  }
}

// The log-sum-exps of some rows of a longer call.
TEST(Attention, LogSumExpsMayBeColumns) {
  const Problem p = problems()[1];
  const Tensors x(p);
  const Outputs expected = reference(p, x);
  check_case({"attention_backward, padded lse",
              [&](World& world) -> std::vector<Values> {
                AttentionBackward args{.call = call_args(world, p, x, {}),
                                       .d_o = world.in(p.dtype, {p.tq, p.hq, p.d}, x.d_o),
                                       .dq = world.out(DType::f32, {p.tq, p.hq, p.d}),
                                       .dk = world.out(DType::f32, {p.tk, p.hkv, p.d}),
                                       .dv = world.out(DType::f32, {p.tk, p.hkv, p.d})};
                args.call.o = world.in(DType::f32, {p.tq, p.hq, p.d}, expected.o);
                args.call.lse = world.in(DType::f32, {p.hq, p.tq}, expected.lse, 7);
                args.call.workspace = world.workspace(attention_workspace(args, world.stream().target(), 2));
                attention_backward(world.stream(), args);
                return {world.values(args.dq), world.values(args.dk), world.values(args.dv)};
              },
              {expected.dq, expected.dk, expected.dv},
              1e-5});
}

// A workspace sized for one thread works on a stream with several.
TEST(Attention, UsesAsManyThreadsAsFit) {
  const Problem p = problems()[2];
  const Tensors x(p);
  const Outputs expected = reference(p, x);
  World world(DeviceKind::cpu, 3);
  const AttentionCall forward = forward_args(world, p, x, 1);
  attention_forward(world.stream(), forward);
  const AttentionBackward backward = backward_args(world, p, x, expected, {.threads = 1});
  attention_backward(world.stream(), backward);
  expect_close(world.values(forward.o), expected.o, 4e-6, "o");
  expect_close(world.values(backward.dq), expected.dq, 1e-5, "dq");
}

// Many threads over few heads: contributions to dQ must be added in the order of key blocks, as with one thread.
TEST(Attention, ThreadsDoNotChangeTheOrderOfSums) {
  const Problem p{"long", 1200, 1200, 2, 1, 16, {{0, 1200, 0, 1200, 0, 0}}};
  const Tensors x(p);
  Outputs given;
  given.o = random_values(static_cast<std::int64_t>(x.q.size()), 5);
  given.lse = Values(static_cast<std::size_t>(p.hq * p.tq), 6.0);
  std::vector<Values> results;
  for (const int threads : {1, 4}) {
    World world(DeviceKind::cpu, threads);
    const AttentionBackward args = backward_args(world, p, x, given, {.threads = threads});
    attention_backward(world.stream(), args);
    results.push_back(world.values(args.dq));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(Attention, RejectsBadArguments) {
  const Problem p = problems()[1];
  const Tensors x(p);
  World world(DeviceKind::cpu, 1);
  const AttentionCall good = forward_args(world, p, x);
  const auto rejected = [&](const std::function<void(AttentionCall&)>& spoil, const std::string& part) {
    AttentionCall args = good;
    spoil(args);
    expect_rejected([&] { attention_forward(world.stream(), args); }, part);
  };
  rejected([&](auto& a) { a.k = world.in(DType::f32, {77, 2, 16}, Values(77 * 32)); }, "3 query heads over 2");
  rejected([&](auto& a) { a.v = a.v.rows(0, 76); }, "v has shape");
  rejected([&](auto& a) { a.q = world.in(DType::bf16, {77, 3, 16}, Values(77 * 48)); }, "k is float32");
  rejected([&](auto& a) { a.window = -1; }, "window -1");
  rejected([&](auto& a) { a.lse = world.out(DType::f32, {77, 3}); }, "lse has shape");
  rejected([&](auto& a) { a.workspace = a.workspace.rows(0, 64); }, "workspace has 64 bytes");
  rejected([&](auto& a) { a.o = a.q; }, "share memory");
  rejected([&](auto& a) { a.blocks = {equal_diagonal_blocks(77, 77)}; }, "must be diagonal blocks");
  rejected([&](auto& a) { a.blocks = {{1, 70, 10, 10, 0, 10, 10}}; }, "1 blocks of 10 x 10 rows");
  rejected([&](auto& a) { a.segments = world.in(DType::i32, {1, 5}, Values(5)); }, "segments has shape");
  rejected(
      [&](auto& a) {
        a.q = world.in(DType::f32, {2, 1, 264}, Values(528));
        a.k = a.v = world.in(DType::f32, {2, 1, 264}, Values(528));
      },
      "head dim 264");

  const AttentionBackward backward = backward_args(world, p, x, reference(p, x), {});
  AttentionBackward bad = backward;
  bad.dk = bad.dv;
  expect_rejected([&] { attention_backward(world.stream(), bad); }, "share memory");
  bad = backward;
  bad.call.accumulate = true;
  expect_rejected([&] { attention_backward(world.stream(), bad); }, "accumulate is forward's");
  bad = backward;
  bad.d_o = TensorView();
  expect_rejected([&] { attention_backward(world.stream(), bad); }, "d_o is missing");
}

TEST(Attention, BadSegmentsPoisonTheStream) {
  Problem p = problems()[1];
  const Tensors x(p);
  for (const auto& segments : std::vector<std::vector<Row>>{{{0, 78, 0, 77, 0, 0}},
                                                            {{0, 10, 70, 8, 0, 0}},
                                                            {{-1, 10, 0, 8, 0, 0}},
                                                            {{0, 10, 0, 10, 0, 0}, {9, 10, 0, 10, 0, 0}}}) {
    p.segments = segments;
    World world(DeviceKind::cpu, 1);
    attention_forward(world.stream(), forward_args(world, p, x));
    EXPECT_THROW(world.stream().synchronize(), InternalError);
  }
}

TEST(Attention, WrongSegmentFormPoisonsTheStream) {
  Problem p{"wrong form", 80, 80, 1, 1, 8, {}, true, 0, DType::f32};
  const auto broken = [&](SegmentForm form, std::int64_t uniform, const std::vector<Row>& segments) {
    p.form = form;
    p.uniform = uniform;
    p.segments = segments;
    const Tensors x(p);
    World world(DeviceKind::cpu, 1);
    attention_forward(world.stream(), forward_args(world, p, x));
    EXPECT_THROW(world.stream().synchronize(), InternalError);
  };
  broken(SegmentForm::diagonal, 0, {{0, 10, 0, 11, 0, 0}});
  broken(SegmentForm::diagonal, 0, {{0, 10, 0, 10, 5, 0}});
  broken(SegmentForm::diagonal, 0, {{0, 10, 0, 10, 0, 0}, {10, 10, 9, 10, 0, 0}});
  broken(SegmentForm::disjoint_keys, 0, {{0, 10, 0, 20, 0, 0}, {10, 10, 19, 30, 0, 0}});
  broken(SegmentForm::diagonal, 40, {{0, 41, 0, 41, 0, 0}});
  broken(SegmentForm::diagonal, 40, {{10, 30, 10, 30, 0, 0}});
  broken(SegmentForm::diagonal, 40, {{0, 40, 40, 40, 0, 0}});
}

TEST(Attention, SegmentsOutsideTheBlocksPoisonTheStream) {
  Problem p{"places", 80, 160, 1, 1, 8, {}, false, 0, DType::f32};
  p.places = {{2, 20, 20, 40, 0, 60, 80}};
  const auto run = [&](const std::vector<Row>& segments) {
    p.segments = segments;
    const Tensors x(p);
    World world(DeviceKind::cpu, 1);
    attention_forward(world.stream(), forward_args(world, p, x));
    world.stream().synchronize();
  };
  EXPECT_NO_THROW(run({{20, 20, 0, 60, 60, 0}, {60, 7, 80, 60, 60, 0}}));
  EXPECT_THROW(run({{20, 20, 0, 59, 60, 0}}), InternalError);   // not all keys
  EXPECT_THROW(run({{20, 20, 80, 60, 60, 0}}), InternalError);  // keys of another block
  EXPECT_THROW(run({{0, 20, 0, 60, 60, 0}}), InternalError);    // no block
  EXPECT_THROW(run({{60, 21, 80, 60, 60, 0}}), InternalError);  // longer than the block
}

TEST(Attention, BrokenGuaranteesOfWindowsPoisonTheStream) {
  Problem p{"windows", 80, 160, 1, 1, 8, {}, false, 11, DType::f32};
  const auto run = [&](const std::vector<Row>& segments) {
    p.segments = segments;
    const Tensors x(p);
    World world(DeviceKind::cpu, 1);
    attention_forward(world.stream(), forward_args(world, p, x));
    world.stream().synchronize();
  };
  p.window_halves = true;  // rows of the table: one here, and one that is not used
  EXPECT_NO_THROW(run({{20, 10, 0, 10, 60, 50}}));
  EXPECT_THROW(run({{20, 10, 0, 10, 59, 50}}), InternalError);  // another distance
  EXPECT_THROW(run({{20, 11, 0, 10, 60, 50}}), InternalError);  // a query that sees no key
  EXPECT_NO_THROW(run({{0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, {20, 6, 0, 5, 5, 0}}));
  EXPECT_THROW(run({{0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, {20, 7, 0, 5, 5, 0}}), InternalError);  // not all keys
  p.window_halves = false;
  p.places = {{1, 20, 10, 10, 0, 10, 10}};
  EXPECT_NO_THROW(run({{20, 10, 0, 10, 60, 50}}));
  EXPECT_THROW(run({{20, 10, 0, 10, 59, 50}}), InternalError);  // keys that end after the first query
}

TEST(Attention, CountsVisiblePairs) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t window : {0, 1, 3, 50}) {
      for (const std::int64_t offset : {-7, 0, 4, 30}) {
        const Problem p{"", 9, 12, 1, 1, 1, {{0, 9, 0, 12, 100 + offset, 100}}, causal, window};
        std::int64_t count = 0;
        for_each_query(p.space(),
                       [&](std::int64_t, const auto& keys) { count += static_cast<std::int64_t>(keys.size()); });
        EXPECT_EQ(visible_pairs(9, 12, offset, causal, window), static_cast<double>(count))
            << causal << " " << window << " " << offset;
      }
    }
  }
}

}  // namespace attention_cases
}  // namespace hawser::ops
