#include "ops/gemm/gemm_cpu.h"

#include <unistd.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/gemm/gemm_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

namespace {

int most_threads() {
  static const int threads = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  return threads;
}

// Sets the calling thread's team size for a scope.
class TeamSize {
 public:
  explicit TeamSize(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
  }
  ~TeamSize() {
    if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
  }
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int before_;
};

bool has_bf16_units() {
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has && vector_level() == VectorLevel::avx512;
}

// oneDNN's matmul for one shape, layout and team size; it may run on several streams at once.
struct Matmul {
  dnnl::matmul primitive;
  dnnl::memory::desc a, b, c, bias, scratchpad;
};

dnnl::engine& engine() {
  static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::matmul::primitive_desc describe(const Product& p, Matmul& out) {
  using dnnl::memory;
  const auto strides = [](std::int64_t ld, bool transposed) {
    return transposed ? memory::dims{1, ld} : memory::dims{ld, 1};
  };
  out.a = memory::desc({p.m, p.k}, dnnl_type(p.in), strides(p.lda, p.transpose_a));
  out.b = memory::desc({p.k, p.n}, dnnl_type(p.in), strides(p.ldb, p.transpose_b));
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
                       int, bool, bool, bool, int>;

Key key_of(const Product& p, int threads) {
  const int bias = p.bias == nullptr ? -1 : static_cast<int>(p.bias_dtype);
  return {p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.in, p.out, bias, p.transpose_a, p.transpose_b, p.accumulate, threads};
}

std::shared_ptr<const Matmul> matmul_for(const Product& p, int threads) {
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<const Matmul>> cache;
  const std::lock_guard lock(mutex);
  auto& entry = cache[key_of(p, threads)];
  if (entry == nullptr) {
    const TeamSize team(threads);
    auto made = std::make_shared<Matmul>();
    const auto description = describe(p, *made);
    made->primitive = dnnl::matmul(description);
    made->scratchpad = description.scratchpad_desc();
    entry = std::move(made);
  }
  return entry;
}

// The largest scratchpad over all team sizes; from descriptions alone, so that nothing is compiled for a plan.
std::int64_t matmul_scratchpad(const Product& p) {
  static std::mutex mutex;
  static std::map<Key, std::int64_t> cache;
  const std::lock_guard lock(mutex);
  auto& entry = cache.try_emplace(key_of(p, 0), -1).first->second;
  if (entry >= 0) return entry;
  for (int threads = 1; threads <= most_threads(); ++threads) {
    const TeamSize team(threads);
    Matmul unused;
    entry = std::max(entry, static_cast<std::int64_t>(describe(p, unused).scratchpad_desc().get_size()));
  }
  return entry;
}

void run_matmul(const Product& p, std::byte* workspace, std::int64_t workspace_bytes) {
  const TeamSize team(std::min(omp_get_max_threads(), most_threads()));
  const auto matmul = matmul_for(p, omp_get_max_threads());
  const auto needed = static_cast<std::int64_t>(matmul->scratchpad.get_size());
  HAWSER_CHECK(needed <= workspace_bytes, "gemm: oneDNN needs ", needed, " bytes, the workspace has ", workspace_bytes);
  const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, engine(), const_cast<void*>(data));
  };
  std::unordered_map<int, dnnl::memory> args{{DNNL_ARG_SRC, memory(matmul->a, p.a)},
                                             {DNNL_ARG_WEIGHTS, memory(matmul->b, p.b)},
                                             {DNNL_ARG_DST, memory(matmul->c, p.c)},
                                             {DNNL_ARG_SCRATCHPAD, memory(matmul->scratchpad, workspace)}};
  if (p.bias != nullptr) args.emplace(DNNL_ARG_BIAS, memory(matmul->bias, p.bias));
  dnnl::stream stream(engine());
  matmul->primitive.execute(stream, args);
  stream.wait();
}

// to[r, :] (+)= from[r, :] for `rows` rows; from_stride 0 repeats one row.
void move_rows(const void* from, DType from_dtype, std::int64_t from_stride, void* to, DType to_dtype,
               std::int64_t to_stride, bool accumulate, std::int64_t rows, std::int64_t columns) {
  with_act(from_dtype, [&](auto from_tag) {
    with_act(to_dtype, [&](auto to_tag) {
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

void run_sgemm(const Product& p) {
  if (p.bias != nullptr) {
    move_rows(p.bias, p.bias_dtype, 0, p.c, DType::f32, p.ldc, p.accumulate, p.m, p.n);
  }
  const float beta = p.accumulate || p.bias != nullptr ? 1.0f : 0.0f;
  const auto status = dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f,
                                 static_cast<const float*>(p.a), p.lda, static_cast<const float*>(p.b), p.ldb, beta,
                                 static_cast<float*>(p.c), p.ldc);
  HAWSER_CHECK(status == dnnl_success, "gemm: dnnl_sgemm returned ", static_cast<int>(status));
}

// Float32 copies of what is not float32, for processors without bf16 units.
struct Widened {
  std::int64_t a = 0, b = 0, c = 0;  // elements
  std::int64_t bytes() const { return 4 * (a + b + c); }
};

Widened widened(const Product& p) {
  Widened w;
  if (p.in == DType::bf16) {
    w.a = round_up(p.m * p.k, 16);
    w.b = round_up(p.k * p.n, 16);
  }
  if (p.out == DType::bf16) w.c = round_up(p.m * p.n, 16);
  return w;
}

void run_widened(const Product& p, std::byte* workspace, std::int64_t workspace_bytes) {
  const Widened w = widened(p);
  HAWSER_CHECK(w.bytes() <= workspace_bytes, "gemm: needs ", w.bytes(), " bytes, the workspace has ", workspace_bytes);
  auto* const a = reinterpret_cast<float*>(workspace);
  float* const b = a + w.a;
  float* const c = b + w.b;
  Product wide = p;
  wide.in = wide.out = DType::f32;
  if (w.a > 0) {
    const std::int64_t rows = p.transpose_a ? p.k : p.m, columns = p.transpose_a ? p.m : p.k;
    move_rows(p.a, p.in, p.lda, a, DType::f32, columns, false, rows, columns);
    wide.a = a;
    wide.lda = columns;
  }
  if (w.b > 0) {
    const std::int64_t rows = p.transpose_b ? p.n : p.k, columns = p.transpose_b ? p.k : p.n;
    move_rows(p.b, p.in, p.ldb, b, DType::f32, columns, false, rows, columns);
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

// No sum to take: C = bias, or C += bias.
void run_empty_sum(const Product& p) {
  if (p.bias != nullptr) {
    move_rows(p.bias, p.bias_dtype, 0, p.c, p.out, p.ldc, p.accumulate, p.m, p.n);
  } else if (!p.accumulate) {
    for (std::int64_t r = 0; r < p.m; ++r) {
      const std::int64_t element = size_of(p.out);
      std::memset(static_cast<std::byte*>(p.c) + r * p.ldc * element, 0, static_cast<std::size_t>(p.n * element));
    }
  }
}

bool plain(const Product& p) {
  return p.in == DType::f32 && p.out == DType::f32;
}
bool empty(const Product& p) {
  return p.m == 0 || p.n == 0 || p.k == 0;
}

}  // namespace

std::int64_t product_workspace(const Product& p) {
  if (plain(p) || empty(p)) return 0;
  if (p.in == DType::bf16 && has_bf16_units()) return round_up(matmul_scratchpad(p), 64);
  return widened(p).bytes();
}

void multiply(const Product& p, std::byte* workspace, std::int64_t workspace_bytes) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) return run_empty_sum(p);
  if (plain(p)) return run_sgemm(p);
  if (p.in == DType::bf16 && has_bf16_units()) return run_matmul(p, workspace, workspace_bytes);
  run_widened(p, workspace, workspace_bytes);
}

void bias_gradient(const BiasGradient& args) {
  constexpr std::int64_t kColumns = 64;
  with_act(args.dy.dtype(), [&](auto dy_tag) {
    with_act(args.db.dtype(), [&](auto db_tag) {
      const auto dy = rows_of<decltype(dy_tag)>(args.dy);
      auto* db = args.db.data<decltype(db_tag)>();
      parallel_items(ceil_div(dy.columns, kColumns), [&](std::int64_t item) {
        const std::int64_t begin = item * kColumns, count = std::min(kColumns, dy.columns - begin);
        float sums[kColumns];
        HAWSER_DISPATCH(column_sums, dy.data + begin, dy.count, dy.stride, sums, count);
        HAWSER_DISPATCH(move_run, sums, db + begin, args.accumulate, count);
      });
    });
  });
}

}  // namespace hawser::ops::cpu
