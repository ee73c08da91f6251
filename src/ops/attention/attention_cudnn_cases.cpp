// bf16 attention in all forms for which the GPU has kernels, on every device. Tolerances are looser than in
// attention_cases.cpp: cuDNN rounds to bf16 within the call, and its backward is not deterministic.
#include "ops/attention/attention.h"

#include <limits>

#include "ops/testing/attention_reference.h"
#include "ops/testing/attention_windows.h"
#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace attention_cudnn_cases {

using namespace testing;
using Kernel = AttentionImplementation::Kernel;

struct Form {
  Problem problem;
  Kernel forward, backward, repeated;  // GPU kernels; repeated: backward with `deterministic`
};

std::vector<Form> forms() {
  constexpr auto kDiagonal = SegmentForm::diagonal, kDisjointKeys = SegmentForm::disjoint_keys, kAny = SegmentForm::any;
  constexpr auto kDense = Kernel::cudnn_dense, kRagged = Kernel::cudnn_ragged, kShared = Kernel::cudnn_shared,
                 kTiled = Kernel::tiled, kPlain = Kernel::plain;
  const auto bf16 = DType::bf16;
  // Two sequences of 4 chunks of 50 rows; this rank has chunks 1 and 2 of each. The keys before a chunk are at the same
  // position of each sequence.
  const auto before_chunks = [&](const char* name, std::int64_t d, std::vector<Row> segments) {
    Problem p{name, 200, 400, 4, 2, d, std::move(segments), false, 0, bf16, 8};
    p.places = {{2, 50, 50, 100, 0, 100, 200}, {2, 0, 50, 100, 0, 50, 200}};
    return p;
  };
  // In a ring, both chunks of a rank see the first chunk of an earlier rank.
  Problem of_ring{
      "two chunks with the same keys",
      200,
      200,
      4,
      2,
      64,
      {{0, 50, 0, 50, 50, 0}, {50, 50, 0, 50, 100, 0}, {100, 50, 100, 50, 50, 0}, {150, 31, 100, 50, 100, 0}},
      false,
      0,
      bf16,
      8};
  of_ring.places = {{2, 50, 50, 100, 0, 50, 100}, {2, 0, 50, 100, 0, 50, 100}};
  // One chunk of the sequence has keys before it, the other has none.
  Problem one_chunk{"keys before one of two chunks", 130, 260, 2, 2, 64, {{65, 40, 0, 195, 195, 0}}, false, 0, bf16};
  one_chunk.places = {{1, 65, 65, 130, 0, 195, 260}};
  const auto host_known = [](Problem p) {
    for (const Row& row : p.segments) p.host.insert(p.host.end(), row.begin(), row.end());
    p.host_known = true;
    p.name += ", host_segments";
    return p;
  };
  const Problem documents{"documents",
                          430,
                          430,
                          4,
                          2,
                          64,
                          {{0, 1, 0, 1, 0, 0},
                           {1, 95, 1, 95, 0, 0},
                           {297, 3, 297, 3, 0, 0},
                           {96, 201, 96, 201, 0, 0},
                           {310, 50, 310, 50, 7, 7}},
                          true,
                          0,
                          bf16,
                          8,
                          kDiagonal};
  const Problem shared{
      "off-diagonal blocks that share keys, one all of them",
      700,
      900,
      4,
      2,
      64,
      {{0, 70, 10, 300, 0, 0}, {100, 50, 250, 150, 0, 0}, {150, 530, 0, 900, 0, 0}, {690, 10, 20, 880, 0, 0}},
      false,
      0,
      bf16,
      8,
      kAny};
  std::vector<Form> windows;
  for (const Problem& p : windowed_blocks()) windows.push_back({p, kDense, kDense, kDense});
  for (const Problem& p : windowed_segments()) windows.push_back({p, kRagged, kShared, kTiled});
  std::vector<Form> out{
      {host_known(documents), kRagged, kRagged, kTiled},
      {host_known({"no document", 40, 40, 2, 1, 16, {}, true, 0, bf16, 0, kDiagonal}), kRagged, kRagged, kTiled},
      {shared, kRagged, kShared, kTiled},
      {host_known(shared), kRagged, kShared, kTiled},
      {before_chunks(
           "keys before chunks", 64,
           {{0, 50, 0, 50, 50, 0}, {50, 50, 0, 100, 100, 0}, {100, 50, 200, 50, 50, 0}, {150, 50, 200, 100, 100, 0}}),
       kDense, kDense, kDense},
      {before_chunks("keys before chunks, sequences that end in one", 128,
                     {{0, 50, 0, 50, 50, 0}, {50, 13, 0, 100, 100, 0}, {100, 31, 200, 50, 50, 0}}),
       kDense, kDense, kDense},
      {before_chunks("keys before chunks, all sequences end earlier", 64, {}), kDense, kDense, kDense},
      {one_chunk, kDense, kDense, kDense},
      {of_ring, kDense, kDense, kDense},
      {{"chunks of two sequences against themselves",
        240,
        240,
        4,
        2,
        64,
        {{0, 60, 0, 60, 60, 60}, {60, 60, 60, 60, 120, 120}, {120, 41, 120, 41, 60, 60}},
        true,
        0,
        bf16,
        8,
        kDiagonal,
        60},
       kDense,
       kDense,
       kDense},
      {{"one sequence", 300, 300, 4, 2, 64, {{0, 300, 0, 300, 0, 0}}, true, 0, bf16, 0, kDiagonal, 300},
       kDense,
       kDense,
       kDense},
      {{"one sequence of odd length", 431, 431, 3, 1, 128, {{0, 431, 0, 431, 0, 0}}, true, 0, bf16, 8, kDiagonal, 431},
       kDense,
       kDense,
       kDense},
      {{"sequences, one short, one missing",
        512,
        512,
        6,
        2,
        64,
        {{0, 128, 0, 128, 0, 0}, {384, 128, 384, 128, 0, 0}, {128, 77, 128, 77, 0, 0}},
        true,
        0,
        bf16,
        16,
        kDiagonal,
        128},
       kDense,
       kDense,
       kDense},
      {{"a piece of a sequence", 100, 100, 2, 2, 32, {{0, 100, 0, 100, 500, 500}}, true, 0, bf16, 0, kDiagonal, 100},
       kDense,
       kDense,
       kDense},
      {{"one token a sequence",
        3,
        3,
        2,
        1,
        16,
        {{0, 1, 0, 1, 0, 0}, {2, 1, 2, 1, 0, 0}},
        true,
        0,
        bf16,
        0,
        kDiagonal,
        1},
       kDense,
       kPlain,
       kPlain},
      {{"a window over sequences",
        400,
        400,
        4,
        1,
        64,
        {{0, 200, 0, 200, 0, 0}, {200, 200, 200, 200, 0, 0}},
        true,
        37,
        bf16,
        0,
        kDiagonal,
        200},
       kDense,
       kDense,
       kDense},
      {{"narrow heads", 150, 150, 2, 1, 8, {{0, 150, 0, 150, 0, 0}}, true, 0, bf16, 8, kDiagonal, 150},
       kDense,
       kDense,
       kDense},
      {{"heads of 80", 150, 150, 2, 1, 80, {{0, 150, 0, 150, 0, 0}}, true, 0, bf16, 0, kDiagonal, 150},
       kDense,
       kDense,
       kDense},
      {{"heads of 256", 150, 150, 2, 1, 256, {{0, 150, 0, 150, 0, 0}}, true, 0, bf16, 0, kDiagonal, 150},
       kDense,
       kDense,
       kDense},
      {{"documents",
        430,
        430,
        4,
        2,
        64,
        {{0, 1, 0, 1, 0, 0},
         {1, 95, 1, 95, 0, 0},
         {297, 3, 297, 3, 0, 0},
         {96, 201, 96, 201, 0, 0},
         {310, 50, 310, 50, 7, 7}},
        true,
        0,
        bf16,
        8,
        kDiagonal},
       kRagged,
       kRagged,
       kTiled},
      {{"documents, heads of 128, one each",
        300,
        300,
        3,
        3,
        128,
        {{100, 200, 100, 200, 0, 0}, {0, 90, 0, 90, 0, 0}},
        true,
        0,
        bf16,
        0,
        kDiagonal},
       kRagged,
       kRagged,
       kTiled},
      {{"a window over documents",
        300,
        300,
        4,
        2,
        64,
        {{0, 130, 0, 130, 0, 0}, {130, 170, 130, 170, 0, 0}},
        true,
        50,
        bf16,
        0,
        kDiagonal},
       kRagged,
       kRagged,
       kTiled},
      {{"documents, heads of 40",
        120,
        120,
        2,
        1,
        40,
        {{0, 50, 0, 50, 0, 0}, {50, 70, 50, 70, 0, 0}},
        true,
        0,
        bf16,
        0,
        kDiagonal},
       kRagged,
       kTiled,
       kTiled},
      {{"off-diagonal blocks",
        200,
        600,
        4,
        2,
        64,
        {{0, 70, 10, 300, 0, 0}, {100, 50, 350, 150, 0, 0}, {160, 10, 520, 0, 0, 0}},
        false,
        0,
        bf16,
        8,
        kDisjointKeys},
       kRagged,
       kRagged,
       kTiled},
      {{"off-diagonal blocks that share keys",
        150,
        400,
        4,
        2,
        128,
        {{0, 70, 10, 300, 0, 0}, {100, 50, 250, 150, 0, 0}},
        false,
        0,
        bf16,
        0,
        kAny},
       kRagged,
       kShared,
       kTiled},
      {{"no segment", 40, 40, 2, 1, 16, {}, true, 0, bf16, 0, kDiagonal}, kRagged, kRagged, kTiled},
      {{"queries behind their keys", 40, 260, 2, 1, 64, {{0, 40, 0, 260, 220, 0}}, true, 0, bf16, 0, kAny},
       kTiled,
       kTiled,
       kTiled},
      {{"rows that are not aligned", 100, 100, 2, 1, 32, {{0, 100, 0, 100, 0, 0}}, true, 0, bf16, 3, kDiagonal, 100},
       kPlain,
       kPlain,
       kPlain},
  };
  out.insert(out.end(), windows.begin(), windows.end());
  return out;
}

// Roundings to bf16, each with a relative error of at most kRounding:
// - of every term: the probability (o, dv) or the score's gradient (dq, dk) in the product;
// - of sums of terms: dk and dv of one query head, which are then added, and the partial gradient of one call, which is
//   added to the result. Either is at most the sum of the terms' magnitudes;
// - of the result, each time a partial gradient is added.
// If a few large terms cancel, the error is far larger than one rounding of the result: dv of a sequence's first key
// has terms of about 1, 1/2, 1/3... Everything else is float32: products of bf16 are exact in it, and sums of up to 256
// of them lose less than kFloat32 with inputs of order one.
constexpr double kRounding = 1.0 / 256;
constexpr double kRoundings = 3;
constexpr double kFloat32 = 1e-5;

// Checks that bound for each element. The root mean square of the errors must be little more than one rounding, since
// roundings have both signs. shares: maximum number of partial results added to an element.
void expect_near(const Values& got, const Values& expected, const Values& magnitudes, double shares,
                 const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  ASSERT_EQ(got.size(), magnitudes.size()) << what;
  double error = 0, square = 0, count = 1e-30;
  for (std::size_t i = 0; i < got.size(); ++i) {
    // The value before the last addition is at most |expected| + magnitudes.
    const double of_terms = (kRoundings + shares - 1) * magnitudes[i], of_result = shares * std::abs(expected[i]);
    const double max = kRounding * (of_terms + of_result) * (1 + (kRoundings + shares) * kRounding);
    ASSERT_LE(std::abs(got[i] - expected[i]), max + kFloat32)
        << what << ": element " << i << " is " << got[i] << ", expected " << expected[i] << ", magnitudes "
        << magnitudes[i];
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    square += expected[i] * expected[i];
    count += 1;
  }
  EXPECT_LE(std::sqrt(error / count), 6e-3 * (std::sqrt(square / count) + 0.05)) << what << ": root mean square";
}

// The call merges into a float32 accumulator, as ring attention begins.
void merge(World& world, const Problem& p, AttentionCall& args) {
  const auto rows = static_cast<std::size_t>(p.hq * p.tq);
  args.accumulate = true;
  args.o = world.in_out(DType::f32, {p.tq, p.hq, p.d}, Values(rows * static_cast<std::size_t>(p.d), 0.0));
  args.lse = world.in_out(DType::f32, {p.hq, p.tq}, Values(rows, -std::numeric_limits<double>::infinity()));
  args.workspace = world.workspace(attention_workspace(args, world.stream().target(), 2));
}

TEST(AttentionForms, ForwardOnEveryDevice) {
  for (const Form& form : forms()) {
    const Problem& p = form.problem;
    SCOPED_TRACE(p.name);
    const Tensors x(p);
    Magnitudes magnitudes;
    const Outputs expected = reference(p, x, nullptr, &magnitudes);
    for (const DeviceKind kind : devices()) {
      Values first;
      for (const bool merges : {false, false, true}) {
        World world(kind, 2);
        AttentionCall args = forward_args(world, p, x);
        if (merges) merge(world, p, args);
        EXPECT_EQ(attention_implementation(args, DeviceKind::cuda).kernel, form.forward);
        attention_forward(world.stream(), args);
        const Values o = world.values(args.o);
        expect_near(o, expected.o, magnitudes.o, 1, cat("o on ", to_string(kind)));
        expect_close(world.values(args.lse), expected.lse, 1e-5, cat("lse on ", to_string(kind)));
        world.check_gaps();
        if (first.empty()) first = o;
        if (!merges) expect_same_bits(o, first, cat("o on ", to_string(kind), ", again"));
      }
    }
  }
}

struct Gradients {
  DType dtype;
  bool accumulate, deterministic;
};

// Elements between rows, as in views of a wider tensor.
struct Pads {
  std::int64_t q = 0, k = 0, v = 0, o = 0, d_o = 0, dq = 0, dk = 0, dv = 0;
};

// Inputs of backward, the expected gradients, and their magnitudes.
struct Expected {
  Outputs full, gradients;
  Magnitudes magnitudes;

  Expected(const Problem& p, const Tensors& x) : full(reference(p, x)) {
    for (double& o : full.o) o = rounded(o, p.dtype);
    gradients = reference(p, x, &full, &magnitudes);
  }
};

void check_backward(const Form& form, const Tensors& x, const Expected& e, const Pads& pads, const Gradients& g,
                    DeviceKind kind) {
  const Problem& p = form.problem;
  const Outputs& full = e.full;
  Outputs expected = e.gradients;
  SCOPED_TRACE(cat(p.name, ", ", to_string(g.dtype), g.accumulate ? ", added to" : "",
                   g.deterministic ? ", deterministic" : "", ", on ", to_string(kind)));
  Outputs old;
  if (g.accumulate) {
    old.dq = random_values(static_cast<std::int64_t>(x.q.size()), 21, g.dtype);
    old.dk = random_values(static_cast<std::int64_t>(x.k.size()), 22, g.dtype);
    old.dv = random_values(static_cast<std::int64_t>(x.v.size()), 23, g.dtype);
    expected = {{}, {}, plus(expected.dq, old.dq), plus(expected.dk, old.dk), plus(expected.dv, old.dv)};
  }
  const Shape q_shape{p.tq, p.hq, p.d}, k_shape{p.tk, p.hkv, p.d};
  std::vector<Values> first;
  for (int turn = 0; turn < (kind == DeviceKind::cpu ? 1 : 2); ++turn) {
    World world(kind, 2);
    const auto gradient = [&](const Shape& shape, const Values& before, std::int64_t pad) {
      return g.accumulate ? world.in_out(g.dtype, shape, before, pad) : world.out(g.dtype, shape, pad);
    };
    AttentionBackward args{.call = call_args(world, p, x, {pads.q, pads.k, pads.v}),
                           .d_o = world.in(p.dtype, q_shape, x.d_o, pads.d_o),
                           .dq = gradient(q_shape, old.dq, pads.dq),
                           .dk = gradient(k_shape, old.dk, pads.dk),
                           .dv = gradient(k_shape, old.dv, pads.dv),
                           .accumulate_q = g.accumulate,
                           .accumulate_kv = g.accumulate,
                           .deterministic = g.deterministic};
    args.call.o = world.in(p.dtype, q_shape, full.o, pads.o);
    args.call.lse = world.in(DType::f32, {p.hq, p.tq}, full.lse);
    args.call.workspace = world.workspace(attention_workspace(args, world.stream().target(), 2));
    EXPECT_EQ(attention_implementation(args, DeviceKind::cuda).kernel, g.deterministic ? form.repeated : form.backward);
    attention_backward(world.stream(), args);
    const std::vector<Values> got{world.values(args.dq), world.values(args.dk), world.values(args.dv)};
    const double shares = form.backward == Kernel::cudnn_shared
                              ? static_cast<double>(p.segments.size())
                              : std::max<double>(1, static_cast<double>(p.places.size()));
    expect_near(got[0], expected.dq, e.magnitudes.dq, shares, "dq");
    expect_near(got[1], expected.dk, e.magnitudes.dk, shares, "dk");
    expect_near(got[2], expected.dv, e.magnitudes.dv, shares, "dv");
    world.check_gaps();
    if (first.empty()) first = got;
    const bool repeats = g.deterministic || AttentionImplementation::own(form.backward);
    if (!repeats) continue;
    for (std::size_t i = 0; i < got.size(); ++i) expect_same_bits(got[i], first[i], cat("gradient ", i, ", again"));
  }
}

TEST(AttentionForms, BackwardOnEveryDevice) {
  for (const Form& form : forms()) {
    const Problem& p = form.problem;
    const Tensors x(p);
    const Expected expected(p, x);
    const Pads pads{p.pad, p.pad, p.pad, 0, 2 * p.pad, p.pad, p.pad, p.pad};
    for (const DeviceKind kind : devices()) {
      check_backward(form, x, expected, pads, {DType::bf16, false, false}, kind);
      check_backward(form, x, expected, pads, {DType::f32, true, false}, kind);
      if (kind == DeviceKind::cpu) continue;  // the CPU has one implementation for all of these
      check_backward(form, x, expected, pads, {DType::f32, false, false}, kind);
      check_backward(form, x, expected, pads, {DType::bf16, true, false}, kind);
      check_backward(form, x, expected, pads, {DType::bf16, false, true}, kind);
    }
  }
}

// Padded rows in each tensor alone and in all: cuDNN reads some tensors at the offsets of others.
TEST(AttentionForms, BackwardOfViews) {
  struct Width {
    const char* name;
    Pads pads;
  };
  const Width widths[] = {
      {"q", {.q = 64}},
      {"k", {.k = 64}},
      {"v", {.v = 64}},
      {"o", {.o = 64}},
      {"d_o", {.d_o = 64}},
      {"dq", {.dq = 64}},
      {"dk", {.dk = 64}},
      {"dv", {.dv = 64}},
      {"all", {.q = 8, .k = 16, .v = 24, .o = 32, .d_o = 40, .dq = 48, .dk = 56, .dv = 64}},
  };
  const std::vector<Row> documents{{100, 90, 100, 90, 0, 0}, {0, 70, 0, 70, 0, 0}}, full{{0, 200, 0, 200, 0, 0}},
      shared{{0, 70, 10, 120, 0, 0}, {100, 50, 60, 140, 0, 0}};
  for (const std::int64_t kv_heads : {2, 4}) {
    const auto problem = [&](const char* name, const std::vector<Row>& segments, SegmentForm form,
                             std::int64_t uniform) {
      const bool causal = form == SegmentForm::diagonal;
      return Problem{name, 200, 200, 4, kv_heads, 64, segments, causal, 0, DType::bf16, 0, form, uniform};
    };
    const Form views[] = {
        {problem("documents", documents, SegmentForm::diagonal, 0), Kernel::cudnn_ragged, Kernel::cudnn_ragged,
         Kernel::tiled},
        {problem("one sequence", full, SegmentForm::diagonal, 200), Kernel::cudnn_dense, Kernel::cudnn_dense,
         Kernel::cudnn_dense},
        {problem("shared keys", shared, SegmentForm::any, 0), Kernel::cudnn_ragged, Kernel::cudnn_shared,
         Kernel::tiled},
    };
    for (const Form& form : views) {
      const Tensors x(form.problem);
      const Expected expected(form.problem, x);
      for (const Width& width : widths) {
        SCOPED_TRACE(cat("wide rows: ", width.name, "; key-value heads: ", kv_heads));
        for (const DeviceKind kind : devices()) {
          check_backward(form, x, expected, width.pads, {DType::bf16, false, false}, kind);
        }
      }
    }
  }
}

TEST(AttentionForms, ReportsWhyNotFaster) {
  Problem p{"", 64, 64, 2, 1, 33, {{0, 64, 0, 64, 0, 0}}};
  const auto reason = [&] {
    World world(DeviceKind::meta, 1);
    return attention_implementation(forward_args(world, p, Tensors(p)), DeviceKind::cuda).reason;
  };
  EXPECT_EQ(reason(), "float32 operands; precision.compute: bf16 avoids it");
  p.dtype = DType::bf16;
  EXPECT_EQ(reason(), "head dim 33; cuDNN takes multiples of 8");
  p.d = 32;
  EXPECT_EQ(reason(), "causal segments may differ from diagonal blocks");
  p.form = SegmentForm::diagonal;
  EXPECT_EQ(reason(), "segments may differ in length");
  p.uniform = 64;
  EXPECT_EQ(reason(), "");
  p.uniform = 0;
  p.causal = false;
  p.places = {{1, 0, 64, 64, 0, 64, 64}};
  EXPECT_EQ(reason(), "");
  p.window = 30;
  EXPECT_EQ(reason(), "");
  p.places = {{1, 0, 64, 64, 0, 29, 64}};
  EXPECT_EQ(reason(), "a window without a causal mask, and more queries than keys");
  p.places.clear();
  EXPECT_EQ(reason(), "a window without a causal mask, and segments at different distances");
  p.window_halves = true;
  EXPECT_EQ(reason(), "segments may differ in length");
}

// Sizes alone, as the planner has them on a machine without a GPU: Llama-3.1-8B's heads and the given numbers of rows.
// others: heads that follow those of q in a row.
AttentionBackward planned_call(std::int64_t q_rows, std::int64_t k_rows, std::vector<StridedBlocks> blocks,
                               std::int64_t others = 0) {
  const auto view = [](DType dtype, Shape shape) {
    return TensorView(reinterpret_cast<std::byte*>(1 << 20), dtype, shape, DeviceKind::meta);
  };
  const TensorView q = view(DType::bf16, {q_rows, 32 + others, 128}).slice(1, 0, 32);
  const TensorView k = view(DType::bf16, {k_rows, 8, 128});
  return {.call = {.q = q,
                   .k = k,
                   .v = k,
                   .segments = view(DType::i32, {4, 6}),
                   .form = SegmentForm::diagonal,
                   .blocks = std::move(blocks),
                   .o = q,
                   .lse = view(DType::f32, {32, q_rows})},
          .d_o = q,
          .dq = q,
          .dk = k,
          .dv = k};
}

TEST(AttentionForms, WorkspaceIsKnownFromSizes) {
  const auto bytes = [](std::int64_t rows, std::int64_t uniform, bool deterministic, std::int64_t others = 0) {
    std::vector<StridedBlocks> blocks;
    if (uniform > 0) blocks.push_back(equal_diagonal_blocks(rows, uniform));
    AttentionBackward args = planned_call(rows, rows, std::move(blocks), others);
    args.deterministic = deterministic;
    return static_cast<double>(attention_workspace(args, DeviceKind::cuda)) / (1 << 20);
  };
  EXPECT_NEAR(bytes(16384, 16384, false), 517, 3);              // cuDNN needs 514
  EXPECT_NEAR(bytes(16384, 0, false), 770 + 192, 5);            // cuDNN needs 770; dq, dk and dv are separate
  EXPECT_NEAR(bytes(16384, 16384, false, 16), 517, 3);          // heads of keys and values follow those of queries
  EXPECT_NEAR(bytes(16384, 0, false, 16), 770 + 192 + 128, 5);  // and q is copied
  EXPECT_LT(bytes(1 << 20, 1 << 20, false), 5000);              // one key-value head at a time
  EXPECT_LT(bytes(16384, 16384, true), 2304 + 10);              // likewise
  EXPECT_LT(bytes(32768, 32768, true), 10);                     // the tiled kernel
  EXPECT_LT(bytes(16384, 0, true), 10);
}

// All ranks of a context-parallel group reserve the workspace of the largest blocks among them. A rank with smaller
// blocks could process more heads at a time and use more: it must stay within the reserved workspace.
TEST(AttentionForms, SmallerBlocksFitTheWorkspaceOfLargerOnes) {
  int wanted_more = 0;
  for (const std::int64_t ranks : {2, 4, 8}) {
    for (std::int64_t chunk = 1024; ranks * chunk <= 1 << 19; chunk *= 2) {
      // The keys before the second chunk of rank `second`, and before the first chunk of rank `first`.
      const auto call = [&](std::int64_t second, std::int64_t first) {
        const std::int64_t full = 2 * ranks * chunk;
        std::vector<StridedBlocks> blocks{{1, chunk, chunk, full, 0, (2 * ranks - 1 - second) * chunk, full}};
        if (first > 0) blocks.push_back({1, 0, chunk, full, 0, first * chunk, full});
        AttentionBackward args = planned_call(2 * chunk, full, std::move(blocks));
        args.call.form = SegmentForm::disjoint_keys;
        args.call.causal = false;
        return args;
      };
      const std::int64_t there = attention_workspace(call(0, ranks - 1), DeviceKind::cuda);
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const AttentionBackward args = call(rank, rank);
        EXPECT_LE(attention_workspace_within(args, DeviceKind::cuda, there), there)
            << ranks << " ranks, rank " << rank << ", chunks of " << chunk;
        if (attention_workspace(args, DeviceKind::cuda) > there) ++wanted_more;
      }
    }
  }
  EXPECT_GT(wanted_more, 0);
}

}  // namespace attention_cudnn_cases
}  // namespace hawser::ops
