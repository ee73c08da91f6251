// `Redistribute`: the seam of tensor parallelism. It moves rows of activations between the tensor ranks, before and
// after the Linears whose weights are sliced, and after the embedding.
//
// Example: two tensor ranks and sequence parallelism. Of 8 rows, tensor rank 0 has rows 0..3 of the residual and rank 1
// rows 4..7. This is an MLP's forward on each of them:
//
//   const auto x = seams.redistribute->gather(ctx, norm, Rows::in_pieces);   // norm [4, C]: an all-gather begins
//   for (int p = 0; p < x->pieces(); ++p) {
//     const RowPiece piece = x->wait(p);                           // some of the 8 rows, from piece.first_row on
//     ...                                                          // GEMM with this rank's rows of W_up
//   }
//   x->finish();
//   const auto sum = seams.redistribute->sum(ctx, y, residual);    // y, residual [4, C]: a reduce-scatter of [8, C]
//   for (int p = 0; p < sum->pieces(); ++p) {
//     const RowTarget piece = sum->target(p);
//     ...                                                          // GEMM with this rank's columns of W_down
//     sum->written(p);
//   }
//   sum->finish();                                                 // y = residual + both ranks' parts of these 4 rows
//
// In DTensor's words, over the tensor ranks:
//
//                column-parallel Linear (QKV, gate, up, head)    row-parallel Linear (output, down)
//   W            Shard(0): a slice of its rows                   Shard(1): a slice of its columns
//   forward      gather x: Shard(0) -> Replicate                 sum y: Partial -> Shard(0)
//   backward     gather x again for dW, sum dx                   gather dy
//
// So with sequence parallelism (Megatron-LM, arXiv 2205.05198) the rows of the residual are divided, gather is an
// all-gather, and sum a reduce-scatter. Tensor rank i has the rows [i * residual, (i + 1) * residual) of
// RowCounts::full. Without it the residual is Replicate: gather is the identity, and sum an all-reduce.
//
// The seam decides how many pieces there are, so that the communication of one can overlap the GEMM of another. Each
// full row is in one piece. All ranks have equally many pieces, and piece p has equally many rows on all of them. These
// may be other rows on each rank; in a sum with Order::same they are the same rows.
//
// The default implementation is one device: one piece, which is the argument itself. nn/seams.h says what holds for all
// seams.
#pragma once

#include <cstdint>
#include <memory>

#include "nn/scaled.h"

namespace hawser::nn {

class LayerContext;

// Rows [first_row, first_row + rows of the view) of a gathered matrix, which has RowCounts::full rows.
struct RowPiece {
  Scaled rows;
  std::int64_t first_row = 0;
};

// Where a layer writes its part of rows [first_row, first_row + rows of the view) of a sum of RowCounts::full rows.
struct RowTarget {
  TensorView rows;
  std::int64_t first_row = 0;
};

class Redistribute {
 public:
  enum class Order {
    any,   // piece p may be other rows on each rank: between pieces, layers exchange only what does not depend on rows
    same,  // piece p is the same rows on all ranks: between pieces, layers exchange what depends on them
  };

  // What the layer reads of a gather.
  enum class Rows {
    in_pieces,  // wait() of each piece
    together,   // all(), before it or alone
  };

  // One gather. It lives while the host enqueues its instruction.
  class Gather {
   public:
    virtual ~Gather() = default;
    virtual int pieces() const = 0;
    // Makes the compute stream wait until piece p has arrived. The layer calls it once for each piece, in order, or for
    // none. The rows have x's dtype and its scale.
    virtual RowPiece wait(int p) = 0;
    // Returns all rows, and makes the compute stream wait for them. The layer calls it after the wait() of all pieces,
    // or alone, and may call it again. Of Rows::together only.
    virtual Scaled all() = 0;
    // The layer calls it once, after the last wait() or all(). Work that it enqueues on the compute stream afterwards
    // may overwrite x, which other ranks read until then. Views of wait() and all() may be parts of x: the layer reads
    // them before it overwrites x, and in this instruction only.
    virtual void finish() {}
  };

  // One sum of a matrix over the ranks.
  class Sum {
   public:
    virtual ~Sum() = default;
    virtual int pieces() const = 0;
    // Returns where the layer writes its own part of the sum, for the rows of piece p. The layer calls it once for each
    // piece, in order.
    virtual RowTarget target(int p) = 0;
    // The layer calls it when it has enqueued the work that writes piece p on the compute stream, before target(p + 1).
    virtual void written(int p) = 0;
    // The layer calls it once, after the last written(). Work that it enqueues between the two may run during the tail
    // of the sum. Work that it enqueues on the compute stream afterwards finds the result in y.
    virtual void finish() = 0;
  };

  virtual ~Redistribute() = default;

  // Layers call these two.

  // x [RowCounts::residual, C] does not change. If its rows are divided, it has one scale at most, equal on all ranks.
  virtual std::unique_ptr<Gather> gather(LayerContext&, const Scaled& x, Rows needed);
  // y = residual + the sum. y and residual [RowCounts::residual, C] are dense. y is undefined until finish(); residual
  // may be empty, and is read until then. The parts have y's dtype, and so has the sum before residual is added.
  virtual std::unique_ptr<Sum> sum(LayerContext&, const TensorView& y, const TensorView& residual = {},
                                   Order order = Order::any);

  // Layers ask an implementation what it prefers.

  // True: backward of a column-parallel Linear computes dx before dW, so that the gather of x can overlap dx, and the
  // tail of dx's sum dW. False: it computes dW first, and dx may then take the memory of dW's operands.
  virtual bool overlaps() const { return false; }
  // True: each rank rounds its own rows of an x or a dy before the gather, if all ranks have the scale beforehand
  // (LinearFormat::fp8_delayed in a training step). The gather then moves one byte for each element. It is not so where
  // an adapter, or for dy a bias, reads the matrix itself. The bits are those of rounding after the gather.
  virtual bool gathers_quantized() const { return false; }
};

}  // namespace hawser::nn
