// `TokenExchange`: the seam of expert parallelism. It sends the rows of a rank's tokens to the ranks of their experts,
// and sends back what these compute.
//
// Example: P = 2 ranks, E = 4 experts, so that rank 0 has experts 0 and 1, and rank 1 experts 2 and 3. Each rank has
// T = 3 tokens, each with K = 1 expert:
//
//   rank 0: tokens 0, 1, 2 chose experts 1, 3, 0       rank 1: tokens 0, 1, 2 chose experts 1, 1, 2
//
//   dispatch   rank 0 reads, by expert:  0: token 2 of rank 0     1: token 0 of rank 0, tokens 0 and 1 of rank 1
//              rank 1 reads:             2: token 2 of rank 1     3: token 1 of rank 0
//   combine    each row returns to its token's rank, which multiplies it by the router's weight
//
// In general, P divides E: rank p has the experts [p * L, (p + 1) * L), L = E / P. T, the rows of tokens of a rank,
// padding included, and K, the experts of a token, are equal on all ranks. Each row of experts belongs to an assignment
// (t, k).
//
//   dispatch   row of (t, k) = x[t,:], or round(w[t,k] * x[t,:])                            tokens to experts
//   combine    y[t,:] = residual[t,:] + sum over k of (w[t,k] or 1) * row of (t,k)           experts to tokens
//
//   tokens [T, C]            of this rank
//   rows of experts [S, C]   of all ranks' tokens, by expert, of this rank's L experts
//
// Without weights, backward of dispatch is combine, and the reverse. The weight of an assignment is also sent alone: it
// arrives at its expert with its row, and its gradient returns (Weights::sent).
//
// Layers know neither how often a token is sent nor where rows are summed. An implementation may send one row for each
// assignment, whose sum the token's rank computes, or one row for each rank that has experts of the token, which sums
// their rows before one returns. The sum of combine is in float32. An implementation may round parts of it, such as
// that of a rank, to the dtype of the rows before it adds them. Which parts these are, and their order, depends on the
// routing alone. The default implementation and PiecesExchange (tests/support) have one part with k ascending, which
// gives the bits of ops::combine_rows.
//
// The layer computes the rows of experts in pieces, so that the communication of one overlaps the GEMMs of another.
// Piece p has the experts [p * L / pieces, (p + 1) * L / pieces) and, of each tensor [S, C], the rows
// [p * S / pieces, (p + 1) * S / pieces): the host knows which they are. Among these, the piece's expert i has the rows
// [offsets[i], offsets[i + 1]): those of rank 0's tokens, in their order, then those of rank 1's, and so on; then zeros
// up to a multiple of ops::kGroupRows. S is a bound: no rank knows on the host how many rows there are.
//
// The seam keeps nothing from one call to the next, since calls of other layers and micro-batches, and of this layer's
// later passes, lie between a route() and the calls that follow from it. What these need is in Routing, as saved
// tensors of the layer.
//
// The default implementation is one device, which has all experts. nn/seams.h says what holds for all seams.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "tensor/tensor.h"

namespace hawser::nn {

class LayerContext;

class TokenExchange {
 public:
  // What an implementation asks of layers, equally on all ranks.
  struct Options {
    int pieces = 1;          // divides L
    std::int64_t state = 0;  // elements of Routing::state
    // True: the token's rank quantizes rows, and sends them in FP8, where GEMMs read them so and all ranks share one
    // scale (LinearFormat::fp8_delayed in training). Rows with Weights::applied, which are rounded after they are
    // multiplied, and rows that combine() sums have the compute dtype.
    bool quantized_rows = false;
  };
  // What the host knows of a routing.
  struct Sizes {
    std::int64_t tokens = 0, per_token = 0, experts = 0, local_experts = 0;  // T, K, E, L
    Options options;
    // Limits S / pieces to row_bound times the mean T K / pieces. The limit is rounded up to ops::kGroupRows, and a
    // group of padding is added for each expert. Without it S is the most rows that there can be, as it is on one rank.
    // If a piece of any rank has more rows, route() refuses the routing: counts are 0, nothing is sent in any call,
    // combine() adds nothing, and LayerContext::refusal() has Refusal::expert_rows. The step then runs again with a
    // larger plan (plan::Layout::expert_row_bound).
    std::optional<double> row_bound;

    std::int64_t ranks() const { return experts / local_experts; }  // P
    std::int64_t rows() const;  // R: those of all assignments, padded for each expert
    std::int64_t expert_rows() const { return options.pieces * piece_rows(); }  // S
    std::int64_t piece_experts() const { return local_experts / options.pieces; }
    std::int64_t piece_rows() const;
    std::int64_t max_sent_to_expert() const;  // the most rows from one rank to one expert, without padding
    double expected_sent() const;             // of a piece from one rank to another, on average
  };
  // The routing of one layer and micro-batch. Its tensors are dense and on the device. If one rank has all experts,
  // those that route() writes are empty, except that expert_offsets is `offsets`, and S = R.
  struct Routing {
    Sizes sizes;
    // What the router has decided, and its ops::ExpertPlan. `experts` and `rows` are empty in backward_weight, and so
    // is `weights` unless the call has Weights::applied.
    TensorView experts;      // i32 [T, K]; negative: none
    TensorView weights;      // float32 [T, K]: w
    TensorView rows;         // i32 [T, K]; ops::kNoRow: the assignment has no expert
    TensorView offsets;      // i32 [E + 1]
    TensorView assignments;  // i32 [R]
    // route() writes these. token_rows is empty in backward_weight.
    // i32 [2, E], without padding. First what this rank sends, [E]: the assignments of its tokens to each expert. Then
    // what it receives, [P, L]: those of each rank's tokens to each of its experts.
    TensorView counts;
    TensorView expert_offsets;  // i32 [pieces, L / pieces + 1]
    TensorView token_rows;      // i32 [S, 1]: r if row r of its piece is a token's, otherwise ops::kNoRow
    // i32 [Options::state]: what the implementation keeps for its later calls. Only it reads them, so that they may be
    // the bits of float32.
    TensorView state;

    // Parts of these tensors for piece p.

    TensorView piece_offsets(int p) const;                             // i32 [L / pieces + 1]
    TensorView piece_rows(const TensorView& of_experts, int p) const;  // of a tensor [S, ...]
  };
  // What a call does with the weights of assignments.
  enum class Weights {
    none,
    applied,  // multiplies rows by them, as above
    sent,     // dispatch: the weight of each row arrives with it; combine: a float32 of each row returns with it
  };
  // The rows of a piece, dense. weights: float32 [S / pieces, 1], only with Weights::sent.
  struct PieceRows {
    TensorView rows;  // [S / pieces, C]
    TensorView weights;
  };
  // Rows of tokens on their way to their experts. It lives while the host enqueues its instruction.
  class Dispatch {
   public:
    virtual ~Dispatch() = default;
    // Makes the compute stream wait until piece p has arrived. The layer calls it once for each piece, in order. Rows
    // from the last of the piece's offsets on are undefined.
    virtual PieceRows wait(int p) = 0;
  };
  // Rows of experts on their way to their tokens. It lives while the host enqueues its instruction.
  class Combine {
   public:
    virtual ~Combine() = default;
    // Returns where the layer writes piece p; nothing reads its padding. The layer calls it once for each piece, in
    // order.
    virtual PieceRows target(int p) = 0;
    // The layer calls it when it has enqueued the work that writes piece p on the compute stream, before target(p + 1).
    virtual void written(int p) = 0;
    // With Weights::sent, the layer calls it once, after all pieces. values float32 [T, K], dense: what the layer has
    // written to PieceRows::weights for each assignment, and 0 if it has no row. Work that it enqueues on the compute
    // stream afterwards may read them.
    virtual void finish_weights(const TensorView& values) = 0;
    // The layer calls it once, last. y [T, C] is float32 or bf16, and so is residual, which may be y, or empty for 0.
    // Work that it enqueues on the compute stream afterwards finds the result in y.
    virtual void finish(const TensorView& residual, const TensorView& y) = 0;
  };

  virtual ~TokenExchange() = default;
  // Layers ask an implementation what it needs, for their sizes without `options`, unless one rank has all experts.
  virtual Options options(const Sizes&) const { return {}; }

  // Layers call these three.

  // Once for each micro-batch, in forward: exchanges how many rows there are, and writes the tensors of Routing.
  virtual void route(LayerContext&, const Routing&);
  // Starts one exchange, as combine() does. Between the first and the last call of one there may be calls of others, in
  // the same order on all ranks. x [T, C], dense: float32 or bf16; or, with Options::quantized_rows and without
  // Weights::applied, FP8 with C even, whose bits arrive as they are. Nothing reads rows of tokens without an expert.
  // Work that the layer enqueues on the compute stream after the last wait() may overwrite x.
  virtual std::unique_ptr<Dispatch> dispatch(LayerContext&, const Routing&, const TensorView& x, Weights weights);
  // The rows have this dtype, float32 or bf16, and number of columns.
  virtual std::unique_ptr<Combine> combine(LayerContext&, const Routing&, DType dtype, std::int64_t columns,
                                           Weights weights);

  // Implementations with one row for each assignment share these, which run on the token's rank, on the compute stream,
  // in the order of ops/moe/dispatch.h.

  // Returns a temporary [R, C]: x in the rows of its assignments, times the weights with Weights::applied; and one
  // [R, 1] of the weights.
  static TensorView assignment_rows(LayerContext&, const Routing&, const TensorView& x, Weights weights);
  static TensorView assignment_weights(LayerContext&, const Routing&);
  // What Combine::finish() and finish_weights() compute, from rows [R, C] and from values [R, 1].
  static void sum_assignments(LayerContext&, const Routing&, const TensorView& rows, Weights weights,
                              const TensorView& residual, const TensorView& y);
  static void assignment_values(LayerContext&, const Routing&, const TensorView& of_rows, const TensorView& values);
};

}  // namespace hawser::nn
