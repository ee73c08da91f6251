#include "ops/embedding/embedding.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/embedding/embedding_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

namespace {

// Rows of the table by token; -1: a row that this part of the table does not have.
std::vector<std::int32_t> rows_of_ids(const char* op, const TensorView& ids, std::int64_t first, std::int64_t rows,
                                      std::int64_t total) {
  if (total == 0) total = rows;
  const auto* id = ids.data<std::int32_t>();
  std::vector<std::int32_t> out(static_cast<std::size_t>(ids.size(0)));
  for (std::int64_t t = 0; t < ids.size(0); ++t) {
    HAWSER_CHECK(id[t] >= 0 && id[t] < total, op, ": id ", id[t], " of token ", t, " is outside [0, ", total, ")");
    const std::int64_t row = id[t] - first;
    out[static_cast<std::size_t>(t)] = row >= 0 && row < rows ? static_cast<std::int32_t>(row) : -1;
  }
  return out;
}

// float32 rows hold the running sums. Threads divide the columns: one thread sums each element of the table, over
// tokens in order.
template <class Act>
void sum_in_place(std::span<const std::int32_t> ids, const RowsOf<Act>& dy, const RowsOf<float>& dtable,
                  bool accumulate, float scale) {
  if (!accumulate) {
    parallel_pieces(dtable.count * dtable.columns, 4096, [&](std::int64_t begin, std::int64_t end) {
      std::fill(dtable.data + begin, dtable.data + end, 0.0f);
    });
  }
  parallel_pieces(dy.columns, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = 0; t < dy.count; ++t) {
      const std::int32_t row = ids[static_cast<std::size_t>(t)];
      if (row < 0) continue;
      HAWSER_DISPATCH(add_to_run, dy.row(t) + begin, scale, dtable.row(row) + begin, end - begin);
    }
  });
}

// bf16 rows: each row is first summed in float32, so tokens with one id must be consecutive.
template <class Act>
void sum_apart(std::span<const std::int32_t> ids, const RowsOf<Act>& dy, const RowsOf<Bf16>& dtable, bool accumulate,
               float scale) {
  if (!accumulate) {
    parallel_pieces(dtable.count * dtable.columns, 4096, [&](std::int64_t begin, std::int64_t end) {
      std::fill(dtable.data + begin, dtable.data + end, Bf16());
    });
  }
  std::vector<std::int32_t> order(ids.size());
  std::iota(order.begin(), order.end(), 0);
  const auto id = [&](std::size_t at) { return ids[static_cast<std::size_t>(order[at])]; };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return ids[static_cast<std::size_t>(a)] < ids[static_cast<std::size_t>(b)];
  });
  parallel_pieces(dy.columns, 64, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> sum(static_cast<std::size_t>(end - begin));
    std::size_t last = 0;
    while (last < order.size() && id(last) < 0) ++last;
    for (std::size_t first = last; first < order.size(); first = last) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (; last < order.size() && id(last) == id(first); ++last) {
        HAWSER_DISPATCH(add_to_run, dy.row(order[last]) + begin, scale, sum.data(), end - begin);
      }
      Bf16* to = dtable.row(id(first)) + begin;
      for (std::size_t c = 0; c < sum.size(); ++c)
        to[c] = Bf16(sum[c] + (accumulate ? static_cast<float>(to[c]) : 0.0f));
    }
  });
}

}  // namespace

void embedding_forward(const EmbeddingForward& args) {
  const std::vector<std::int32_t> rows =
      rows_of_ids("embedding_forward", args.ids, args.first_row, args.table.size(0), args.total_rows);
  const auto row = [&](std::int64_t t) { return rows[static_cast<std::size_t>(t)]; };
  const std::int64_t element = size_of(args.table.dtype());
  const auto bytes = static_cast<std::size_t>(args.table.size(1) * element);
  const auto to = [&](std::int64_t t) { return args.y.raw() + t * args.y.stride(0) * element; };
  if (args.scale != 1) {
    dispatch_float(args.table.dtype(), [&](auto tag) {
      const auto table = rows_of<decltype(tag)>(args.table), y = rows_of<decltype(tag)>(args.y);
      parallel_pieces(y.count, 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          if (row(t) < 0) {
            std::memset(to(t), 0, bytes);
          } else {
            HAWSER_DISPATCH(scaled_run, table.row(row(t)), static_cast<float>(args.scale), y.row(t), y.columns);
          }
        }
      });
    });
    return;
  }
  parallel_pieces(args.ids.size(0), 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      if (row(t) < 0) {
        std::memset(to(t), 0, bytes);
      } else {
        std::memcpy(to(t), args.table.raw() + row(t) * args.table.stride(0) * element, bytes);
      }
    }
  });
}

void embedding_backward(const EmbeddingBackward& args) {
  const std::vector<std::int32_t> ids =
      rows_of_ids("embedding_backward", args.ids, args.first_row, args.dtable.size(0), args.total_rows);
  const auto scale = static_cast<float>(args.scale);
  dispatch_float(args.dy.dtype(), [&](auto tag) {
    const auto dy = rows_of<decltype(tag)>(args.dy);
    dispatch_float(args.dtable.dtype(), [&](auto sum) {
      using Sum = decltype(sum);
      if constexpr (std::is_same_v<Sum, float>) {
        sum_in_place(ids, dy, rows_of<Sum>(args.dtable), args.accumulate, scale);
      } else {
        sum_apart(ids, dy, rows_of<Sum>(args.dtable), args.accumulate, scale);
      }
    });
  });
}

}  // namespace hawser::ops::cpu
