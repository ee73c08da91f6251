// Expert parallelism by all-to-all of counted rows, for tests.
#pragma once

#include <algorithm>
#include <cstring>

#include "comm/group.h"
#include "nn/layer.h"
#include "ops/copy/permute_rows.h"
#include "ops/gemm/grouped_gemm.h"

namespace hawser::testing {

// One row for each assignment: sends the rows of each piece of experts by one all-to-all of counted rows, from where
// dispatch_rows writes them to where the layer reads them. No buffer has more rows than the layer's own. route()
// gathers the counts of all ranks and places what arrives. The host does not read how many rows there are. Everything
// that a caller must not read is NaN. The last element of the routing's state says whether the routing is refused: more
// rows than Sizes::row_bound allows.
class PiecesExchange : public nn::TokenExchange {
 public:
  // `pieces`: at most.
  explicit PiecesExchange(comm::Group& group, int pieces = 1, bool quantized_rows = false)
      : group_(group), pieces_(pieces), quantized_rows_(quantized_rows) {}

  // The slots of each piece: rows of tokens and rows of experts, counts and offsets.
  Options options(const Sizes& s) const override {
    return {.pieces = pieces(s), .state = 4 * s.experts + 1, .quantized_rows = quantized_rows_};
  }

  void route(nn::LayerContext& ctx, const Routing& r) override {
    ctx.exchange_after_compute();
    Stream& stream = ctx.exchange();
    const std::int64_t experts = r.sizes.experts;
    const TensorView sent = r.counts.rows(0, 1).reshape({experts}), own = ctx.temp(DType::i32, {experts});
    stream.launch({.name = "count_tokens",
                   .kind = OpKind::host,
                   .accesses = {reads(r.offsets), reads(r.assignments), reads(r.experts), reads(r.rows), writes(sent),
                                writes(own)}},
                  [=, this] {
                    const auto *offsets = r.offsets.data<std::int32_t>(), *of_row = r.assignments.data<std::int32_t>();
                    auto* const counts = own.data<std::int32_t>();
                    for (std::int64_t e = 0; e < experts; ++e) {
                      counts[e] = static_cast<std::int32_t>(
                          std::count_if(of_row + offsets[e], of_row + offsets[e + 1], [](auto a) { return a >= 0; }));
                    }
                    std::copy_n(counts, experts, sent.data<std::int32_t>());
                  });
    const TensorView all = ctx.temp(DType::i32, {r.sizes.ranks(), own.elements()}), refusal = ctx.refusal();
    group_.all_gather(stream, own, all);
    std::vector<Access> accesses = {reads(all),           reads(sent),    writes(r.counts), writes(r.expert_offsets),
                                    writes(r.token_rows), writes(r.state)};
    for (const TensorView& view : {r.offsets, r.experts, r.rows}) accesses.push_back(reads(view));
    if (!refusal.empty()) accesses.push_back(writes(refusal));
    stream.launch({.name = "place_tokens", .kind = OpKind::host, .accesses = std::move(accesses)},
                  [=, this, index = group_.index()] {
                    const bool fits = PiecesExchange::fits(r.sizes, all);
                    if (!fits) *refusal.data<float>() = static_cast<float>(nn::Refusal::expert_rows);
                    receive(r, all, index, fits);
                    place(r);
                    *refused(r).data<std::int32_t>() = fits ? 0 : 1;
                  });
    ctx.compute_after_exchange();
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
  int pieces(const Sizes& s) const { return static_cast<int>(std::min<std::int64_t>(pieces_, s.local_experts)); }

  // Whether the rows of every piece of every rank are within their bounds, from the counts [P, E] of all ranks.
  static bool fits(const Sizes& s, const TensorView& all) {
    for (std::int64_t first = 0; first < s.experts; first += s.piece_experts()) {
      std::int64_t rows = 0;
      for (std::int64_t e = first; e < first + s.piece_experts(); ++e) {
        std::int64_t count = 0;
        for (std::int64_t rank = 0; rank < s.ranks(); ++rank) count += count_of(all, rank, e);
        rows += round_up(count, ops::kGroupRows);
      }
      if (rows > s.piece_rows()) return false;
    }
    return true;
  }
  static std::int32_t count_of(const TensorView& all, std::int64_t rank, std::int64_t e) {
    return all.data<std::int32_t>()[rank * all.size(1) + e];
  }

  static TensorView refused(const Routing& r) { return r.state.rows(r.sizes.options.state - 1, 1); }

  static void poison(const TensorView& view) {
    std::memset(view.raw(), 0xff, static_cast<std::size_t>(view.bytes()));  // NaN
  }
  // Before a piece arrives: its rows and padding are zeros.
  static void clear_padding(Stream& stream, const Routing& r, int p, const TensorView& rows) {
    const TensorView offsets = r.piece_offsets(p);
    stream.launch({.name = "clear_padding", .kind = OpKind::copy, .accesses = {reads(offsets), writes(rows)}}, [=] {
      poison(rows);
      const std::int64_t used = offsets.data<std::int32_t>()[offsets.elements() - 1];
      if (used > 0) std::memset(rows.raw(), 0, static_cast<std::size_t>(rows.rows(0, used).bytes()));
    });
  }
  // Before rows of tokens return: zeros if none does.
  static void clear_refused(Stream& stream, const Routing& r, const TensorView& rows) {
    const TensorView flag = refused(r);
    stream.launch({.name = "clear_refused", .kind = OpKind::copy, .accesses = {reads(flag), writes(rows)}}, [=] {
      poison(rows);
      if (*flag.data<std::int32_t>() != 0) std::memset(rows.raw(), 0, static_cast<std::size_t>(rows.bytes()));
    });
  }
  // The rows that this rank receives; without a fit it neither sends nor receives any.
  static void receive(const Routing& r, const TensorView& all, int index, bool fits) {
    const Sizes& s = r.sizes;
    auto* const counts = r.counts.data<std::int32_t>();
    for (std::int64_t rank = 0; rank < s.ranks(); ++rank) {
      for (std::int64_t e = 0; e < s.local_experts; ++e) {
        counts[s.experts + rank * s.local_experts + e] = count_of(all, rank, index * s.local_experts + e);
      }
    }
    if (!fits) std::fill_n(counts, 2 * s.experts, 0);
  }

  static void place(const Routing& r) {
    const Sizes& s = r.sizes;
    const auto* const counts = r.counts.data<std::int32_t>();
    auto* const rows = r.token_rows.data<std::int32_t>();
    std::fill_n(rows, s.expert_rows(), ops::kNoRow);
    for (int p = 0; p < s.options.pieces; ++p) {
      auto* const offsets = r.piece_offsets(p).data<std::int32_t>();
      offsets[0] = 0;
      for (std::int64_t i = 0; i < s.piece_experts(); ++i) {
        std::int32_t next = offsets[i];
        for (std::int64_t rank = 0; rank < s.ranks(); ++rank) {
          const std::int32_t count = counts[s.experts + rank * s.local_experts + p * s.piece_experts() + i];
          arrive(r, p, rank, i, count, next);
          next += count;
        }
        for (std::int32_t row = offsets[i]; row < next; ++row) rows[p * s.piece_rows() + row] = row;
        offsets[i + 1] = offsets[i] + static_cast<std::int32_t>(round_up(next - offsets[i], ops::kGroupRows));
      }
    }
  }

  // Of rank q's local expert i of piece p: slot q * piece_experts + i.
  static comm::CountedRows slots(const Routing& r, int p, bool of_experts, const TensorView& rows) {
    const std::int64_t count = r.sizes.ranks() * r.sizes.piece_experts(),
                       first = (4 * p + (of_experts ? 2 : 0)) * count;
    return {rows, r.state.rows(first, count), r.state.rows(first + count, count)};
  }
  // The rows that rank q sends for local expert i of piece p arrive at [first, first + count).
  static void arrive(const Routing& r, int p, std::int64_t q, std::int64_t i, std::int32_t count, std::int32_t first) {
    const Sizes& s = r.sizes;
    const std::int64_t slot = q * s.piece_experts() + i, e = q * s.local_experts + p * s.piece_experts() + i;
    const comm::CountedRows tokens = slots(r, p, false, {}), experts = slots(r, p, true, {});
    tokens.counts.data<std::int32_t>()[slot] = r.counts.data<std::int32_t>()[e];
    tokens.offsets.data<std::int32_t>()[slot] = r.offsets.data<std::int32_t>()[e];
    experts.counts.data<std::int32_t>()[slot] = count;
    experts.offsets.data<std::int32_t>()[slot] = first;
  }

  void send(nn::LayerContext& ctx, const Routing& r, int p, const TensorView& from, const TensorView& to, bool there) {
    if (there) {
      clear_padding(ctx.exchange(), r, p, to);
    } else if (p == 0) {
      clear_refused(ctx.exchange(), r, to);
    }
    const comm::CountedRows sent = slots(r, p, !there, from), received = slots(r, p, there, to);
    const std::int64_t bound = r.sizes.max_sent_to_expert();
    Stream& stream = ctx.exchange();
    const std::int64_t workspace = comm::all_to_all_v_workspace(sent, bound, group_.size(), stream.target());
    group_.all_to_all_v(stream, sent, received, bound, workspace > 0 ? ctx.temp(DType::u8, {workspace}) : TensorView(),
                        r.sizes.expected_sent() * static_cast<double>(r.sizes.ranks()));
  }

  // A dispatch that has enqueued all its pieces on the exchange stream.
  class Sent : public Dispatch {
   public:
    Sent(PiecesExchange& seam, nn::LayerContext& ctx, const Routing& r, const TensorView& x, Weights weights)
        : ctx_(ctx) {
      const TensorView rows = assignment_rows(ctx, r, x, weights),
                       of_rows = weights == Weights::sent ? assignment_weights(ctx, r) : TensorView();
      ctx.exchange_after_compute();
      for (int p = 0; p < r.sizes.options.pieces; ++p) {
        PieceRows arrived{.rows = ctx.temp(x.dtype(), {r.sizes.piece_rows(), x.size(1)}), .weights = {}};
        seam.send(ctx, r, p, rows, arrived.rows, true);
        if (weights == Weights::sent) {
          arrived.weights = ctx.temp(DType::f32, {r.sizes.piece_rows(), 1});
          seam.send(ctx, r, p, of_rows, arrived.weights, true);
        }
        arrived_.push_back({arrived, ctx.exchange().record_event()});
      }
    }
    PieceRows wait(int p) override {
      const Arrived& of = arrived_[static_cast<std::size_t>(p)];
      ctx_.compute().wait(of.event);
      return of.rows;
    }

   private:
    struct Arrived {
      PieceRows rows;
      Event event;
    };
    nn::LayerContext& ctx_;
    std::vector<Arrived> arrived_;
  };

  class Returned : public Combine {
   public:
    Returned(PiecesExchange& seam, nn::LayerContext& ctx, const Routing& r, DType dtype, std::int64_t columns,
             Weights weights)
        : seam_(seam), ctx_(ctx), routing_(r), weights_(weights) {
      results_.rows = ctx.temp(dtype, {r.sizes.rows(), columns});
      if (weights == Weights::sent) results_.weights = ctx.temp(DType::f32, {r.sizes.rows(), 1});
    }
    PieceRows target(int) override {
      target_.rows = ctx_.temp(results_.rows.dtype(), {routing_.sizes.piece_rows(), results_.rows.size(1)});
      if (weights_ == Weights::sent) target_.weights = ctx_.temp(DType::f32, {routing_.sizes.piece_rows(), 1});
      return target_;
    }
    void written(int p) override {
      ctx_.exchange_after_compute();
      seam_.send(ctx_, routing_, p, target_.rows, results_.rows, false);
      if (weights_ == Weights::sent) seam_.send(ctx_, routing_, p, target_.weights, results_.weights, false);
    }
    void finish_weights(const TensorView& values) override {
      ctx_.compute_after_exchange();
      assignment_values(ctx_, routing_, results_.weights, values);
    }
    void finish(const TensorView& residual, const TensorView& y) override {
      ctx_.compute_after_exchange();
      sum_assignments(ctx_, routing_, results_.rows, weights_, residual, y);
    }

   private:
    PiecesExchange& seam_;
    nn::LayerContext& ctx_;
    Routing routing_;
    Weights weights_;
    PieceRows target_, results_;
  };

  comm::Group& group_;
  int pieces_;
  bool quantized_rows_;
};

// plan::LayoutChoices::token_exchange.
inline auto exchange_in_pieces(int pieces, bool quantized_rows = false) {
  return [=](comm::Group& expert) { return std::make_shared<PiecesExchange>(expert, pieces, quantized_rows); };
}

}  // namespace hawser::testing
