// `write_row_sum`: a matrix that is a Redistribute seam's sum of the tensor ranks' parts.
#pragma once

#include "nn/layer.h"

namespace hawser::nn {

// Calls write(rows, first_row) for each piece: it enqueues on the compute stream the work that writes this rank's part
// of the sum's rows [first_row, first_row + rows.size(0)) to `rows`, [those rows, C].
template <class Write>
void write_pieces(Redistribute::Sum& sum, const Write& write) {
  for (int p = 0; p < sum.pieces(); ++p) {
    const RowTarget piece = sum.target(p);
    write(piece.rows, piece.first_row);
    sum.written(p);
  }
}

// The same, and then y [RowCounts::residual, C], dense, holds residual + the sum for work that is enqueued afterwards.
template <class Write>
void write_row_sum(LayerContext& ctx, Redistribute& seam, const TensorView& y, const TensorView& residual,
                   const Write& write, Redistribute::Order order = Redistribute::Order::any) {
  const auto sum = seam.sum(ctx, y, residual, order);
  write_pieces(*sum, write);
  sum->finish();
}

}  // namespace hawser::nn
