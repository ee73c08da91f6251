// Expert parallelism by all-to-all of counted rows, for tests.
#pragma once

#include <algorithm>
#include <cstring>

#include "comm/group.h"
#include "nn/layer.h"
#include "ops/copy/permute_rows.h"
#include "ops/gemm/grouped_gemm.h"

namespace hawser::testing {

// Sends the rows of each piece of experts by one all-to-all of counted rows. The host does not read how many there are.
// Everything that a caller must not read is NaN. The routing's state has the rows of each piece that each rank sends
// and receives, and whether it is refused: more rows than Options::row_bound allows.
class PiecesExchange : public nn::TokenExchange {
 public:
  explicit PiecesExchange(comm::Group& group) : group_(group) {}

  // What a layer declares for it, for experts on `ranks` ranks.
  static Options options(int pieces, std::int64_t ranks) { return {.pieces = pieces, .state = 2 * pieces * ranks + 1}; }

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
                  [=, index = group_.index()] {
                    const bool fits = rows_fit(r.sizes, all);
                    if (!fits) *refusal.data<float>() = static_cast<float>(nn::Refusal::expert_rows);
                    receive(r, all, index, fits);
                    place(r);
                    r.state.data<std::int32_t>()[r.sizes.state() - 1] = fits ? 0 : 1;
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
  // The tables of a routing in the stream's work.
  struct Tables {
    std::vector<std::int32_t> counts, offsets, expert_offsets;

    // The rows of piece p that this rank sends to another, and those that it receives, in the piece.
    std::vector<std::int64_t> token_rows(const Sizes& s, int p, std::int64_t rank) const {
      std::vector<std::int64_t> rows;
      const std::int64_t first = rank * s.local_experts + p * s.piece_experts();
      for (std::int64_t e = first; e < first + s.piece_experts(); ++e) append(rows, offsets, e, sent(e));
      return rows;
    }
    std::vector<std::int64_t> expert_rows(const Sizes& s, int p, std::int64_t rank) const {
      std::vector<std::int64_t> rows;
      for (std::int64_t i = 0; i < s.piece_experts(); ++i) {
        const std::int64_t e = p * s.piece_experts() + i;
        std::int64_t before = 0;
        for (std::int64_t other = 0; other < rank; ++other) before += received(s, other, e);
        append(rows, expert_offsets, p * (s.piece_experts() + 1) + i, received(s, rank, e), before);
      }
      return rows;
    }

   private:
    std::int64_t sent(std::int64_t e) const { return counts[static_cast<std::size_t>(e)]; }
    std::int64_t received(const Sizes& s, std::int64_t rank, std::int64_t e) const {
      return counts[static_cast<std::size_t>(s.experts + rank * s.local_experts + e)];
    }
    static void append(std::vector<std::int64_t>& rows, const std::vector<std::int32_t>& begins, std::int64_t group,
                       std::int64_t count, std::int64_t before = 0) {
      for (std::int64_t i = 0; i < count; ++i) rows.push_back(begins[static_cast<std::size_t>(group)] + before + i);
    }
  };
  virtual Tables tables(const Routing& r) const {
    const auto values = [](const TensorView& view) {
      const auto* const data = view.data<std::int32_t>();
      return std::vector<std::int32_t>(data, data + view.elements());
    };
    return {values(r.counts), values(r.offsets), values(r.expert_offsets)};
  }

 private:
  // Whether the rows of every piece of every rank are within its bound, from the rows [P, E] that all ranks send.
  static bool rows_fit(const Sizes& s, const TensorView& all) {
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

  static void place(const Routing& r) {
    const Sizes& s = r.sizes;
    auto* const rows = r.token_rows.data<std::int32_t>();
    std::fill_n(rows, s.expert_rows(), ops::kNoRow);
    for (int p = 0; p < s.options.pieces; ++p) {
      auto* const offsets = r.piece_offsets(p).data<std::int32_t>();
      auto* const counts = r.state.data<std::int32_t>() + 2 * p * s.ranks();  // sent, then received
      std::fill_n(counts, 2 * s.ranks(), 0);
      offsets[0] = 0;
      for (std::int64_t i = 0; i < s.piece_experts(); ++i) {
        const std::int64_t e = p * s.piece_experts() + i;
        std::int32_t count = 0;
        for (std::int64_t rank = 0; rank < s.ranks(); ++rank) {
          const auto* const of_rank = r.counts.data<std::int32_t>() + rank * s.local_experts + e;
          counts[rank] += of_rank[0];
          counts[s.ranks() + rank] += of_rank[s.experts];
          count += of_rank[s.experts];
        }
        for (std::int32_t row = offsets[i]; row < offsets[i] + count; ++row) rows[p * s.piece_rows() + row] = row;
        offsets[i + 1] = static_cast<std::int32_t>(offsets[i] + round_up(count, ops::kGroupRows));
      }
    }
  }

  // Exchanges the rows of a piece. `there`: from rows of tokens to rows of experts; otherwise back.
  void exchange(nn::LayerContext& ctx, const Routing& r, int p, const TensorView& from, const TensorView& to,
                bool there) {
    Stream& stream = ctx.exchange();
    const std::int64_t ranks = r.sizes.ranks(), slot = r.sizes.max_sent(), columns = from.size(1);
    const auto bytes = static_cast<std::size_t>(columns * size_of(from.dtype()));
    const TensorView send = ctx.temp(from.dtype(), {ranks * slot, columns}),
                     received = ctx.temp(from.dtype(), send.shape());
    const std::vector<Access> routing = {reads(r.counts), reads(r.offsets), reads(r.expert_offsets), reads(r.state)};
    const auto accesses = [&](std::initializer_list<Access> more) {
      std::vector<Access> all = routing;
      all.insert(all.end(), more);
      return all;
    };
    // Calls move(row, row of the buffer) for each row of this piece.
    const auto each = [=, this](bool of_tokens, const auto& move) {
      const Tables all = tables(r);
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        std::int64_t at = rank * slot;
        for (const std::int64_t row :
             of_tokens ? all.token_rows(r.sizes, p, rank) : all.expert_rows(r.sizes, p, rank)) {
          move(row, at++);
        }
      }
    };
    const auto poison = [](const TensorView& view) {
      std::memset(view.raw(), 0xff, static_cast<std::size_t>(view.bytes()));  // NaN
    };
    stream.launch({.name = "pack", .kind = OpKind::copy, .accesses = accesses({reads(from), writes(send)})}, [=] {
      poison(send);
      each(there, [&](std::int64_t row, std::int64_t at) {
        std::memcpy(send.rows(at, 1).raw(), from.rows(row, 1).raw(), bytes);
      });
    });
    const auto counts = [&](bool sent) { return r.state.rows((2 * p + (sent ? 0 : 1)) * ranks, ranks); };
    const std::int64_t workspace = comm::all_to_all_v_workspace(send, group_.size(), stream.target());
    group_.all_to_all_v(stream, {send, counts(there)}, {received, counts(!there)},
                        workspace > 0 ? ctx.temp(DType::u8, {workspace}) : TensorView(),
                        r.sizes.expected_sent() * static_cast<double>(ranks));
    stream.launch({.name = "unpack", .kind = OpKind::copy, .accesses = accesses({reads(received), writes(to)})}, [=] {
      if (there) {
        poison(to);
        const std::int64_t used = r.piece_offsets(p).data<std::int32_t>()[r.sizes.piece_experts()];
        std::memset(to.raw(), 0, static_cast<std::size_t>(used) * bytes);
      } else if (p == 0) {
        poison(to);
        if (r.state.data<std::int32_t>()[r.sizes.state() - 1] != 0) {
          std::memset(to.raw(), 0, static_cast<std::size_t>(to.bytes()));
        }
      }
      each(!there, [&](std::int64_t row, std::int64_t at) {
        std::memcpy(to.rows(row, 1).raw(), received.rows(at, 1).raw(), bytes);
      });
    });
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
};

}  // namespace hawser::testing
