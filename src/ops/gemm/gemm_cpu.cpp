#include "ops/gemm/gemm_cpu.h"

#include <unistd.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <atomic>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <tuple>

#include "ops/cpu/bf16_units.h"
#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/gemm/gemm_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

namespace {

// An upper bound for this machine, so that a plan does not depend on the calling thread.
int max_threads() {
  static const int threads = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  return threads;
}

// Limits the calling thread's OpenMP team to one thread, for a scope.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

bool has_bf16_units() {
  return best_bf16_units() != Bf16Units::none;
}

// oneDNN's matmul for one shape and layout, single-threaded; several threads may run it concurrently.
struct Matmul {
  dnnl::matmul primitive;
  dnnl::memory::desc a, b, c, bias, scratchpad;
};

dnnl::engine& engine() {
  static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::memory::data_type dnnl_type(DType dtype) {
  return by_float(dtype, dnnl::memory::data_type::f32, dnnl::memory::data_type::bf16);
}

dnnl::matmul::primitive_desc describe(const GemmProblem& p, Matmul& out) {
  using dnnl::memory;
  const auto strides = [](std::int64_t ld, bool transposed) {
    return transposed ? memory::dims{1, ld} : memory::dims{ld, 1};
  };
  out.a = memory::desc({p.m, p.k}, dnnl_type(p.in_a), strides(p.lda, p.transpose_a));
  out.b = memory::desc({p.k, p.n}, dnnl_type(p.in_b), strides(p.ldb, p.transpose_b));
  out.c = memory::desc({p.m, p.n}, dnnl_type(p.out), strides(p.ldc, false));
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  if (p.bias == nullptr) return {{out.a, out.b, out.c}, attributes, engine()};
  out.bias = memory::desc({1, p.n}, dnnl_type(p.bias_dtype), memory::dims{p.n, 1});
  return {{out.a, out.b, out.bias, out.c}, attributes, engine()};
}

using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, DType, DType,
                       int, bool, bool, bool>;

Key key_of(const GemmProblem& p) {
  const int bias = p.bias == nullptr ? -1 : static_cast<int>(p.bias_dtype);
  return {p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.in_a, p.out, bias, p.transpose_a, p.transpose_b, p.accumulate};
}

std::shared_ptr<const Matmul> matmul_for(const GemmProblem& p) {
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<const Matmul>> cache;
  const std::lock_guard lock(mutex);
  auto& entry = cache[key_of(p)];
  if (entry == nullptr) {
    const OneThread alone;
    auto made = std::make_shared<Matmul>();
    const auto description = describe(p, *made);
    made->primitive = dnnl::matmul(description);
    made->scratchpad = description.scratchpad_desc();
    entry = std::move(made);
  }
  return entry;
}

// From the primitive descriptor alone: planning compiles nothing.
std::int64_t matmul_scratchpad(const GemmProblem& p) {
  static std::mutex mutex;
  static std::map<Key, std::int64_t> cache;
  const std::lock_guard lock(mutex);
  const auto [entry, fresh] = cache.try_emplace(key_of(p), 0);
  if (fresh) {
    const OneThread alone;
    Matmul unused;
    entry->second = round_up(static_cast<std::int64_t>(describe(p, unused).scratchpad_desc().get_size()), 64);
  }
  return entry->second;
}

void execute(const Matmul& matmul, const GemmProblem& p, std::byte* scratchpad) {
  const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, engine(), const_cast<void*>(data));
  };
  std::unordered_map<int, dnnl::memory> args{{DNNL_ARG_SRC, memory(matmul.a, p.a)},
                                             {DNNL_ARG_WEIGHTS, memory(matmul.b, p.b)},
                                             {DNNL_ARG_DST, memory(matmul.c, p.c)},
                                             {DNNL_ARG_SCRATCHPAD, memory(matmul.scratchpad, scratchpad)}};
  if (p.bias != nullptr) args.emplace(DNNL_ARG_BIAS, memory(matmul.bias, p.bias));
  dnnl::stream stream(engine());
  matmul.primitive.execute(stream, args);
  stream.wait();
}

// Tiles of C for the threads, along its longer side; its sizes and dtype alone determine them. In bf16, tiles are of
// rows unless rows are few: tiles of columns halve oneDNN's rate on AMX. oneDNN's own threading cannot be used: with
// more threads it also splits K, or splits differently, and the sums change (384 x 320 x 2048 in float32 already with
// two).
struct Tiles {
  std::int64_t count = 1, width = 0;
  bool rows = true;

  explicit Tiles(const GemmProblem& p) : rows(p.m >= (p.in_a == DType::bf16 ? p.n / 8 : p.n)) {
    const std::int64_t side = rows ? p.m : p.n;
    std::int64_t parts = side >= 256 ? 2 : 1;
    while (parts < 64 && side / (2 * parts) >= 256) parts *= 2;
    width = round_up(ceil_div(side, parts), 16);
    count = ceil_div(side, width);
  }

  GemmProblem tile(const GemmProblem& p, std::int64_t index) const {
    const auto move = [](const void* data, std::int64_t elements, DType dtype) -> const void* {
      return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + elements * size_of(dtype);
    };
    const std::int64_t at = index * width;
    GemmProblem out = p;
    if (rows) {
      out.m = std::min(width, p.m - at);
      out.a = move(p.a, p.transpose_a ? at : at * p.lda, p.in_a);
      out.c = const_cast<void*>(move(p.c, at * p.ldc, p.out));
    } else {
      out.n = std::min(width, p.n - at);
      out.b = move(p.b, p.transpose_b ? at * p.ldb : at, p.in_b);
      out.c = const_cast<void*>(move(p.c, at, p.out));
      out.bias = move(p.bias, at, p.bias_dtype);
    }
    return out;
  }
};

// Calls body(tile index, slot) for every tile on at most `slots` threads, each with its own slot. oneDNN called in body
// runs on the calling thread.
template <class Body>
void for_each_tile(const Tiles& tiles, std::int64_t slots, const Body& body) {
  if (tiles.count == 1 || slots == 1 || omp_get_max_threads() == 1) {
    const OneThread alone;
    for (std::int64_t i = 0; i < tiles.count; ++i) body(i, std::int64_t{0});
    return;
  }
  std::atomic<std::int64_t> next = 0;
  std::exception_ptr failure;  // an exception must not leave the parallel region
#pragma omp parallel
  if (const int thread = omp_get_thread_num(); thread < slots) {
    // A team of one thread (OMP_THREAD_LIMIT=1, OMP_DYNAMIC) is no parallel region to oneDNN: it would start its own.
    const OneThread alone;
    try {
      for (std::int64_t i = next++; i < tiles.count; i = next++) body(i, std::int64_t{thread});
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

std::int64_t matmul_slot(const GemmProblem& p, const Tiles& tiles) {
  return std::max(matmul_scratchpad(tiles.tile(p, 0)), matmul_scratchpad(tiles.tile(p, tiles.count - 1)));
}

void run_matmul(const GemmProblem& p, std::byte* workspace, std::int64_t workspace_bytes) {
  const Tiles tiles(p);
  const std::int64_t slot = matmul_slot(p, tiles), slots = slot > 0 ? workspace_bytes / slot : tiles.count;
  HAWSER_CHECK(slots >= 1, "gemm: oneDNN needs ", slot, " bytes, the workspace has ", workspace_bytes);
  const auto first = matmul_for(tiles.tile(p, 0)), last = matmul_for(tiles.tile(p, tiles.count - 1));
  for_each_tile(tiles, slots, [&](std::int64_t i, std::int64_t thread) {
    execute(i + 1 < tiles.count ? *first : *last, tiles.tile(p, i), workspace + thread * slot);
  });
}

// to[r, :] (+)= from[r, :] for `rows` rows; from_stride 0 repeats one row.
void move_rows(const void* from, DType from_dtype, std::int64_t from_stride, void* to, DType to_dtype,
               std::int64_t to_stride, bool accumulate, std::int64_t rows, std::int64_t columns) {
  dispatch_float(from_dtype, [&](auto from_tag) {
    dispatch_float(to_dtype, [&](auto to_tag) {
      const auto* x = static_cast<const decltype(from_tag)*>(from);
      auto* y = static_cast<decltype(to_tag)*>(to);
      parallel_pieces(rows, 4, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          HAWSER_DISPATCH(move_run, x + r * from_stride, y + r * to_stride, accumulate, columns);
        }
      });
    });
  });
}

void run_sgemm(const GemmProblem& p) {
  if (p.bias != nullptr) {
    move_rows(p.bias, p.bias_dtype, 0, p.c, DType::f32, p.ldc, p.accumulate, p.m, p.n);
  }
  const float beta = p.accumulate || p.bias != nullptr ? 1.0f : 0.0f;
  const Tiles tiles(p);
  for_each_tile(tiles, tiles.count, [&](std::int64_t i, std::int64_t) {
    const GemmProblem t = tiles.tile(p, i);
    const auto status = dnnl_sgemm(t.transpose_a ? 'T' : 'N', t.transpose_b ? 'T' : 'N', t.m, t.n, t.k, 1.0f,
                                   static_cast<const float*>(t.a), t.lda, static_cast<const float*>(t.b), t.ldb, beta,
                                   static_cast<float*>(t.c), t.ldc);
    if (status == dnnl_out_of_memory) throw std::bad_alloc();
    HAWSER_CHECK(status == dnnl_success, "gemm: dnnl_sgemm returned ", static_cast<int>(status));
  });
}

// Few rows times a weight [N, K]: limited by reading the weight, which oneDNN reads slowly for one row (and a bf16
// weight would first be widened). Each element of C is one sum in a fixed order: a row's result does not depend on
// other rows.
constexpr std::int64_t kFewRows = 32;

bool few_rows(const GemmProblem& p) {
  return p.m <= kFewRows && p.transpose_b && !p.transpose_a && p.in_a == p.in_b && !p.fp8() && !p.scales_blocks();
}

void run_few_rows(const GemmProblem& p) {
  constexpr std::int64_t kColumns = 64;
  dispatch_float(p.in_a, [&](auto in_tag) {
    dispatch_float(p.out, [&](auto out_tag) {
      using In = decltype(in_tag);
      using Out = decltype(out_tag);
      const auto* a = static_cast<const In*>(p.a);
      const auto* b = static_cast<const In*>(p.b);
      parallel_items(ceil_div(p.n, kColumns), [&](std::int64_t item) {
        const std::int64_t begin = item * kColumns, count = std::min(kColumns, p.n - begin);
        float sums[kFewRows * kColumns];
        HAWSER_DISPATCH(dot_rows, a, p.lda, p.m, b + begin * p.ldb, p.ldb, count, p.k, sums, kColumns);
        for (std::int64_t r = 0; r < p.m; ++r) {
          float* const sum = sums + r * kColumns;
          if (p.bias != nullptr) {
            dispatch_float(p.bias_dtype, [&](auto bias_tag) {
              const auto* bias = static_cast<const decltype(bias_tag)*>(p.bias) + begin;
              for (std::int64_t j = 0; j < count; ++j) sum[j] += static_cast<float>(bias[j]);
            });
          }
          HAWSER_DISPATCH(move_run, sum, static_cast<Out*>(p.c) + r * p.ldc + begin, p.accumulate, count);
        }
      });
    });
  });
}

// Sizes of the float32 copies of bf16 and FP8 matrices, for processors without bf16 units and for two dtypes, and of
// matrices with scales of blocks.
struct Widened {
  std::int64_t a = 0, b = 0, c = 0;  // elements
  std::int64_t bytes() const { return 4 * (a + b + c); }
};

Widened widened(const GemmProblem& p) {
  const auto widens = [](DType dtype) { return is_fp8(dtype) || by_float(dtype, false, true); };
  Widened w;
  if (widens(p.in_a) || p.scaling_a != ScaleKind::one) w.a = round_up(p.m * p.k, 16);
  if (widens(p.in_b) || p.scaling_b != ScaleKind::one) w.b = round_up(p.k * p.n, 16);
  if (by_float(p.out, false, true)) w.c = round_up(p.m * p.n, 16);
  return w;
}

// to[r, :] = from[r, :], dense
void widen_rows(const void* from, DType dtype, std::int64_t stride, float* to, std::int64_t rows,
                std::int64_t columns) {
  if (!is_fp8(dtype)) return move_rows(from, dtype, stride, to, DType::f32, columns, false, rows, columns);
  dispatch_fp8(dtype, [&](auto tag) {
    const auto* const x = static_cast<const decltype(tag)*>(from);
    parallel_pieces(rows, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) to[r * columns + c] = static_cast<float>(x[r * stride + c]);
      }
    });
  });
}

// x[r, c] *= the scale of its block
void scale_rows(const float* scales, ScaleKind kind, float* x, std::int64_t rows, std::int64_t columns) {
  if (kind == ScaleKind::one) return;
  parallel_pieces(rows, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t first = 0; first < columns; first += kScaleBlock) {
        const float scale = scales[scale_index(kind, rows, columns, r, first)];
        const std::int64_t last = std::min(columns, first + kScaleBlock);
        for (std::int64_t c = first; c < last; ++c) x[r * columns + c] *= scale;
      }
    }
  });
}

void run_widened(const GemmProblem& p, std::byte* workspace, std::int64_t workspace_bytes) {
  const Widened w = widened(p);
  HAWSER_CHECK(w.bytes() <= workspace_bytes, "gemm: needs ", w.bytes(), " bytes, the workspace has ", workspace_bytes);
  auto* const a = reinterpret_cast<float*>(workspace);
  float* const b = a + w.a;
  float* const c = b + w.b;
  GemmProblem wide = p;
  wide.in_a = wide.in_b = wide.out = DType::f32;
  if (w.a > 0) {
    const std::int64_t rows = p.transpose_a ? p.k : p.m, columns = p.transpose_a ? p.m : p.k;
    widen_rows(p.a, p.in_a, p.lda, a, rows, columns);
    scale_rows(p.scale_a, p.scaling_a, a, rows, columns);
    wide.a = a;
    wide.lda = columns;
  }
  if (w.b > 0) {
    const std::int64_t rows = p.transpose_b ? p.n : p.k, columns = p.transpose_b ? p.k : p.n;
    widen_rows(p.b, p.in_b, p.ldb, b, rows, columns);
    scale_rows(p.scale_b, p.scaling_b, b, rows, columns);
    wide.b = b;
    wide.ldb = columns;
  }
  if (w.c == 0) return run_sgemm(wide);
  wide.c = c;
  wide.ldc = p.n;
  wide.accumulate = false;
  run_sgemm(wide);
  move_rows(c, DType::f32, p.n, p.c, p.out, p.ldc, p.accumulate, p.m, p.n);
}

// K = 0: C = bias, or C += bias.
void run_empty_sum(const GemmProblem& p) {
  if (p.bias != nullptr) {
    move_rows(p.bias, p.bias_dtype, 0, p.c, p.out, p.ldc, p.accumulate, p.m, p.n);
  } else if (!p.accumulate) {
    for (std::int64_t r = 0; r < p.m; ++r) {
      const std::int64_t element = size_of(p.out);
      std::memset(static_cast<std::byte*>(p.c) + r * p.ldc * element, 0, static_cast<std::size_t>(p.n * element));
    }
  }
}

bool plain(const GemmProblem& p) {
  return !p.scales_blocks() && p.in_a == DType::f32 && p.in_b == DType::f32 && p.out == DType::f32;
}
bool uses_bf16_units(const GemmProblem& p) {
  return !p.scales_blocks() && p.in_a == DType::bf16 && p.in_b == DType::bf16 && has_bf16_units();
}
bool empty(const GemmProblem& p) {
  return p.m == 0 || p.n == 0 || p.k == 0;
}

// One of the scales belongs to a complete matrix: it multiplies the sums.
bool scales_sums(const GemmProblem& p) {
  return (p.scale_a != nullptr && p.scaling_a == ScaleKind::one) ||
         (p.scale_b != nullptr && p.scaling_b == ScaleKind::one);
}

// The float32 sums of a problem with such scales, dense, without them, bias and C.
GemmProblem sums_of(const GemmProblem& p, void* sums) {
  GemmProblem out = p;
  out.c = sums;
  out.ldc = p.n;
  out.out = DType::f32;
  out.bias = nullptr;
  if (p.scaling_a == ScaleKind::one) out.scale_a = nullptr;
  if (p.scaling_b == ScaleKind::one) out.scale_b = nullptr;
  out.accumulate = false;
  return out;
}
std::int64_t sums_bytes(const GemmProblem& p) {
  return round_up(p.m * p.n, 16) * size_of(DType::f32);
}

// C (+)= scale_a * scale_b * sums + bias
void add_scaled(const GemmProblem& p, const float* sums) {
  const auto one = [](const float* scale, ScaleKind kind) {
    return scale != nullptr && kind == ScaleKind::one ? *scale : 1.0f;
  };
  const float factor = one(p.scale_a, p.scaling_a) * one(p.scale_b, p.scaling_b);
  dispatch_float(p.out, [&](auto out_tag) {
    dispatch_float(p.bias_dtype, [&](auto bias_tag) {
      using Out = decltype(out_tag);
      auto* const c = static_cast<Out*>(p.c);
      const auto* const bias = static_cast<const decltype(bias_tag)*>(p.bias);
      parallel_pieces(p.m, 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          for (std::int64_t column = 0; column < p.n; ++column) {
            Out& to = c[row * p.ldc + column];
            float value = factor * sums[row * p.n + column];
            if (bias != nullptr) value += static_cast<float>(bias[column]);
            if (p.accumulate) value += static_cast<float>(to);
            to = static_cast<Out>(value);
          }
        }
      });
    });
  });
}

}  // namespace

std::int64_t problem_workspace(const GemmProblem& p) {
  if (empty(p)) return 0;
  if (scales_sums(p)) return sums_bytes(p) + problem_workspace(sums_of(p, nullptr));
  if (plain(p) || few_rows(p)) return 0;
  if (uses_bf16_units(p)) {
    const Tiles tiles(p);
    return matmul_slot(p, tiles) * std::min<std::int64_t>(tiles.count, max_threads());
  }
  return widened(p).bytes();
}

void multiply(const GemmProblem& p, std::byte* workspace, std::int64_t workspace_bytes) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) return run_empty_sum(p);
  if (scales_sums(p)) {
    const std::int64_t bytes = sums_bytes(p);
    HAWSER_CHECK(bytes <= workspace_bytes, "gemm: needs ", bytes, " bytes, the workspace has ", workspace_bytes);
    multiply(sums_of(p, workspace), workspace + bytes, workspace_bytes - bytes);
    return add_scaled(p, reinterpret_cast<const float*>(workspace));
  }
  if (few_rows(p)) return run_few_rows(p);
  if (plain(p)) return run_sgemm(p);
  if (uses_bf16_units(p)) return run_matmul(p, workspace, workspace_bytes);
  run_widened(p, workspace, workspace_bytes);
}

void gemm(const GemmCall& call) {
  multiply(call.problem, call.workspace, call.workspace_bytes);
}

void bias_gradient(const BiasGradient& args) {
  constexpr std::int64_t kColumns = 64;
  dispatch_float(args.dy.dtype(), [&](auto dy_tag) {
    dispatch_float(args.db.dtype(), [&](auto db_tag) {
      const auto dy = rows_of<decltype(dy_tag)>(args.dy);
      auto* db = args.db.data<decltype(db_tag)>();
      const float* const scale = args.scale.empty() ? nullptr : args.scale.data<float>();
      parallel_items(ceil_div(dy.columns, kColumns), [&](std::int64_t item) {
        const std::int64_t begin = item * kColumns, count = std::min(kColumns, dy.columns - begin);
        float sums[kColumns];
        HAWSER_DISPATCH(column_sums, dy.data + begin, dy.count, dy.stride, sums, count);
        for (std::int64_t i = 0; scale != nullptr && i < count; ++i) sums[i] *= *scale;
        HAWSER_DISPATCH(move_run, sums, db + begin, args.accumulate, count);
      });
    });
  });
}

}  // namespace hawser::ops::cpu
