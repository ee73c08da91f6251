// Expert parallelism by all-to-all of counted rows, for tests.
#pragma once

#include <algorithm>
#include <cstring>

#include "comm/group.h"
#include "nn/layer.h"
#include "ops/copy/permute_rows.h"
#include "ops/gemm/grouped_gemm.h"

namespace hawser::testing {

// Sends the rows of each piece of experts by one all-to-all of counted rows, from where the layer has them to where it
// reads them: no buffer has more rows than the layer's own. The host does not read how many there are. Everything that
// a caller must not read is NaN. The routing's state has the slots of each piece, and whether the routing is refused:
// more rows than Sizes::row_bound allows. A derived class may send over several hops, each in another group.
class PiecesExchange : public nn::TokenExchange {
 public:
  // `pieces`: at most.
  explicit PiecesExchange(comm::Group& group, int pieces = 1) : group_(group), pieces_(pieces) {}

  Options options(std::int64_t experts, std::int64_t local_experts) const override {
    const auto pieces = static_cast<int>(std::min<std::int64_t>(pieces_, local_experts));
    return {.pieces = pieces, .state = 4 * hops() * experts + 1};
  }

  void route(nn::LayerContext& ctx, const Routing& r) override {
    ctx.exchange_after_compute();
    Stream& stream = ctx.exchange();
    const std::int64_t experts = r.offsets.size(0) - 1;
    const TensorView sent = r.counts.rows(0, 1).reshape({experts});
    stream.launch({.name = "count_tokens",
                   .kind = OpKind::host,
                   .accesses = {reads(r.offsets), reads(r.assignments), writes(sent)}},
                  [=] {
                    const auto *offsets = r.offsets.data<std::int32_t>(), *of_row = r.assignments.data<std::int32_t>();
                    for (std::int64_t e = 0; e < experts; ++e) {
                      sent.data<std::int32_t>()[e] = static_cast<std::int32_t>(
                          std::count_if(of_row + offsets[e], of_row + offsets[e + 1], [](auto a) { return a >= 0; }));
                    }
                  });
    const TensorView all = ctx.temp(DType::i32, {r.sizes.ranks(), experts}), refusal = ctx.refusal();
    group_.all_gather(stream, sent, all);
    std::vector<Access> accesses = {reads(all),           reads(sent),    writes(r.counts), writes(r.expert_offsets),
                                    writes(r.token_rows), writes(r.state)};
    if (!refusal.empty()) accesses.push_back(writes(refusal));
    stream.launch({.name = "place_tokens", .kind = OpKind::host, .accesses = std::move(accesses)},
                  [=, this, index = group_.index()] {
                    const bool fits = this->fits(r.sizes, all);
                    if (!fits) *refusal.data<float>() = static_cast<float>(nn::Refusal::expert_rows);
                    receive(r, all, index, fits);
                    place(r, all, fits);
                    *refused(r).data<std::int32_t>() = fits ? 0 : 1;
                  });
    ctx.compute_after_exchange();
  }

  std::unique_ptr<Dispatch> dispatch(nn::LayerContext& ctx, const Routing& r, std::vector<TensorView> rows) override {
    return std::make_unique<Sent>(*this, ctx, r, std::move(rows));
  }
  std::unique_ptr<Combine> combine(nn::LayerContext& ctx, const Routing& r, std::vector<Columns> columns) override {
    return std::make_unique<Returned>(*this, ctx, r, columns);
  }

 protected:
  // Hop h is an all-to-all in hop_group(h), from the slots of table 2 h to those of table 2 h + 1.
  virtual int hops() const { return 1; }
  virtual comm::Group& hop_group(int /*hop*/) const { return group_; }
  virtual std::int64_t rows_between(const Sizes&) const { return 0; }  // after a hop that is not the last one
  // In the last table, the slot of the rows that rank q sends for local expert i of a piece.
  virtual std::int64_t expert_slot(const Sizes& s, std::int64_t q, std::int64_t i) const {
    return q * s.piece_experts() + i;
  }
  // Whether the rows of every piece of every rank are within their bounds, from the rows [P, E] that all ranks send.
  virtual bool fits(const Sizes& s, const TensorView& all) const {
    for (std::int64_t first = 0; first < s.experts; first += s.piece_experts()) {
      std::int64_t rows = 0;
      for (std::int64_t e = first; e < first + s.piece_experts(); ++e) {
        std::int64_t count = 0;
        for (std::int64_t rank = 0; rank < s.ranks(); ++rank) count += all.data<std::int32_t>()[rank * s.experts + e];
        rows += round_up(count, ops::kGroupRows);
      }
      if (rows > s.piece_rows()) return false;
    }
    return true;
  }

  // The rows that this rank receives; without a fit it neither sends nor receives any.
  static void receive(const Routing& r, const TensorView& all, int index, bool fits) {
    const Sizes& s = r.sizes;
    auto* const counts = r.counts.data<std::int32_t>();
    for (std::int64_t rank = 0; rank < s.ranks(); ++rank) {
      for (std::int64_t e = 0; e < s.local_experts; ++e) {
        counts[s.experts + rank * s.local_experts + e] =
            all.data<std::int32_t>()[rank * s.experts + index * s.local_experts + e];
      }
    }
    if (!fits) std::fill_n(counts, 2 * s.experts, 0);
  }

  // Slots of a piece, as counts and offsets in the state. Table 0 has the rows of tokens: of rank q's local expert i
  // slot q * piece_experts + i. The last table has the rows of experts.
  comm::CountedRows slots(const Routing& r, int p, int table, const TensorView& rows) const {
    const std::int64_t count = r.sizes.ranks() * r.sizes.piece_experts(), first = (4 * hops() * p + 2 * table) * count;
    return {rows, r.state.rows(first, count), r.state.rows(first + count, count)};
  }
  // The other tables of a piece. Without a fit no row is sent.
  virtual void place_between(const Routing&, int /*piece*/, const TensorView& /*all*/, bool /*fits*/) const {}

 private:
  static TensorView refused(const Routing& r) { return r.state.rows(r.sizes.state() - 1, 1); }

  void place(const Routing& r, const TensorView& all, bool fits) const {
    const Sizes& s = r.sizes;
    const auto *counts = r.counts.data<std::int32_t>(), *token_offsets = r.offsets.data<std::int32_t>();
    auto* const rows = r.token_rows.data<std::int32_t>();
    std::fill_n(rows, s.expert_rows(), ops::kNoRow);
    for (int p = 0; p < s.options.pieces; ++p) {
      auto* const offsets = r.piece_offsets(p).data<std::int32_t>();
      const comm::CountedRows tokens = slots(r, p, 0, {}), experts = slots(r, p, 2 * hops() - 1, {});
      offsets[0] = 0;
      for (std::int64_t i = 0; i < s.piece_experts(); ++i) {
        std::int32_t next = offsets[i];
        for (std::int64_t rank = 0; rank < s.ranks(); ++rank) {
          const std::int64_t sent = rank * s.local_experts + p * s.piece_experts() + i,
                             arrives = s.experts + rank * s.local_experts + p * s.piece_experts() + i;
          const std::int64_t from = rank * s.piece_experts() + i, to = expert_slot(s, rank, i);
          tokens.counts.data<std::int32_t>()[from] = counts[sent];
          tokens.offsets.data<std::int32_t>()[from] = token_offsets[sent];
          experts.counts.data<std::int32_t>()[to] = counts[arrives];
          experts.offsets.data<std::int32_t>()[to] = next;
          next += counts[arrives];
        }
        for (std::int32_t row = offsets[i]; row < next; ++row) rows[p * s.piece_rows() + row] = row;
        offsets[i + 1] = offsets[i] + static_cast<std::int32_t>(round_up(next - offsets[i], ops::kGroupRows));
      }
      place_between(r, p, all, fits);
    }
  }

  static void poison(const TensorView& view) {
    std::memset(view.raw(), 0xff, static_cast<std::size_t>(view.bytes()));  // NaN
  }

  // Exchanges the rows of a piece. `there`: from rows of tokens to rows of experts; otherwise back.
  void exchange(nn::LayerContext& ctx, const Routing& r, int p, const TensorView& from, const TensorView& to,
                bool there) {
    Stream& stream = ctx.exchange();
    if (there) {
      const TensorView offsets = r.piece_offsets(p);
      stream.launch({.name = "clear_padding", .kind = OpKind::copy, .accesses = {reads(offsets), writes(to)}}, [=] {
        poison(to);
        const std::int64_t used = offsets.data<std::int32_t>()[offsets.elements() - 1];
        if (used > 0) std::memset(to.raw(), 0, static_cast<std::size_t>(to.rows(0, used).bytes()));
      });
    } else if (p == 0) {
      const TensorView flag = refused(r);
      stream.launch({.name = "clear_refused", .kind = OpKind::copy, .accesses = {reads(flag), writes(to)}}, [=] {
        poison(to);
        if (*flag.data<std::int32_t>() != 0) std::memset(to.raw(), 0, static_cast<std::size_t>(to.bytes()));
      });
    }
    const std::int64_t bound = r.sizes.max_sent_to_expert();
    TensorView rows = from;
    for (int k = 0; k < hops(); ++k) {
      const int hop = there ? k : hops() - 1 - k, source = there ? 2 * hop : 2 * hop + 1;
      const TensorView next = k + 1 == hops() ? to : ctx.temp(from.dtype(), {rows_between(r.sizes), from.size(1)});
      const comm::CountedRows send = slots(r, p, source, rows), receive = slots(r, p, source ^ 1, next);
      comm::Group& group = hop_group(hop);
      const std::int64_t workspace = comm::all_to_all_v_workspace(send, bound, group.size(), stream.target());
      group.all_to_all_v(stream, send, receive, bound, workspace > 0 ? ctx.temp(DType::u8, {workspace}) : TensorView(),
                         r.sizes.expected_sent() * static_cast<double>(r.sizes.ranks()));
      rows = next;
    }
  }

  class Sent : public Dispatch {
   public:
    Sent(PiecesExchange& seam, nn::LayerContext& ctx, const Routing& r, const std::vector<TensorView>& rows)
        : ctx_(ctx), arrived_(static_cast<std::size_t>(r.sizes.options.pieces)) {
      ctx.exchange_after_compute();
      for (int p = 0; p < r.sizes.options.pieces; ++p) {
        for (const TensorView& of : rows) {
          auto& pieces = arrived_[static_cast<std::size_t>(p)].rows;
          pieces.push_back(ctx.temp(of.dtype(), {r.sizes.piece_rows(), of.size(1)}));
          seam.exchange(ctx, r, p, of, pieces.back(), true);
        }
        arrived_[static_cast<std::size_t>(p)].event = ctx.exchange().record_event();
      }
    }
    std::vector<TensorView> wait(int p) override {
      const Arrived& of = arrived_[static_cast<std::size_t>(p)];
      ctx_.compute().wait(of.event);
      return of.rows;
    }

   private:
    struct Arrived {
      std::vector<TensorView> rows;
      Event event;
    };
    nn::LayerContext& ctx_;
    std::vector<Arrived> arrived_;
  };

  class Returned : public Combine {
   public:
    Returned(PiecesExchange& seam, nn::LayerContext& ctx, const Routing& r, const std::vector<Columns>& columns)
        : seam_(seam), ctx_(ctx), routing_(r), columns_(columns) {
      for (const Columns& of : columns) results_.push_back(ctx.temp(of.dtype, {r.sizes.rows(), of.columns}));
    }
    std::vector<TensorView> target(int) override {
      target_.clear();
      for (const Columns& of : columns_) {
        target_.push_back(ctx_.temp(of.dtype, {routing_.sizes.piece_rows(), of.columns}));
      }
      return target_;
    }
    void written(int p) override {
      ctx_.exchange_after_compute();
      for (std::size_t i = 0; i < target_.size(); ++i) {
        seam_.exchange(ctx_, routing_, p, target_[i], results_[i], false);
      }
    }
    std::vector<TensorView> finish() override {
      ctx_.compute_after_exchange();
      return results_;
    }

   private:
    PiecesExchange& seam_;
    nn::LayerContext& ctx_;
    Routing routing_;
    std::vector<Columns> columns_;
    std::vector<TensorView> target_, results_;
  };

  comm::Group& group_;
  int pieces_;
};

}  // namespace hawser::testing
