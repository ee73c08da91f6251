// `TensorParallel`: nn::Redistribute without sequence parallelism. Every tensor rank has all rows of the residual: a
// gather is the identity, and a sum an all-reduce.
//
// A sum has several pieces of rows. The all-reduce of one runs on the exchange stream while the layer computes the next
// one, and that of the last while it computes what it enqueues before finish(). The ranks' parts are added in their
// order in float32 (comm::Group::all_reduce): the bits do not depend on the number of pieces.
#pragma once

#include "comm/group.h"
#include "nn/layer.h"

namespace hawser::parallel {

class TensorParallel : public nn::Redistribute {
 public:
  static constexpr std::int64_t kPieceRows = 2048;  // a GEMM of fewer does not fill a GPU
  static constexpr std::int64_t kPieces = 4;        // at most

  // `piece_rows`: a sum has fewer pieces than kPieces where they would have fewer rows.

  explicit TensorParallel(comm::Group& group, std::int64_t piece_rows = kPieceRows)
      : group_(group), piece_rows_(piece_rows) {}
  std::unique_ptr<Sum> sum(nn::LayerContext& ctx, const TensorView& y, const TensorView& residual,
                           Order order) override;
  bool overlaps() const override { return true; }

 private:
  class AllReduce;

  comm::Group& group_;
  std::int64_t piece_rows_;
};

}  // namespace hawser::parallel
