#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/copy/permute_rows.h"

#include <cstring>

#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/copy/copy_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

namespace {

// Address of an element.
std::byte* at(const TensorView& view, std::int64_t row, std::int64_t column) {
  const std::int64_t stride = view.rank() > 0 ? view.stride(0) : 0;
  return view.raw() + (row * stride + column) * size_of(view.dtype());
}

template <class T>
void fill_with(const TensorView& y, T value) {
  const auto to = rows_of<T>(y);
  parallel_runs({y}, [&](std::int64_t row, std::int64_t column, std::int64_t count) {
    std::fill_n(to.row(row) + column, count, value);
  });
}

void check_index(const char* op, const TensorView& index, std::int64_t rows, std::int32_t min = 0) {
  const auto* i = index.data<std::int32_t>();
  for (std::int64_t n = 0; n < index.size(0); ++n) {
    HAWSER_CHECK(i[n] >= min && i[n] < rows, op, ": index ", i[n], " at ", n, " is outside [", min, ", ", rows, ")");
  }
}

}  // namespace

void copy(const Copy& args) {
  const std::int64_t element = size_of(args.x.dtype());
  parallel_runs({args.x, args.y}, [&](std::int64_t row, std::int64_t column, std::int64_t count) {
    std::memcpy(at(args.y, row, column), at(args.x, row, column), static_cast<std::size_t>(count * element));
  });
}

void cast(const Cast& args) {
  if (args.x.dtype() == args.y.dtype()) {
    if (args.x.raw() != args.y.raw()) copy({.x = args.x, .y = args.y});
    return;
  }
  dispatch_float(args.x.dtype(), [&](auto x_tag) {
    dispatch_float(args.y.dtype(), [&](auto y_tag) {
      const auto x = rows_of<decltype(x_tag)>(args.x);
      const auto y = rows_of<decltype(y_tag)>(args.y);
      parallel_runs({args.x, args.y}, [&](std::int64_t row, std::int64_t column, std::int64_t count) {
        HAWSER_DISPATCH(cast_run, x.row(row) + column, y.row(row) + column, count);
      });
    });
  });
}

void fill(const Fill& args) {
  switch (args.y.dtype()) {
    case DType::f32:
      return fill_with(args.y, static_cast<float>(args.value));
    case DType::bf16:
      return fill_with(args.y, Bf16(static_cast<float>(args.value)));
    case DType::i32:
      return fill_with(args.y, static_cast<std::int32_t>(args.value));
    case DType::i64:
    case DType::u8:
    case DType::nf4:
    case DType::nf4_double:
      break;
    case DType::f8e4m3:
    case DType::f8e5m2:
      std::memset(args.y.raw(), 0, static_cast<std::size_t>(args.y.bytes()));
      return;
  }
  HAWSER_CHECK(false, "fill: y is ", args.y.text());
}

void add(const Add& args) {
  dispatch_float(args.a.dtype(), [&](auto a_tag) {
    dispatch_float(args.b.dtype(), [&](auto b_tag) {
      dispatch_float(args.y.dtype(), [&](auto y_tag) {
        const auto a = rows_of<decltype(a_tag)>(args.a);
        const auto b = rows_of<decltype(b_tag)>(args.b);
        const auto y = rows_of<decltype(y_tag)>(args.y);
        parallel_runs({args.y, args.a, args.b}, [&](std::int64_t row, std::int64_t column, std::int64_t count) {
          HAWSER_DISPATCH(add_run, a.row(row) + column, b.row(row) + column, y.row(row) + column, count);
        });
      });
    });
  });
}

void gather_rows(const GatherRows& args) {
  check_index("gather_rows", args.index, args.x.size(0));
  const auto* index = args.index.data<std::int32_t>();
  const auto bytes = static_cast<std::size_t>(args.x.size(1) * size_of(args.x.dtype()));
  parallel_pieces(args.index.size(0), 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) std::memcpy(at(args.y, n, 0), at(args.x, index[n], 0), bytes);
  });
}

void scatter_rows(const ScatterRows& args) {
  check_index("scatter_rows", args.index, args.y.size(0), kNoRow);
  const auto* index = args.index.data<std::int32_t>();
  dispatch_float(args.x.dtype(), [&](auto x_tag) {
    dispatch_float(args.y.dtype(), [&](auto y_tag) {
      const auto x = rows_of<decltype(x_tag)>(args.x);
      const auto y = rows_of<decltype(y_tag)>(args.y);
      parallel_pieces(x.count, 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t n = begin; n < end; ++n) {
          if (index[n] == kNoRow) continue;
          auto* to = y.row(index[n]);
          if (args.accumulate) {
            HAWSER_DISPATCH(add_run, to, x.row(n), to, x.columns);
          } else {
            HAWSER_DISPATCH(cast_run, x.row(n), to, x.columns);
          }
        }
      });
    });
  });
}

}  // namespace hawser::ops::cpu
