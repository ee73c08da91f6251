// Expert parallelism by all-to-all of counted rows, for tests.
#pragma once

#include <algorithm>
#include <cstring>

#include "comm/group.h"
#include "nn/layer.h"
#include "ops/copy/permute_rows.h"
#include "ops/gemm/grouped_gemm.h"

namespace hawser::testing {

// What exchanges of counted rows have in common: route() gathers the counts of all ranks and places what arrives. The
// host does not read how many rows there are. Everything that a caller must not read is NaN. The last element of the
// routing's state says whether the routing is refused: more rows than Sizes::row_bound allows.
class CountedExchange : public nn::TokenExchange {
 public:
  // `pieces`: at most.
  CountedExchange(comm::Group& group, int pieces, bool quantized_rows)
      : group_(group), pieces_(pieces), quantized_rows_(quantized_rows) {}

  void route(nn::LayerContext& ctx, const Routing& r) override {
    ctx.exchange_after_compute();
    Stream& stream = ctx.exchange();
    const std::int64_t experts = r.sizes.experts;
    const TensorView sent = r.counts.rows(0, 1).reshape({experts}),
                     own = ctx.temp(DType::i32, {experts + more_counts()});
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
                    count_more(r, counts + experts);
                  });
    const TensorView all = ctx.temp(DType::i32, {r.sizes.ranks(), own.elements()}), refusal = ctx.refusal();
    group_.all_gather(stream, own, all);
    const std::vector<TensorView> more = gather_more(ctx, r);
    std::vector<Access> accesses = {reads(all),           reads(sent),    writes(r.counts), writes(r.expert_offsets),
                                    writes(r.token_rows), writes(r.state)};
    for (const TensorView& view : more) accesses.push_back(reads(view));
    for (const TensorView& view : {r.offsets, r.experts, r.rows}) accesses.push_back(reads(view));
    if (!refusal.empty()) accesses.push_back(writes(refusal));
    stream.launch({.name = "place_tokens", .kind = OpKind::host, .accesses = std::move(accesses)},
                  [=, this, index = group_.index()] {
                    const bool fits = this->fits(r.sizes, all);
                    if (!fits) *refusal.data<float>() = static_cast<float>(nn::Refusal::expert_rows);
                    receive(r, all, index, fits);
                    place(r);
                    place_more(r, more, fits);
                    *refused(r).data<std::int32_t>() = fits ? 0 : 1;
                  });
    ctx.compute_after_exchange();
  }

 protected:
  comm::Group& group() const { return group_; }
  bool quantized_rows() const { return quantized_rows_; }
  int pieces(const Sizes& s) const { return static_cast<int>(std::min<std::int64_t>(pieces_, s.local_experts)); }

  // Counts that each rank sends to all others besides its E counts of assignments.
  virtual std::int64_t more_counts() const { return 0; }
  virtual void count_more(const Routing&, std::int32_t* /*counts*/) const {}
  // What else route() exchanges, and its own tables; without a fit no row is sent.
  virtual std::vector<TensorView> gather_more(nn::LayerContext&, const Routing&) const { return {}; }
  virtual void place_more(const Routing&, const std::vector<TensorView>& /*gathered*/, bool /*fits*/) const {}
  // The rows that rank q sends for local expert i of a piece arrive at these.
  virtual void arrive(const Routing&, int piece, std::int64_t q, std::int64_t i, std::int32_t count,
                      std::int32_t first) const = 0;

  // Whether the rows of every piece of every rank are within their bounds, from the counts [P, E + more] of all ranks.
  virtual bool fits(const Sizes& s, const TensorView& all) const {
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

  static TensorView refused(const Routing& r) { return r.state.rows(r.sizes.state() - 1, 1); }

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
  static void exchange(nn::LayerContext& ctx, comm::Group& group, const comm::CountedRows& send,
                       const comm::CountedRows& receive, std::int64_t bound, double expected) {
    Stream& stream = ctx.exchange();
    const std::int64_t workspace = comm::all_to_all_v_workspace(send, bound, group.size(), stream.target());
    group.all_to_all_v(stream, send, receive, bound, workspace > 0 ? ctx.temp(DType::u8, {workspace}) : TensorView(),
                       expected);
  }

  // A dispatch that has enqueued all its pieces on the exchange stream.
  class Arriving : public Dispatch {
   public:
    PieceRows wait(int p) override {
      const Arrived& of = arrived_[static_cast<std::size_t>(p)];
      ctx_.compute().wait(of.event);
      return of.rows;
    }

   protected:
    explicit Arriving(nn::LayerContext& ctx) : ctx_(ctx) {}
    // Of the next piece, once what writes its rows is enqueued.
    void add(const PieceRows& rows) { arrived_.push_back({rows, ctx_.exchange().record_event()}); }

   private:
    struct Arrived {
      PieceRows rows;
      Event event;
    };
    nn::LayerContext& ctx_;
    std::vector<Arrived> arrived_;
  };

 private:
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

  void place(const Routing& r) const {
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

  comm::Group& group_;
  int pieces_;
  bool quantized_rows_;
};

// One row for each assignment: sends the rows of each piece of experts by one all-to-all of counted rows, from where
// dispatch_rows writes them to where the layer reads them. No buffer has more rows than the layer's own.
class PiecesExchange : public CountedExchange {
 public:
  explicit PiecesExchange(comm::Group& group, int pieces = 1, bool quantized_rows = false)
      : CountedExchange(group, pieces, quantized_rows) {}

  // The slots of each piece: rows of tokens and rows of experts, counts and offsets.
  Options options(const Sizes& s) const override {
    return {.pieces = pieces(s), .state = 4 * s.experts + 1, .quantized_rows = quantized_rows()};
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
  // Of rank q's local expert i of piece p: slot q * piece_experts + i.
  static comm::CountedRows slots(const Routing& r, int p, bool of_experts, const TensorView& rows) {
    const std::int64_t count = r.sizes.ranks() * r.sizes.piece_experts(),
                       first = (4 * p + (of_experts ? 2 : 0)) * count;
    return {rows, r.state.rows(first, count), r.state.rows(first + count, count)};
  }
  void arrive(const Routing& r, int p, std::int64_t q, std::int64_t i, std::int32_t count,
              std::int32_t first) const override {
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
    exchange(ctx, group(), slots(r, p, !there, from), slots(r, p, there, to), r.sizes.max_sent_to_expert(),
             r.sizes.expected_sent() * static_cast<double>(r.sizes.ranks()));
  }

  class Sent : public Arriving {
   public:
    Sent(PiecesExchange& seam, nn::LayerContext& ctx, const Routing& r, const TensorView& x, Weights weights)
        : Arriving(ctx) {
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
        add(arrived);
      }
    }
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
};

}  // namespace hawser::testing
