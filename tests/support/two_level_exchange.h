// Expert parallelism over nodes, for tests.
#pragma once

#include <functional>
#include <memory>

#include "comm/mesh.h"
#include "ops/moe/dispatch.h"
#include "support/node_tables.h"
#include "support/token_exchange.h"

namespace hawser::testing {

// Two hops. Over the node boundary goes one row for each (token, node with experts of it), to the rank at the sender's
// place in that node: the middle. It copies the row to the experts in its node, piece by piece. On the way back it sums
// the rows of its node's experts, with their weights, and one row returns over the boundary for each that came. N nodes
// of M ranks: part n * M + m of the experts is on rank m of node n.
//
// Both hops are ops of ops/moe/dispatch.h on tables that route() writes. On the token's rank, nodes are in the place of
// experts; in the middle, the rows that have arrived are in that of tokens.
class TwoLevelExchange : public CountedExchange {
 public:
  // Called on the stream with the rows that this rank sends to each node, there or back. [N]
  using Crossing = std::function<void(const std::int32_t* rows)>;

  explicit TwoLevelExchange(comm::Mesh& mesh, int pieces = 1, bool quantized_rows = false, Crossing crossing = {})
      : CountedExchange(mesh.expert(), pieces, quantized_rows),
        node_(mesh.expert_node()),
        nodes_(mesh.expert_nodes()),
        shape_{.nodes = nodes_.size(), .places = node_.size(), .own = nodes_.index()},
        crossing_(std::move(crossing)) {}

  Options options(const Sizes& s) const override {
    Sizes with = s;
    with.options.pieces = pieces(s);
    return {.pieces = with.options.pieces,
            .state = NodeTables::elements(shape_, with) + 1,
            .quantized_rows = quantized_rows()};
  }

  std::unique_ptr<Dispatch> dispatch(nn::LayerContext& ctx, const Routing& r, const TensorView& x,
                                     Weights weights) override {
    return std::make_unique<Sent>(*this, ctx, r, x, weights);
  }
  std::unique_ptr<Combine> combine(nn::LayerContext& ctx, const Routing& r, DType dtype, std::int64_t columns,
                                   Weights weights) override {
    return std::make_unique<Returned>(*this, ctx, r, dtype, columns, weights);
  }

 private:
  // The expert of each assignment that has a row, otherwise -1.
  static std::int32_t expert_of(const Routing& r, std::int64_t assignment) {
    const bool has_row = r.rows.data<std::int32_t>()[assignment] != ops::kNoRow;
    return has_row ? r.experts.data<std::int32_t>()[assignment] : -1;
  }

  // The tokens that go to each node.
  std::int64_t more_counts() const override { return nodes_.size(); }
  void count_more(const Routing& r, std::int32_t* counts) const override {
    std::vector<std::int32_t> experts(static_cast<std::size_t>(r.sizes.per_token));
    std::fill_n(counts, nodes_.size(), 0);
    for (std::int64_t t = 0; t < r.sizes.tokens; ++t) {
      for (std::size_t k = 0; k < experts.size(); ++k) {
        experts[k] = expert_of(r, t * r.sizes.per_token + static_cast<std::int64_t>(k));
      }
      for (int node = 0; node < nodes_.size(); ++node) {
        counts[node] += shape_.visits(r.sizes, experts.data(), node) ? 1 : 0;
      }
    }
  }
  bool fits(const Sizes& s, const TensorView& all) const override {
    for (int node = 0; node < nodes_.size(); ++node) {
      for (int place = 0; place < node_.size(); ++place) {
        std::int64_t arrive = 0;
        std::vector<std::int64_t> copied(static_cast<std::size_t>(s.options.pieces));
        for (int from = 0; from < nodes_.size(); ++from) {
          const std::int64_t rank = from * node_.size() + place;
          arrive += count_of(all, rank, s.experts + node);
          const std::int64_t experts = node_.size() * s.local_experts;
          for (std::int64_t e = node * experts; e < (node + 1) * experts; ++e) {
            copied[static_cast<std::size_t>(e % s.local_experts / s.piece_experts())] += count_of(all, rank, e);
          }
        }
        if (arrive > shape_.middle_rows(s) || std::ranges::max(copied) > shape_.copied_rows(s)) return false;
      }
    }
    return CountedExchange::fits(s, all);
  }
  // Experts and weights of the tokens of this rank's place in all nodes: [N, T, K] each.
  std::vector<TensorView> gather_more(nn::LayerContext& ctx, const Routing& r) const override {
    const Sizes& s = r.sizes;
    const TensorView own = ctx.temp(DType::i32, {s.tokens, s.per_token}), weights = r.weights;
    ctx.exchange().launch(
        {.name = "assigned_experts", .kind = OpKind::host, .accesses = {reads(r.experts), reads(r.rows), writes(own)}},
        [=] {
          for (std::int64_t a = 0; a < own.elements(); ++a) {
            own.data<std::int32_t>()[a] = expert_of(r, a);
          }
        });
    const Shape shape{nodes_.size(), s.tokens, s.per_token};
    std::vector<TensorView> all = {ctx.temp(DType::i32, shape), ctx.temp(DType::f32, shape)};
    nodes_.all_gather(ctx.exchange(), own, all[0]);
    nodes_.all_gather(ctx.exchange(), weights, all[1]);
    return all;
  }
  // q: rank at place q % M of node q / M.
  void arrive(const Routing& r, int p, std::int64_t q, std::int64_t i, std::int32_t count,
              std::int32_t first) const override {
    const NodeTables tables(shape_, r);
    const comm::CountedRows received = tables.second_hop(p, true, {});
    const std::int64_t slot = tables.slot(q % node_.size(), q / node_.size(), i);
    received.counts.data<std::int32_t>()[slot] = count;
    received.offsets.data<std::int32_t>()[slot] = first;
  }
  void place_more(const Routing& r, const std::vector<TensorView>& gathered, bool fits) const override {
    const auto* const all = gathered[0].data<std::int32_t>();
    std::vector<std::int32_t> experts(all, all + gathered[0].elements());
    if (!fits) std::ranges::fill(experts, -1);
    NodeTables(shape_, r).place(experts.data(), gathered[1].data<float>());
  }

  // Rows over the boundary, and back.
  void cross(nn::LayerContext& ctx, const Routing& r, const TensorView& from, const TensorView& to, bool there) const {
    const NodeTables tables(shape_, r);
    const comm::CountedRows send = tables.first_hop(!there, from);
    if (crossing_) {
      ctx.exchange().launch({.name = "count_crossing", .kind = OpKind::host, .accesses = {reads(send.counts)}},
                            [count = crossing_, counts = send.counts] { count(counts.data<std::int32_t>()); });
    }
    exchange(ctx, nodes_, send, tables.first_hop(there, to), r.sizes.tokens,
             static_cast<double>(shape_.leaving_rows(r.sizes)));
  }
  void within(nn::LayerContext& ctx, const Routing& r, int p, const TensorView& from, const TensorView& to,
              bool there) const {
    const NodeTables tables(shape_, r);
    exchange(ctx, node_, tables.second_hop(p, !there, from), tables.second_hop(p, there, to),
             r.sizes.max_sent_to_expert(), r.sizes.expected_sent() * static_cast<double>(r.sizes.ranks()));
  }
  static void poison_rows(Stream& stream, const TensorView& rows) {
    stream.launch({.name = "poison", .kind = OpKind::copy, .accesses = {writes(rows)}}, [=] { poison(rows); });
  }

  class Sent : public Arriving {
   public:
    Sent(const TwoLevelExchange& seam, nn::LayerContext& ctx, const Routing& r, const TensorView& x, Weights weights)
        : Arriving(ctx) {
      const Sizes& s = r.sizes;
      const NodeTables tables(seam.shape_, r);
      ctx.exchange_after_compute();
      Stream& stream = ctx.exchange();
      const auto temp = [&](std::int64_t rows) { return ctx.temp(x.dtype(), {rows, x.size(1)}); };
      const TensorView leaving = temp(seam.shape_.leaving_rows(s)), middle = temp(seam.shape_.middle_rows(s));
      ops::dispatch_rows(stream, {.x = x,
                                  .assignments = tables.leaving_assignments(),
                                  .offsets = tables.leaving(),
                                  .y = leaving,
                                  .per_token = seam.nodes_.size()});
      poison_rows(stream, middle);
      seam.cross(ctx, r, leaving, middle, true);
      for (int p = 0; p < s.options.pieces; ++p) {
        const TensorView copied = temp(seam.shape_.copied_rows(s));
        ops::dispatch_rows(stream, {.x = middle,
                                    .assignments = tables.copied_assignments(p),
                                    .offsets = tables.copied(p),
                                    .weights = weights == Weights::applied ? tables.copied_weights() : TensorView(),
                                    .y = copied,
                                    .per_token = s.per_token});
        PieceRows arrived{.rows = temp(s.piece_rows()), .weights = {}};
        clear_padding(stream, r, p, arrived.rows);
        seam.within(ctx, r, p, copied, arrived.rows, true);
        if (weights == Weights::sent) {
          const TensorView of_copied = ctx.temp(DType::f32, {seam.shape_.copied_rows(s), 1});
          ops::dispatch_rows(stream,
                             {.x = tables.copied_weights().reshape({seam.shape_.middle_rows(s) * s.per_token, 1}),
                              .assignments = tables.copied_assignments(p),
                              .offsets = tables.copied(p),
                              .y = of_copied});
          arrived.weights = ctx.temp(DType::f32, {s.piece_rows(), 1});
          clear_padding(stream, r, p, arrived.weights);
          seam.within(ctx, r, p, of_copied, arrived.weights, true);
        }
        add(arrived);
      }
    }
  };

  class Returned : public Combine {
   public:
    Returned(const TwoLevelExchange& seam, nn::LayerContext& ctx, const Routing& r, DType dtype, std::int64_t columns,
             Weights weights)
        : seam_(seam), ctx_(ctx), routing_(r), weights_(weights) {
      const std::int64_t copied = r.sizes.options.pieces * seam.shape_.copied_rows(r.sizes);
      copied_.rows = ctx.temp(dtype, {copied, columns});
      if (weights == Weights::sent) copied_.weights = ctx.temp(DType::f32, {copied, 1});
    }
    PieceRows target(int) override {
      target_.rows = ctx_.temp(copied_.rows.dtype(), {routing_.sizes.piece_rows(), copied_.rows.size(1)});
      if (weights_ == Weights::sent) target_.weights = ctx_.temp(DType::f32, {routing_.sizes.piece_rows(), 1});
      return target_;
    }
    void written(int p) override {
      ctx_.exchange_after_compute();
      if (p == 0) {
        poison_rows(ctx_.exchange(), copied_.rows);
        if (weights_ == Weights::sent) poison_rows(ctx_.exchange(), copied_.weights);
      }
      const auto back = [&](const TensorView& from, const TensorView& all) {
        const std::int64_t rows = seam_.shape_.copied_rows(routing_.sizes);
        seam_.within(ctx_, routing_, p, from, all.rows(p * rows, rows), false);
      };
      back(target_.rows, copied_.rows);
      if (weights_ == Weights::sent) back(target_.weights, copied_.weights);
      if (p + 1 == routing_.sizes.options.pieces) return_sums();
    }
    void finish_weights(const TensorView& values) override {
      ctx_.compute_after_exchange();
      const std::int64_t each = routing_.sizes.per_token;
      ops::combine_rows(ctx_.compute(), {.x = returned_.weights.reshape({returned_.weights.elements(), 1}),
                                         .rows = NodeTables(seam_.shape_, routing_).value_rows(),
                                         .y = values.reshape({routing_.sizes.tokens * each, 1})});
    }
    void finish(const TensorView& residual, const TensorView& y) override {
      ctx_.compute_after_exchange();
      ops::combine_rows(ctx_.compute(), {.x = returned_.rows,
                                         .rows = NodeTables(seam_.shape_, routing_).leaving_rows(),
                                         .residual = residual,
                                         .y = y});
    }

   private:
    // A row of the node's sum for each that came, and a row of K values.
    void return_sums() {
      const Sizes& s = routing_.sizes;
      const NodeTables tables(seam_.shape_, routing_);
      Stream& stream = ctx_.exchange();
      const std::int64_t middle = seam_.shape_.middle_rows(s), leaving = seam_.shape_.leaving_rows(s),
                         each = s.per_token;
      const TensorView sums = ctx_.temp(copied_.rows.dtype(), {middle, copied_.rows.size(1)});
      ops::combine_rows(stream, {.x = copied_.rows,
                                 .rows = tables.copied_rows(),
                                 .weights = weights_ == Weights::applied ? tables.copied_weights() : TensorView(),
                                 .y = sums});
      const auto cross = [&](const TensorView& from) {
        const TensorView to = ctx_.temp(from.dtype(), {leaving, from.size(1)});
        poison_rows(stream, to);
        seam_.cross(ctx_, routing_, from, to, false);
        return to;
      };
      returned_.rows = cross(sums);
      if (weights_ != Weights::sent) return;
      const TensorView values = ctx_.temp(DType::f32, {middle, each});
      ops::combine_rows(stream, {.x = copied_.weights,
                                 .rows = tables.copied_rows().reshape({middle * each, 1}),
                                 .y = values.reshape({middle * each, 1})});
      returned_.weights = cross(values);
    }

    const TwoLevelExchange& seam_;
    nn::LayerContext& ctx_;
    Routing routing_;
    Weights weights_;
    PieceRows target_, copied_, returned_;
  };

  comm::Group &node_, &nodes_;
  Nodes shape_;
  Crossing crossing_;
};

// Of a mesh's expert ranks.
inline std::shared_ptr<nn::TokenExchange> token_exchange(comm::Mesh& mesh, int pieces = 1,
                                                         bool quantized_rows = false) {
  if (mesh.sizes().expert_node > 1) return std::make_shared<TwoLevelExchange>(mesh, pieces, quantized_rows);
  return std::make_shared<PiecesExchange>(mesh.expert(), pieces, quantized_rows);
}

}  // namespace hawser::testing
