// Expert parallelism by all-to-all of pieces of equal size, for tests.
#pragma once

#include <algorithm>
#include <cstring>

#include "comm/group.h"
#include "nn/layer.h"
#include "ops/copy/permute_rows.h"
#include "ops/gemm/grouped_gemm.h"

namespace hawser::testing {

// Sends rows in `pieces` pieces of equal size per rank, which suffice even if all rows go to one rank. The host does
// not read how many there are. Everything that a caller must not read is NaN.
class PiecesExchange : public nn::TokenExchange {
 public:
  explicit PiecesExchange(comm::Group& group, int pieces = 1) : group_(group), pieces_(pieces) {}

  void route(nn::LayerContext& ctx, const Routing& r) override {
    ctx.exchange_after_compute();
    Stream& stream = ctx.exchange();
    const std::int64_t experts = r.offsets.size(0) - 1;
    const TensorView sent = r.counts.rows(0, 1).reshape({experts}), received = r.counts.rows(1, 1).reshape({experts});
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
    group_.all_to_all(stream, sent, received);
    stream.launch({.name = "place_tokens",
                   .kind = OpKind::host,
                   .accesses = {reads(received), writes(r.expert_offsets), writes(r.token_rows)}},
                  [=, ranks = group_.size()] { place(r, ranks); });
    ctx.compute_after_exchange();
  }

  TensorView dispatch(nn::LayerContext& ctx, const Routing& r, const TensorView& rows) override {
    const TensorView out = ctx.temp(rows.dtype(), {r.expert_rows, rows.size(1)});
    exchange(ctx, r, rows, out, true);
    return out;
  }

  TensorView combine(nn::LayerContext& ctx, const Routing& r, const TensorView& rows) override {
    const TensorView out = ctx.temp(rows.dtype(), {r.rows, rows.size(1)});
    exchange(ctx, r, rows, out, false);
    return out;
  }

 protected:
  // The tables of a routing in the stream's work.
  struct Tables {
    std::vector<std::int32_t> counts, offsets, expert_offsets;

    std::int64_t local() const { return static_cast<std::int64_t>(expert_offsets.size()) - 1; }
    // The rows that this rank sends to another, and those that it receives.
    std::vector<std::int64_t> token_rows(std::int64_t rank) const {
      std::vector<std::int64_t> rows;
      for (std::int64_t e = rank * local(); e < (rank + 1) * local(); ++e) append(rows, offsets, e, sent(e));
      return rows;
    }
    std::vector<std::int64_t> expert_rows(std::int64_t rank) const {
      std::vector<std::int64_t> rows;
      for (std::int64_t e = 0; e < local(); ++e) {
        std::int64_t before = 0;
        for (std::int64_t other = 0; other < rank; ++other) before += received(other, e);
        append(rows, expert_offsets, e, received(rank, e), before);
      }
      return rows;
    }

   private:
    std::int64_t sent(std::int64_t e) const { return counts[static_cast<std::size_t>(e)]; }
    std::int64_t received(std::int64_t rank, std::int64_t e) const {
      return counts[static_cast<std::size_t>(static_cast<std::int64_t>(offsets.size()) - 1 + rank * local() + e)];
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
  static void place(const Routing& r, int ranks) {
    const std::int64_t local = r.expert_offsets.size(0) - 1;
    const auto* const received = r.counts.data<std::int32_t>() + ranks * local;
    auto *const offsets = r.expert_offsets.data<std::int32_t>(), *const rows = r.token_rows.data<std::int32_t>();
    std::fill_n(rows, r.expert_rows, ops::kNoRow);
    offsets[0] = 0;
    for (std::int64_t e = 0; e < local; ++e) {
      std::int32_t count = 0;
      for (int rank = 0; rank < ranks; ++rank) count += received[rank * local + e];
      for (std::int32_t row = offsets[e]; row < offsets[e] + count; ++row) rows[row] = row;
      offsets[e + 1] = static_cast<std::int32_t>(offsets[e] + round_up(count, ops::kGroupRows));
    }
  }

  // `there`: from rows of tokens to rows of experts; otherwise back.
  void exchange(nn::LayerContext& ctx, const Routing& r, const TensorView& from, const TensorView& to, bool there) {
    ctx.exchange_after_compute();
    Stream& stream = ctx.exchange();
    const std::int64_t ranks = group_.size(), capacity = ceil_div(r.max_sent, std::int64_t{pieces_}),
                       columns = from.size(1);
    const std::size_t bytes = static_cast<std::size_t>(columns * size_of(from.dtype()));
    const TensorView send = ctx.temp(from.dtype(), {ranks * capacity, columns}),
                     received = ctx.temp(from.dtype(), send.shape());
    const std::vector<Access> routing = {reads(r.counts), reads(r.offsets), reads(r.expert_offsets)};
    const auto accesses = [&](std::initializer_list<Access> more) {
      std::vector<Access> all = routing;
      all.insert(all.end(), more);
      return all;
    };
    stream.launch({.name = "clear", .kind = OpKind::copy, .accesses = accesses({writes(to)})}, [=] {
      std::memset(to.raw(), 0xff, static_cast<std::size_t>(to.bytes()));  // NaN
      if (!there) return;
      const std::int64_t used = r.expert_offsets.data<std::int32_t>()[r.expert_offsets.size(0) - 1];
      std::memset(to.raw(), 0, static_cast<std::size_t>(used) * bytes);
    });
    for (int piece = 0; piece < pieces_; ++piece) {
      // Calls move(row, row of the buffer) for each row of this piece.
      const auto each = [=, this](bool of_tokens, const auto& move) {
        const Tables all = tables(r);
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const std::vector<std::int64_t> rows = of_tokens ? all.token_rows(rank) : all.expert_rows(rank);
          const auto count = static_cast<std::int64_t>(rows.size());
          for (std::int64_t i = piece * capacity; i < std::min(count, (piece + 1) * capacity); ++i) {
            move(rows[static_cast<std::size_t>(i)], rank * capacity + i - piece * capacity);
          }
        }
      };
      stream.launch({.name = "pack", .kind = OpKind::copy, .accesses = accesses({reads(from), writes(send)})}, [=] {
        std::memset(send.raw(), 0xff, static_cast<std::size_t>(send.bytes()));
        each(there, [&](std::int64_t row, std::int64_t at) {
          std::memcpy(send.rows(at, 1).raw(), from.rows(row, 1).raw(), bytes);
        });
      });
      group_.all_to_all(stream, send, received);
      stream.launch({.name = "unpack", .kind = OpKind::copy, .accesses = accesses({reads(received), writes(to)})}, [=] {
        each(!there, [&](std::int64_t row, std::int64_t at) {
          std::memcpy(to.rows(row, 1).raw(), received.rows(at, 1).raw(), bytes);
        });
      });
    }
    ctx.compute_after_exchange();
  }

  comm::Group& group_;
  int pieces_;
};

}  // namespace hawser::testing
