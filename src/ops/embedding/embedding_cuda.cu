#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/kernel.cuh"
#include "ops/embedding/embedding.h"

namespace hawser::ops::cuda {

namespace {

// The rows that a table has: [first, first + rows) of total.
struct TablePart {
  std::int64_t first, rows, total;
  // The row of an id in the table, -1 if the table does not have it. Reports an id that is out of range.
  __device__ std::int64_t row(CudaFault* fault, CudaFault::Op op, std::int32_t id, std::int64_t t) const {
    if (!in_range(fault, op, id, t, total)) return -1;
    const std::int64_t own = id - first;
    return own >= 0 && own < rows ? own : -1;
  }
};
TablePart part_of(const TensorView& table, std::int64_t first, std::int64_t total) {
  return {first, table.size(0), total == 0 ? table.size(0) : total};
}

template <class Word>
struct Take {
  const Word* table;
  TablePart part;
  std::int64_t columns;
  Word* y;
  std::int64_t y_stride;
  const std::int32_t* ids;
  CudaFault* fault;
  struct Loaded {
    Word word;
    bool good;
  };
  __device__ Loaded load(std::int64_t t, std::int64_t at) const {
    const std::int64_t row = part.row(fault, CudaFault::embedding_forward, ids[t], t);
    if (row < 0) return {.good = false};
    return {table[row * columns + at], true};
  }
  __device__ void store(std::int64_t t, std::int64_t at, const Loaded& loaded) const {
    y[t * y_stride + at] = loaded.good ? loaded.word : Word{};
  }
};

template <class Word>
void take(const CudaNative& native, const EmbeddingForward& args) {
  const std::int64_t ratio = static_cast<std::int64_t>(sizeof(Word)) / size_of(args.table.dtype());
  const std::int64_t columns = args.table.size(1) / ratio;
  map_rows<1, 2>(
      native, args.ids.size(0), columns,
      Take<Word>{reinterpret_cast<const Word*>(args.table.raw()), part_of(args.table, args.first_row, args.total_rows),
                 columns, reinterpret_cast<Word*>(args.y.raw()), args.y.stride(0) / ratio,
                 args.ids.data<std::int32_t>(), native.fault});
}

// With a scale other than 1.
template <class Act, int N>
struct TakeScaled {
  Rows2<const Act> table;
  TablePart part;
  Rows2<Act> y;
  const std::int32_t* ids;
  float scale;
  CudaFault* fault;
  struct Loaded {
    Vec<Act, N> value;
    bool good;
  };
  __device__ Loaded load(std::int64_t t, std::int64_t at) const {
    const std::int64_t row = part.row(fault, CudaFault::embedding_forward, ids[t], t);
    if (row < 0) return {.good = false};
    return {cuda::load<N>(table.row(row) + at), true};
  }
  __device__ void store(std::int64_t t, std::int64_t at, const Loaded& loaded) const {
    Vec<float, N> out = loaded.good ? widen(loaded.value) : Vec<float, N>{};
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] *= scale;
    store_float<N>(y.row(t) + at, out);
  }
};

void take_scaled(const CudaNative& native, const EmbeddingForward& args) {
  dispatch_device_float(args.table.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    constexpr int kWide = 16 / sizeof(Act);
    const auto table = rows2<Act>(args.table), y = rows2<Act>(args.y);
    const auto launch = [&](auto n) {
      constexpr int kN = decltype(n)::value;
      map_rows<kN, 2>(native, y.count, y.columns,
                      TakeScaled<Act, kN>{{table.data, table.count, table.columns, table.stride},
                                          part_of(args.table, args.first_row, args.total_rows),
                                          y,
                                          args.ids.data<std::int32_t>(),
                                          static_cast<float>(args.scale),
                                          native.fault});
    };
    if (aligned<kWide>({args.table, args.y})) {
      launch(std::integral_constant<int, kWide>());
    } else {
      launch(std::integral_constant<int, 1>());
    }
  });
}

// ---- backward ----
//
// Tokens are sorted by id (stable), and the sorted list is divided into pieces of equal length. One block sums the runs
// of equal ids of its piece. A run inside one piece is added to the table directly. A run that crosses a boundary
// writes a partial sum per piece, and a second kernel adds these in order. Many blocks thus share the sum of an id that
// fills half the batch. The sorted list determines the order of every sum.

struct Key {
  const std::int32_t* ids;
  std::uint32_t* keys;
  std::int32_t* places;
  TablePart part;
  CudaFault* fault;
  __device__ void operator()(std::int64_t, std::int64_t t) const {
    const std::int64_t row = part.row(fault, CudaFault::embedding_backward, ids[t], t);
    // One past the table: sorted to the end and skipped.
    keys[t] = static_cast<std::uint32_t>(row >= 0 ? row : part.rows);
    places[t] = static_cast<std::int32_t>(t);
  }
};

template <class Act, class Table>
struct Runs {
  const std::uint32_t* keys;
  const std::int32_t* places;
  std::int64_t tokens, piece;  // length of the list and of a piece
  Rows2<const Act> dy;
  Table* dtable;
  std::int64_t rows;
  // [pieces][2][columns]: the sum of a run that started in an earlier piece, and of one that continues in the next
  // piece
  float* partial;
  float scale;
};

// The only write of a row: the full run is already summed, so that it is rounded once.
template <int N, class Table>
__device__ __forceinline__ void add_to(Table* to, const Vec<Table, N>& old, const Vec<float, N>& sum, float scale) {
  Vec<float, N> x = widen(old);
#pragma unroll
  for (int i = 0; i < N; ++i) x.v[i] += scale * sum.v[i];
  store<N>(to, narrow<Table>(x));
}

// A block has one piece and 64 * N columns; a thread has N columns and the sum of the current run in registers. The
// rows of dy are anywhere in memory, so the latency of single loads would bound the kernel: a thread takes eight tokens
// at a time. It loads their keys, then their rows of dy and the table rows of the runs that end, then it sums. Each row
// of the table is written by one thread for each column, so there are no atomics.
template <class Act, class Table, int N>
__global__ void __launch_bounds__(64) runs_kernel(Runs<Act, Table> r) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * 64 + threadIdx.x) * N;
  if (column >= r.dy.columns) return;
  const std::int64_t begin = blockIdx.x * r.piece, end = begin + r.piece < r.tokens ? begin + r.piece : r.tokens;
  float* const head = r.partial + static_cast<std::int64_t>(blockIdx.x) * 2 * r.dy.columns + column;
  constexpr int kAtOnce = 8;
  constexpr std::uint32_t kNone = ~0u;
  const std::uint32_t before = begin > 0 ? r.keys[begin - 1] : kNone;
  const auto table = [&](std::uint32_t key) {
    return r.dtable + static_cast<std::int64_t>(key) * r.dy.columns + column;
  };
  Vec<float, N> sum{};
  for (std::int64_t base = begin; base < end; base += kAtOnce) {
    std::uint32_t key[kAtOnce + 1];
    std::int32_t place[kAtOnce];
#pragma unroll
    for (int a = 0; a <= kAtOnce; ++a) key[a] = base + a < r.tokens ? r.keys[base + a] : kNone;
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) place[a] = base + a < end ? r.places[base + a] : 0;
    Vec<Act, N> value[kAtOnce];
    Vec<Table, N> old[kAtOnce];
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) {
      if (base + a < end) value[a] = load<N>(r.dy.row(place[a]) + column);
    }
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) {
      if (base + a < end && key[a] != key[a + 1] && key[a] != before && key[a] < r.rows)
        old[a] = load<N>(table(key[a]));
    }
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) {
      const std::int64_t j = base + a;
      if (j >= end) break;
      const Vec<float, N> x = widen(value[a]);
#pragma unroll
      for (int i = 0; i < N; ++i) sum.v[i] += x.v[i];
      const bool continues = key[a] == key[a + 1];
      if (continues && j + 1 < end) continue;
      if (key[a] == before) {
        store<N>(head, sum);  // the run started in an earlier piece
      } else if (continues) {
        store<N>(head + r.dy.columns, sum);
      } else if (key[a] < r.rows) {
        add_to<N>(table(key[a]), old[a], sum, r.scale);
      }
      sum = {};
    }
  }
}

// Block (p, columns): if a run starts in piece p and continues beyond it, adds its partial sums and writes the table.
template <class Act, class Table, int N>
__global__ void __launch_bounds__(64) borders_kernel(Runs<Act, Table> r) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * 64 + threadIdx.x) * N;
  std::int64_t p = blockIdx.x;
  std::int64_t end = (p + 1) * r.piece;
  if (column >= r.dy.columns || end >= r.tokens) return;
  const std::uint32_t key = r.keys[end - 1];
  if (key >= r.rows || r.keys[end] != key) return;
  if (p > 0 && r.keys[p * r.piece] == key && r.keys[p * r.piece - 1] == key) return;  // started earlier
  Vec<float, N> sum = load<N>(r.partial + (p * 2 + 1) * r.dy.columns + column);
  while (end < r.tokens && r.keys[end] == key) {
    ++p;
    const Vec<float, N> more = load<N>(r.partial + p * 2 * r.dy.columns + column);
#pragma unroll
    for (int i = 0; i < N; ++i) sum.v[i] += more.v[i];
    end = (p + 1) * r.piece;
    if (end < r.tokens && r.keys[end - 1] != key) break;
  }
  Table* const to = r.dtable + static_cast<std::int64_t>(key) * r.dy.columns + column;
  add_to<N>(to, load<N>(to), sum, r.scale);
}

template <class Act, class Table>
void backward(const CudaNative& native, const EmbeddingBackward& args) {
  const std::int64_t tokens = args.ids.size(0), columns = args.dtable.size(1), rows = args.dtable.size(0);
  const auto stream = stream_of(native);
  HAWSER_CHECK(tokens < (std::int64_t{1} << 31), "embedding_backward: ", tokens, " tokens");
  Scratch scratch(native);
  auto* const keys = scratch.take<std::uint32_t>(tokens);
  auto* const places = scratch.take<std::int32_t>(tokens);
  auto* const sorted_keys = scratch.take<std::uint32_t>(tokens);
  auto* const sorted_places = scratch.take<std::int32_t>(tokens);
  map<1>(native, 1, tokens,
         Key{args.ids.data<std::int32_t>(), keys, places, part_of(args.dtable, args.first_row, args.total_rows),
             native.fault});
  int bits = 1;
  while (bits < 32 && (std::int64_t{1} << bits) <= rows) ++bits;
  std::size_t bytes = 0;
  HAWSER_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted_keys, places, sorted_places,
                                                    static_cast<int>(tokens), 0, bits, stream));
  auto* const temporary = scratch.take<std::byte>(static_cast<std::int64_t>(bytes));
  HAWSER_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(temporary, bytes, keys, sorted_keys, places, sorted_places,
                                                    static_cast<int>(tokens), 0, bits, stream));
  const std::int64_t fit = (scratch.left() - 512) / (8 * columns);
  HAWSER_CHECK(fit > 0, "embedding_backward: ", tokens, " tokens of ", columns, " channels do not fit the scratch");
  const std::int64_t piece = std::max<std::int64_t>(32, ceil_div(tokens, std::min<std::int64_t>(fit, 512)));
  const std::int64_t pieces = ceil_div(tokens, piece);
  const auto dy = rows2<Act>(args.dy);
  const Runs<Act, Table> runs{.keys = sorted_keys,
                              .places = sorted_places,
                              .tokens = tokens,
                              .piece = piece,
                              .dy = {dy.data, dy.count, dy.columns, dy.stride},
                              .dtable = reinterpret_cast<Table*>(args.dtable.raw()),
                              .rows = rows,
                              .partial = scratch.take<float>(pieces * 2 * columns),
                              .scale = static_cast<float>(args.scale)};
  const auto launch = [&](auto first, auto second, int n) {
    const dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(ceil_div(columns, 64 * n)));
    first<<<grid, 64, 0, stream>>>(runs);
    second<<<grid, 64, 0, stream>>>(runs);
  };
  if (aligned<8>({args.dy, args.dtable})) {
    launch(runs_kernel<Act, Table, 4>, borders_kernel<Act, Table, 4>, 4);
  } else {
    launch(runs_kernel<Act, Table, 1>, borders_kernel<Act, Table, 1>, 1);
  }
}

}  // namespace

void embedding_forward(const CudaNative& native, const EmbeddingForward& args) {
  if (args.scale != 1) return take_scaled(native, args);
  const bool bf16 = by_float(args.table.dtype(), false, true);
  if (bf16 ? aligned<8>({args.table, args.y}) : aligned<4>({args.table, args.y})) return take<uint4>(native, args);
  if (bf16) return take<std::uint16_t>(native, args);
  take<std::uint32_t>(native, args);
}

void embedding_backward(const CudaNative& native, const EmbeddingBackward& args) {
  if (!args.accumulate) {
    HAWSER_CUDA_CHECK(
        cudaMemsetAsync(args.dtable.raw(), 0, static_cast<std::size_t>(args.dtable.bytes()), stream_of(native)));
  }
  if (args.ids.size(0) == 0 || args.dtable.size(1) == 0) return;
  dispatch_device_float(args.dy.dtype(), [&](auto act) {
    dispatch_device_float(args.dtable.dtype(),
                          [&](auto table) { backward<decltype(act), decltype(table)>(native, args); });
  });
}

}  // namespace hawser::ops::cuda
