// Attention with dropout of the probabilities.
#include <numeric>

#include "ops/attention/attention.h"
#include "ops/testing/attention_checks.h"

namespace hawser::ops {
namespace attention_dropout_cases {

using namespace testing;

constexpr PhiloxKey kKey{17, 4711};

// Ids of the rows of p's segments, `stride` rows of a sequence apart, downwards if it is negative: neither their places
// in the tensors nor, with a stride, four keys of one counter. Segment s is in sequence 5 + s % 2.
Values ids_of(std::int64_t count, const Problem& p, bool keys, std::int64_t stride) {
  Values out;
  for (std::int64_t t = 0; t < count; ++t) out.insert(out.end(), {4.0, static_cast<double>(t)});
  for (std::size_t s = 0; s < p.segments.size(); ++s) {
    const Row& row = p.segments[s];
    const std::int64_t begin = row[keys ? 2 : 0], rows = row[keys ? 3 : 1];
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto at = static_cast<std::size_t>(2 * (begin + i));
      out[at] = 5.0 + static_cast<double>(s % 2);
      out[at + 1] = static_cast<double>(10 + (stride > 0 ? stride * i : stride * (i + 1 - rows)));
    }
  }
  return out;
}

Problem dropping(Problem p, double probability, std::int64_t stride = 1, std::int64_t first_head = 0) {
  p.name += cat(", dropout ", probability, stride != 1 ? cat(", stride ", stride) : "",
                first_head > 0 ? cat(", first head ", first_head) : "");
  p.dropout = {.probability = probability, .key = kKey, .first_head = first_head, .step = 321};
  p.dropout.query_ids = ids_of(p.tq, p, false, stride);
  p.dropout.key_ids = ids_of(p.tk, p, true, stride);
  return p;
}

std::vector<Problem> problems() {
  const Problem blocks{"two key blocks", 200, 200, 2, 1, 12, {{0, 200, 0, 200, 0, 0}}, true, 0, DType::f32, 6};
  const Problem documents{
      "documents", 70, 70, 4, 2, 10, {{0, 1, 0, 1, 0, 0}, {1, 45, 1, 45, 0, 0}, {47, 23, 47, 23, 40, 40}}};
  const Problem bf16{"bf16", 80, 80, 6, 2, 24, {{0, 30, 0, 30, 0, 0}, {30, 50, 30, 50, 0, 0}}, true, 0, DType::bf16, 8};
  const Problem rows{"one row each", 3, 300, 6, 2, 33, {{0, 1, 0, 7, 6, 0}, {2, 1, 10, 250, 249, 0}}};
  const Problem shared{"shared keys", 30, 110, 3, 1, 16, {{0, 10, 10, 70, 100, 7}, {10, 20, 30, 80, 130, 50}}, false};
  Problem capped = dropping({"soft cap and slopes", 70, 70, 4, 2, 24, {{0, 70, 0, 70, 0, 0}}, true, 37}, 0.25);
  capped.softcap = 0.8;
  capped.slopes = {0.5, 0.25, 0.125, 0.0625};
  return {
      dropping(blocks, 0.1),
      dropping(blocks, 0.9, 3),
      dropping(documents, 0.5, 1, 3),
      dropping(documents, 0.25, -1),
      dropping({"window without causal", 60, 90, 3, 3, 12, {{0, 60, 0, 90, 40, 0}}, false, 25}, 0.3, 2),
      dropping(shared, 0.4, 5, 7),
      dropping(rows, 0.3),
      dropping(rows, 0.5, -3, 2),
      dropping(bf16, 0.2, 1, 1),
      capped,
  };
}

TEST(AttentionDropout, ForwardAgreesWithFloat64) {
  for (const Problem& p : problems()) check_forward(p);
}

TEST(AttentionDropout, BackwardAgreesWithFloat64) {
  for (const Problem& p : problems()) {
    check_backward(p, p.dtype, false);
    if (p.tq * p.hq < 250) check_backward(p, p.dtype, true);
  }
}

TEST(AttentionDropout, ForwardMergesIntoEarlierResults) {
  for (const Problem& p : problems()) {
    if (p.tq < 80) check_accumulate(p, DType::f32, 4e-6);
  }
}

// Checks the reference itself against central differences of its forward, for a mask that does not depend on x.
TEST(AttentionDropout, ReferenceAgreesWithFiniteDifferences) {
  const Problem p = dropping({"small", 7, 9, 4, 2, 3, {{0, 4, 0, 5, 1, 0}, {4, 3, 2, 7, 3, 0}}, true, 4}, 0.4, 1, 2);
  Tensors x(p);
  const Outputs analytic = reference(p, x);
  const auto loss = [&] { return dot(reference(p, x).o, x.d_o); };
  expect_close(analytic.dq, numeric_gradient(loss, x.q), 1e-7, "dq");
  expect_close(analytic.dk, numeric_gradient(loss, x.k), 1e-7, "dk");
  expect_close(analytic.dv, numeric_gradient(loss, x.v), 1e-7, "dv");
}

// A causal sequence of 40 rows, of which a call has some queries, keys and heads of.
struct Split {
  static constexpr std::int64_t kRows = 40, kHeads = 4, kDim = 8;
  Problem p = dropping({"split", kRows, kRows, kHeads, kHeads, kDim, {{0, kRows, 0, kRows, 0, 0}}}, 0.35);
  Tensors x{p};
  Outputs expected = reference(p, x);
};

AttentionDropout of_part(World& world, const Problem& p, std::int64_t first_head, const Values& query_ids,
                         const Values& key_ids) {
  DropoutProblem part = p.dropout;
  part.first_head += first_head;
  part.query_ids = query_ids;
  part.key_ids = key_ids;
  return dropout_args(world, part);
}

Values slice_of(const Values& values, std::int64_t begin, std::int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}

// Rows [begin, begin + count) of values [rows, width], in reverse order.
Values reversed(const Values& values, std::int64_t width, std::int64_t begin, std::int64_t count) {
  Values out;
  for (std::int64_t row = begin + count; row-- > begin;) {
    out.insert(out.end(), values.begin() + row * width, values.begin() + (row + 1) * width);
  }
  return out;
}

// The last 15 queries, in two sets of heads, against their own keys, and against the 25 keys before them, which are in
// reverse order in a buffer of their own: combined, and with gradients summed, they are rows of one call.
TEST(AttentionDropout, PartsDrawTheNumbersOfOneCall) {
  const Split s;
  constexpr std::int64_t kEarlier = 25, kQueries = Split::kRows - kEarlier, kHalf = Split::kHeads / 2;
  const std::int64_t width = Split::kHeads * Split::kDim;
  const auto rows = [&](World& world, const Values& of, bool late) {
    return late ? world.in(DType::f32, {kQueries, Split::kHeads, Split::kDim},
                           slice_of(of, kEarlier * width, kQueries * width))
                : world.in(DType::f32, {kEarlier, Split::kHeads, Split::kDim}, reversed(of, width, 0, kEarlier));
  };
  for (const DeviceKind kind : devices()) {
    World world(kind, 2);
    const Values late_ids = slice_of(s.p.dropout.query_ids, 2 * kEarlier, 2 * kQueries),
                 early_ids = reversed(s.p.dropout.key_ids, 2, 0, kEarlier);
    const Shape queries{kQueries, Split::kHeads, Split::kDim}, early{kEarlier, Split::kHeads, Split::kDim};
    const TensorView q = rows(world, s.x.q, true), d_o = rows(world, s.x.d_o, true);
    const TensorView o = world.out(DType::f32, queries), lse = world.out(DType::f32, {Split::kHeads, kQueries});
    const TensorView dq = world.out(DType::f32, queries), dk = world.out(DType::f32, queries),
                     dv = world.out(DType::f32, queries), early_dk = world.out(DType::f32, early),
                     early_dv = world.out(DType::f32, early);
    std::vector<AttentionBackward> parts;
    for (std::int64_t h = 0; h < Split::kHeads; h += kHalf) {
      const auto heads = [&](const TensorView& view) { return view.slice(1, h, kHalf); };
      for (const bool own : {true, false}) {
        const std::int64_t keys = own ? kQueries : kEarlier;
        AttentionBackward part{
            .call = {.q = heads(q),
                     .k = heads(rows(world, s.x.k, own)),
                     .v = heads(rows(world, s.x.v, own)),
                     .segments = world.in(DType::i32, {1, 6}, {0, kQueries, 0, static_cast<double>(keys), 0, 0}),
                     .segment_count = world.in(DType::i32, {1}, {1}),
                     .causal = own,
                     .scale = s.p.scale(),
                     .dropout = of_part(world, s.p, h, late_ids, own ? late_ids : early_ids),
                     .o = heads(o),
                     .lse = lse.rows(h, kHalf)},
            .d_o = heads(d_o),
            .dq = heads(dq),
            .dk = heads(own ? dk : early_dk),
            .dv = heads(own ? dv : early_dv),
            .accumulate_q = !own};
        AttentionCall forward = part.call;
        if (!own && h > 0) {
          forward.accumulate = true;
        } else if (!own) {
          forward.o = world.out(DType::f32, {kQueries, kHalf, Split::kDim});
          forward.lse = world.out(DType::f32, {kHalf, kQueries});
        }
        forward.workspace = world.workspace(attention_workspace(forward, world.stream().target(), 2));
        attention_forward(world.stream(), forward);
        if (!own && h == 0) {
          attention_combine(world.stream(),
                            {.o_a = part.call.o, .lse_a = part.call.lse, .o_b = forward.o, .lse_b = forward.lse});
        }
        parts.push_back(part);
      }
    }
    for (AttentionBackward& part : parts) {
      part.call.workspace = world.workspace(attention_workspace(part, world.stream().target(), 2));
      attention_backward(world.stream(), part);
    }
    const auto late = [&](const Values& of) { return slice_of(of, kEarlier * width, kQueries * width); };
    const std::string where = to_string(kind);
    expect_close(world.values(o), late(s.expected.o), 4e-6, where + " o");
    expect_close(world.values(dq), late(s.expected.dq), 1e-5, where + " dq");
    // Keys of the late queries are seen by no others; earlier keys only in part by them.
    expect_close(world.values(dk), late(s.expected.dk), 1e-5, where + " dk");
    expect_close(world.values(dv), late(s.expected.dv), 1e-5, where + " dv");
    Tensors only_late = s.x;
    std::fill_n(only_late.d_o.begin(), kEarlier * width, 0.0);
    const Outputs of_late = reference(s.p, only_late, &s.expected);
    expect_close(world.values(early_dk), reversed(of_late.dk, width, 0, kEarlier), 1e-5, where + " earlier dk");
    expect_close(world.values(early_dv), reversed(of_late.dv, width, 0, kEarlier), 1e-5, where + " earlier dv");
    Values late_lse;
    for (std::int64_t h = 0; h < Split::kHeads; ++h) {
      const Values of_head = slice_of(s.expected.lse, h * Split::kRows + kEarlier, kQueries);
      late_lse.insert(late_lse.end(), of_head.begin(), of_head.end());
    }
    expect_close(world.values(lse), late_lse, 4e-6, where + " lse");
  }
}

TEST(AttentionDropout, ProbabilityZeroIsNoDropout) {
  const Problem none{"bf16", 80, 80, 6, 2, 24, {{0, 30, 0, 30, 0, 0}, {30, 50, 30, 50, 0, 0}}, true, 0, DType::bf16};
  const Problem zero = dropping(none, 0);
  const Tensors x(none);
  const Outputs full = reference(none, x);
  for (const DeviceKind kind : devices()) {
    std::vector<Values> before;
    for (const Problem* p : {&none, &zero}) {
      World world(kind, 2);
      AttentionCall forward = forward_args(world, *p, x);
      AttentionBackward backward = backward_args(world, *p, x, full, {.gradient = DType::bf16, .o = DType::bf16});
      if (p == &zero) forward.dropout = backward.call.dropout = {.probability = 0, .key = kKey, .first_head = 3};
      attention_forward(world.stream(), forward);
      attention_backward(world.stream(), backward);
      const std::vector<Values> got = {world.values(forward.o), world.values(forward.lse), world.values(backward.dq),
                                       world.values(backward.dk), world.values(backward.dv)};
      for (std::size_t i = 0; i < before.size(); ++i) expect_same_bits(got[i], before[i], cat("output ", i));
      before = got;
    }
  }
}

// The factors of all pairs: keys have equal scores, and one-hot values. [Tq, H, Tk]
Values factors(DeviceKind kind, double probability, std::int64_t first_head, std::int32_t step, double sequence) {
  constexpr std::int64_t kQueries = 50, kHeads = 6, kKeys = 128;
  World world(kind, 2);
  Values identity(kKeys * kKeys), query_ids, key_ids;
  for (std::int64_t i = 0; i < kKeys; ++i) identity[static_cast<std::size_t>(i * (kKeys + 1))] = 1;
  for (std::int64_t i = 0; i < kQueries; ++i) query_ids.insert(query_ids.end(), {sequence, static_cast<double>(i)});
  for (std::int64_t i = 0; i < kKeys; ++i) key_ids.insert(key_ids.end(), {sequence, static_cast<double>(i)});
  AttentionCall args{.q = world.in(DType::f32, {kQueries, kHeads, kKeys}, Values(kQueries * kHeads * kKeys)),
                     .k = world.in(DType::f32, {kKeys, 1, kKeys}, Values(kKeys * kKeys)),
                     .v = world.in(DType::f32, {kKeys, 1, kKeys}, identity),
                     .segments = world.in(DType::i32, {1, 6}, {0, kQueries, 0, kKeys, 0, 0}),
                     .segment_count = world.in(DType::i32, {1}, {1}),
                     .causal = false,
                     .dropout = dropout_args(world, {.probability = probability,
                                                     .key = kKey,
                                                     .first_head = first_head,
                                                     .step = step,
                                                     .query_ids = query_ids,
                                                     .key_ids = key_ids}),
                     .o = world.out(DType::f32, {kQueries, kHeads, kKeys}),
                     .lse = world.out(DType::f32, {kHeads, kQueries})};
  args.workspace = world.workspace(attention_workspace(args, world.stream().target(), 2));
  attention_forward(world.stream(), args);
  Values out = world.values(args.o);
  for (double& value : out) value = std::round(value * kKeys * (1 - probability));
  return out;  // 1: kept
}

// The share of pairs that are equal in a and in b moved by `shift` elements.
double equal_share(const Values& a, const Values& b, std::size_t shift = 0) {
  double equal = 0;
  for (std::size_t i = 0; i + shift < a.size(); ++i) equal += a[i] == b[i + shift] ? 1 : 0;
  return equal / static_cast<double>(a.size() - shift);
}

TEST(AttentionDropout, NumbersAreIndependentAndKeepTheMean) {
  constexpr double kProbability = 0.3, kEqual = 0.3 * 0.3 + 0.7 * 0.7;
  for (const DeviceKind kind : devices()) {
    const Values kept = factors(kind, kProbability, 0, 7, 2);
    const auto count = static_cast<double>(kept.size());
    const double deviation = std::sqrt(kProbability * (1 - kProbability) / count);
    EXPECT_NEAR(std::accumulate(kept.begin(), kept.end(), 0.0) / count, 1 - kProbability, 4 * deviation);
    const double equal = 4 * std::sqrt(kEqual * (1 - kEqual) / count);
    for (const std::size_t shift : {1, 2, 3, 4, 128, 6 * 128}) {  // other keys, another head, another query
      EXPECT_NEAR(equal_share(kept, kept, shift), kEqual, equal) << shift;
    }
    EXPECT_EQ(factors(kind, kProbability, 0, 7, 2), kept);
    EXPECT_NEAR(equal_share(factors(kind, kProbability, 0, 8, 2), kept), kEqual, equal) << "another step";
    EXPECT_NEAR(equal_share(factors(kind, kProbability, 0, 7, 3), kept), kEqual, equal) << "another sequence";
    EXPECT_NEAR(equal_share(factors(kind, kProbability, 1, 7, 2), kept), kEqual, equal) << "other heads";
  }
}

TEST(AttentionDropout, CudnnIsNotUsed) {
  Problem p{"one document", 128, 128, 2, 1, 64, {{0, 128, 0, 128, 0, 0}}, true, 0, DType::bf16};
  p.form = SegmentForm::diagonal;
  p.uniform = 128;
  for (const Problem& problem : {p, dropping(p, 0.1)}) {
    World world(DeviceKind::cpu, 1);
    const Tensors x(problem);
    const AttentionBackward args =
        backward_args(world, problem, x, reference(problem, x), {.gradient = DType::bf16, .o = DType::bf16});
    for (const AttentionImplementation& how :
         {attention_implementation(args.call, DeviceKind::cuda), attention_implementation(args, DeviceKind::cuda)}) {
      const bool drops = problem.dropout.probability > 0;
      EXPECT_EQ(how.kernel, drops ? AttentionImplementation::tiled : AttentionImplementation::cudnn_dense);
      EXPECT_EQ(how.reason, drops ? "dropout of probabilities" : "");
    }
  }
}

TEST(AttentionDropout, RejectsBadArguments) {
  const Problem p = dropping({"one document", 8, 8, 4, 2, 8, {{0, 8, 0, 8, 0, 0}}}, 0.5);
  const Tensors x(p);
  World world(DeviceKind::cpu, 1);
  const AttentionCall good = forward_args(world, p, x);
  const auto rejects = [&](const std::function<void(AttentionDropout&)>& change, const std::string& line) {
    AttentionCall bad = good;
    change(bad.dropout);
    expect_rejected([&] { attention_forward(world.stream(), bad); }, line);
  };
  for (const double probability : {1.0, -0.1, std::numeric_limits<double>::quiet_NaN()}) {
    rejects([&](AttentionDropout& d) { d.probability = probability; }, "is not in [0, 1)");
  }
  rejects([](AttentionDropout& d) { d.first_head = -1; }, "first head -1");
  rejects([](AttentionDropout& d) { d.step = {}; }, "step of dropout");
  rejects([](AttentionDropout& d) { d.query_ids = {}; }, "query_ids");
  rejects([](AttentionDropout& d) { d.key_ids = d.key_ids.rows(0, 7); }, "key_ids");
  rejects([&](AttentionDropout& d) { d.key_ids = world.in(DType::f32, {8, 2}, Values(16)); }, "key_ids");
  attention_forward(world.stream(), good);
  world.stream().synchronize();
}

}  // namespace attention_dropout_cases
}  // namespace hawser::ops
