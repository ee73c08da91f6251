// Muon in three ops: momentum, orthogonal updates of complete matrices, and their application.
//
// Example: the momentum diag(3, 0.1) of a matrix [2, 2] becomes about the identity: five steps of Newton and Schulz
// bring all singular values near 1, so that a direction with a small gradient moves as far as one with a large
// gradient.
//
//   muon_momentum       buffer = momentum * buffer + (1 - momentum) * gradient * coefficient
//                       sent   = bf16(nesterov ? momentum * buffer + (1 - momentum) * gradient * coefficient : buffer)
//   muon_orthogonalize  X = sent / max(|sent|, 1e-7), transposed if it has more rows than columns; five times:
//                         A = X X^T,   B = -4.775 A + 2.0315 A A,   X = 3.4445 X + B X       each rounded to bf16
//   muon_apply          weight *= 1 - rate * weight_decay
//                       weight -= rate * scale * X
//
// Source: Jordan et al., "Muon", 2024 (kellerjordan.github.io/posts/muon); torch.optim.Muon.
#pragma once

#include <vector>

#include "ops/run_op.h"
#include "ops/update/rounding.h"

namespace hawser::ops {

// buffer float32 [n], updated in place unless skip, int32 [1], is not 0; gradient float32 [n]; sent bf16 [n].
// coefficient float32 [1], optional.
struct MuonMomentum {
  TensorView buffer, gradient, coefficient, skip;
  TensorView sent;
  double momentum = 0.95;
  bool nesterov = true;
};
void muon_momentum(Stream& stream, const MuonMomentum& args);

// The shards of a flat's slices, one after another: tensor ranks innermost (optim::FlatUpdate::exchanged_element).
struct ExchangedFlat {
  std::int64_t count = 0;  // elements of a shard
  std::int64_t slices = 1, copies = 1;

  constexpr std::int64_t place(std::int64_t element, std::int64_t of) const {
    const std::int64_t shard = element / count;
    return ((shard / copies * slices + of) * copies + shard % copies) * count + element % count;
  }
};
// A complete matrix [rows, columns] in such a flat. If it is sliced, slice i has `size` rows or columns from i * size
// on.
struct ExchangedMatrix {
  enum class Sliced { no, rows, columns };
  std::int64_t begin = 0;  // element of a slice's flat
  std::int64_t rows = 0, columns = 0;
  Sliced sliced = Sliced::no;
  std::int64_t size = 0;

  constexpr std::int64_t place(const ExchangedFlat& flat, std::int64_t row, std::int64_t column) const {
    const bool by_row = sliced == Sliced::rows, by_column = sliced == Sliced::columns;
    const std::int64_t of = by_row ? row / size : by_column ? column / size : 0;
    const std::int64_t r = by_row ? row % size : row, c = by_column ? column % size : column;
    return flat.place(begin + r * (by_column ? size : columns) + c, of);
  }
};

// from, to bf16 [all elements of an ExchangedFlat]; each of `matrices` is read from `from` and written to `to`, and the
// rest of `to` stays as it is. x, y [elements of the largest matrix], a, t [squares of the smaller side of the
// largest]: scratch, x and a in muon_scratch(), y and t in float32. `flops`: of the record.
struct MuonOrthogonalize {
  TensorView from, to;
  TensorView x, y, a, t;
  ExchangedFlat flat;
  std::vector<ExchangedMatrix> matrices;
  double flops = 0;
};
void muon_orthogonalize(Stream& stream, const MuonOrthogonalize& args);
// CPUs multiply bf16 numbers in float32.
DType muon_scratch(DeviceKind target);
constexpr int kMuonIterations = 5;
constexpr float kMuonA = 3.4445f, kMuonB = -4.7750f, kMuonC = 2.0315f, kMuonEpsilon = 1e-7f;

// weight [n] float32 or bf16, rounded as ops/update/rounding.h says; direction bf16 [n]; compute_weight [n] float32 or
// bf16, optional; rate float32 [1]. Nothing changes if skip is not 0.
struct MuonApply {
  TensorView weight, direction, compute_weight;
  TensorView rate, skip;
  StochasticRounding rounding = {};
  double scale = 1, weight_decay = 0;
};
void muon_apply(Stream& stream, const MuonApply& args);

HAWSER_BACKENDS_OF(muon_momentum, MuonMomentum);
HAWSER_BACKENDS_OF(muon_orthogonalize, MuonOrthogonalize);
HAWSER_BACKENDS_OF(muon_apply, MuonApply);

}  // namespace hawser::ops
