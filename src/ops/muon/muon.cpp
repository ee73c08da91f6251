#include "ops/muon/muon.h"

#include "ops/update/expect_weights.h"

#include <algorithm>

namespace hawser::ops {

void muon_momentum(Stream& stream, const MuonMomentum& args) {
  constexpr auto kOp = "muon_momentum";
  const Shape shape{args.buffer.elements()};
  expect(kOp, "buffer", args.buffer, {DType::f32}, shape);
  expect(kOp, "gradient", args.gradient, {DType::f32}, shape);
  expect(kOp, "sent", args.sent, {DType::bf16}, shape);
  if (!args.coefficient.empty()) expect(kOp, "coefficient", args.coefficient, {DType::f32}, {1});
  if (!args.skip.empty()) expect(kOp, "skip", args.skip, {DType::i32}, {1});
  expect_apart(kOp, args.buffer, args.gradient);
  expect_apart(kOp, args.sent, args.buffer);
  expect_apart(kOp, args.sent, args.gradient);
  HAWSER_CHECK(args.momentum >= 0 && args.momentum < 1, kOp, ": momentum ", args.momentum);
  run(stream, {kOp, OpKind::optimizer}, {args.buffer, args.gradient, args.coefficient, args.skip},
      {args.buffer, args.sent}, 6.0 * static_cast<double>(shape[0]), args, HAWSER_BACKENDS(muon_momentum));
}

DType muon_scratch(DeviceKind target) {
  return target == DeviceKind::cuda ? DType::bf16 : DType::f32;
}

void muon_orthogonalize(Stream& stream, const MuonOrthogonalize& args) {
  constexpr auto kOp = "muon_orthogonalize";
  const DType scratch = muon_scratch(stream.target());
  expect(kOp, "from", args.from, {DType::bf16}, {args.from.elements()});
  expect(kOp, "to", args.to, {DType::bf16}, {args.from.elements()});
  expect(kOp, "x", args.x, {scratch}, {args.x.elements()});
  expect(kOp, "y", args.y, {DType::f32}, {args.x.elements()});
  expect(kOp, "a", args.a, {scratch}, {args.a.elements()});
  expect(kOp, "t", args.t, {DType::f32}, {args.a.elements()});
  const TensorView all[] = {args.from, args.to, args.x, args.y, args.a, args.t};
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < i; ++j) expect_apart(kOp, all[i], all[j]);
  }
  for (const ExchangedMatrix& m : args.matrices) {
    const std::int64_t side = std::min(m.rows, m.columns);
    HAWSER_CHECK(m.rows * m.columns <= args.x.elements() && side * side <= args.a.elements(), kOp, ": a matrix [",
                 m.rows, ", ", m.columns, "] with scratch for ", args.x.elements(), " and ", args.a.elements());
    HAWSER_CHECK(m.sliced == ExchangedMatrix::Sliced::no || m.size > 0, kOp, ": slices of ", m.size);
    const std::int64_t last = m.place(args.flat, m.rows - 1, m.columns - 1);
    HAWSER_CHECK(last < args.from.elements(), kOp, ": element ", last, " of ", args.from.elements());
  }
  run(stream, {kOp, OpKind::optimizer}, {args.from, args.to}, {args.to, args.x, args.y, args.a, args.t}, args.flops,
      args, HAWSER_BACKENDS(muon_orthogonalize));
}

void muon_apply(Stream& stream, const MuonApply& args) {
  constexpr auto kOp = "muon_apply";
  const Shape shape{args.direction.elements()};
  expect_weights(kOp, args);
  expect(kOp, "direction", args.direction, {DType::bf16}, args.weight.shape());
  expect(kOp, "rate", args.rate, {DType::f32}, {1});
  expect_apart(kOp, args.weight, args.direction);
  expect_apart(kOp, args.compute_weight, args.weight);
  expect_apart(kOp, args.compute_weight, args.direction);
  run(stream, {kOp, OpKind::optimizer}, {args.weight, args.direction, args.rate, args.skip, args.rounding.step},
      {args.weight, args.compute_weight}, 3.0 * static_cast<double>(shape[0]), args, HAWSER_BACKENDS(muon_apply));
}

}  // namespace hawser::ops
