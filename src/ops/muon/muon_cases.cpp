#include "ops/muon/muon.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace muon_cases {

using namespace testing;

TEST(Muon, AveragesTheGradient) {
  for (const bool nesterov : {false, true}) {
    const std::int64_t n = 37;
    const Values buffer = random_values(n, 1), gradient = random_values(n, 2);
    Values after, sent;
    for (std::size_t i = 0; i < buffer.size(); ++i) {
      const double g = gradient[i] * 0.5;
      after.push_back(0.95 * buffer[i] + 0.05 * g);
      sent.push_back(nesterov ? 0.95 * after[i] + 0.05 * g : after[i]);
    }
    check_case({cat("muon_momentum", nesterov ? " nesterov" : ""),
                [&](World& world) -> std::vector<Values> {
                  const MuonMomentum args{.buffer = world.in_out(DType::f32, {n}, buffer),
                                          .gradient = world.in(DType::f32, {n}, gradient),
                                          .coefficient = world.in(DType::f32, {1}, {0.5}),
                                          .skip = world.in(DType::i32, {1}, {0}),
                                          .sent = world.out(DType::bf16, {n}),
                                          .nesterov = nesterov};
                  muon_momentum(world.stream(), args);
                  return {world.values(args.buffer), world.values(args.sent)};
                },
                {after, sent},
                kBf16Tolerance});
  }
}

// The iterations in float64. What each step rounds to bf16 stays below a few percent of a number.
Values orthogonal(const Values& matrix, std::int64_t rows, std::int64_t columns) {
  const bool turn = rows > columns;
  const auto n = static_cast<std::size_t>(std::min(rows, columns)),
             k = static_cast<std::size_t>(std::max(rows, columns));
  const auto at = [&](std::size_t i, std::size_t j) { return turn ? j * n + i : i * k + j; };
  Values x(n * k);
  double squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < k; ++j) x[i * k + j] = matrix[at(i, j)], squares += x[i * k + j] * x[i * k + j];
  }
  for (double& value : x) value /= std::sqrt(squares);
  const auto product = [](const Values& a, const Values& b, std::size_t m, std::size_t p, std::size_t q, bool turned) {
    Values c(m * p);
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < p; ++j) {
        for (std::size_t l = 0; l < q; ++l) c[i * p + j] += a[i * q + l] * (turned ? b[j * q + l] : b[l * p + j]);
      }
    }
    return c;
  };
  for (int iteration = 0; iteration < kMuonIterations; ++iteration) {
    Values a = product(x, x, n, n, k, true);
    const Values square = product(a, a, n, n, n, false);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = kMuonB * a[i] + kMuonC * square[i];
    const Values more = product(a, x, n, k, n, false);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = kMuonA * x[i] + more[i];
  }
  Values out(n * k);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < k; ++j) out[at(i, j)] = x[i * k + j];
  }
  return out;
}

struct Placed {
  const char* name;
  ExchangedFlat flat;
  ExchangedMatrix matrix;
  std::int64_t elements;  // of the exchanged flat
};
using Sliced = ExchangedMatrix::Sliced;
const Placed kPlaces[] = {{"wide", {.count = 512}, {.begin = 16, .rows = 12, .columns = 32}, 512},
                          {"tall, in two shards", {.count = 256}, {.begin = 100, .rows = 40, .columns = 9}, 512},
                          {"slices of rows",
                           {.count = 128, .slices = 2},
                           {.begin = 8, .rows = 12, .columns = 16, .sliced = Sliced::rows, .size = 6},
                           256},
                          {"slices of columns, in two shards",
                           {.count = 64, .slices = 2},
                           {.begin = 8, .rows = 12, .columns = 16, .sliced = Sliced::columns, .size = 8},
                           256},
                          {"slices on two copies",
                           {.count = 64, .slices = 2, .copies = 2},
                           {.begin = 8, .rows = 12, .columns = 16, .sliced = Sliced::rows, .size = 6},
                           256}};

TEST(Muon, OrthogonalizesWhereverAMatrixIs) {
  for (const Placed& c : kPlaces) {
    const std::int64_t rows = c.matrix.rows, columns = c.matrix.columns;
    const Values matrix = random_values(rows * columns, 1, DType::bf16);
    Values from = random_values(c.elements, 2, DType::bf16), expected(static_cast<std::size_t>(c.elements));
    const Values update = orthogonal(matrix, rows, columns);
    std::vector<bool> used(from.size());
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const auto at = static_cast<std::size_t>(c.matrix.place(c.flat, i / columns, i % columns));
      EXPECT_FALSE(used.at(at)) << c.name;
      used[at] = true;
      from[at] = matrix[static_cast<std::size_t>(i)], expected[at] = update[static_cast<std::size_t>(i)];
    }
    check_case({c.name,
                [&](World& world) -> std::vector<Values> {
                  const std::int64_t n = std::min(rows, columns);
                  const DType scratch = muon_scratch(world.stream().target());
                  const MuonOrthogonalize args{.from = world.in(DType::bf16, {c.elements}, from),
                                               .to = world.in_out(DType::bf16, {c.elements}, Values(from.size())),
                                               .x = world.out(scratch, {rows * columns}),
                                               .y = world.out(DType::f32, {rows * columns}),
                                               .a = world.out(scratch, {n * n}),
                                               .t = world.out(DType::f32, {n * n}),
                                               .flat = c.flat,
                                               .matrices = {c.matrix}};
                  muon_orthogonalize(world.stream(), args);
                  return {world.values(args.to)};
                },
                {expected},
                0.05});
  }
}

TEST(Muon, AppliesTheScaledUpdate) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::int64_t n = 37;
    const Values weight = random_values(n, 1, dtype), direction = random_values(n, 2, DType::bf16);
    Values expected;
    for (std::size_t i = 0; i < weight.size(); ++i)
      expected.push_back(weight[i] * (1 - 0.1 * 0.5) - 0.1 * 3 * direction[i]);
    check_case({cat("muon_apply ", to_string(dtype)),
                [&](World& world) -> std::vector<Values> {
                  const MuonApply args{.weight = world.in_out(dtype, {n}, weight),
                                       .direction = world.in(DType::bf16, {n}, direction),
                                       .compute_weight = world.out(DType::bf16, {n}),
                                       .rate = world.in(DType::f32, {1}, {0.1}),
                                       .skip = world.in(DType::i32, {1}, {0}),
                                       .scale = 3,
                                       .weight_decay = 0.5};
                  muon_apply(world.stream(), args);
                  const Values w = world.values(args.weight), c = world.values(args.compute_weight);
                  for (std::size_t i = 0; i < c.size(); ++i) EXPECT_EQ(c[i], rounded(w[i], DType::bf16));
                  return {w};
                },
                {expected},
                dtype == DType::bf16 ? kBf16Tolerance : 2e-6});
  }
}

TEST(Muon, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const auto f32 = [&](std::int64_t n) { return world.out(DType::f32, {n}); };
  const auto bf16 = [&](std::int64_t n) { return world.in_out(DType::bf16, {n}, Values(static_cast<std::size_t>(n))); };
  const MuonOrthogonalize good{.from = bf16(64),
                               .to = bf16(64),
                               .x = f32(12),
                               .y = f32(12),
                               .a = f32(9),
                               .t = f32(9),
                               .flat = {.count = 64},
                               .matrices = {{.rows = 3, .columns = 4}}};
  const auto rejected = [&](const std::function<void(MuonOrthogonalize&)>& spoil, const std::string& text) {
    MuonOrthogonalize args = good;
    spoil(args);
    expect_rejected([&] { muon_orthogonalize(world.stream(), args); }, text);
  };
  rejected([](auto& a) { a.matrices[0].rows = 4; }, "a matrix [4, 4] with scratch for 12 and 9");
  rejected([](auto& a) { a.matrices[0].begin = 60; }, "element 71 of 64");
  rejected([](auto& a) { a.matrices[0].sliced = Sliced::rows; }, "slices of 0");
  rejected([](auto& a) { a.to = a.from; }, "share memory");
  rejected([&](auto& a) { a.x = bf16(12); }, "x is bfloat16");
}

}  // namespace muon_cases
}  // namespace hawser::ops
