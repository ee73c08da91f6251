#include "ops/gemm/gemm_cuda.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <vector>

#include "device/cuda/cuda_check.h"
#include "ops/gemm/gemm_choice.h"
#include "ops/gemm/gemm_key.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::ops::cuda {

namespace {

#define HAWSER_LT_CHECK(call)                                                                                \
  do {                                                                                                       \
    const cublasStatus_t hawser_status = (call);                                                             \
    HAWSER_CHECK(hawser_status == CUBLAS_STATUS_SUCCESS, #call, ": ", cublasLtGetStatusName(hawser_status)); \
  } while (false)

// Owns a library object and destroys it.
template <class T, auto Destroy>
class Handle {
 public:
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (value_ != nullptr) Destroy(value_);
  }
  T* out() { return &value_; }
  T get() const { return value_; }

 private:
  T value_ = nullptr;
};

// Alignment of an address in bytes, at most 256.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

GemmKey key_of(const GemmProblem& p) {
  return gemm_key(p, alignment_of(p.a) >= 16 && alignment_of(p.b) >= 16 && alignment_of(p.c) >= 16);
}

struct Choice {
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;     // otherwise fallback kernels are used
  bool measured = false;  // by prepare(), or restored from text
  std::string instead{};  // if not found: what runs instead, and why
};

cudaDataType_t cuda_type(DType dtype) {
  if (dtype == DType::f8e4m3) return CUDA_R_8F_E4M3;
  if (dtype == DType::f8e5m2) return CUDA_R_8F_E5M2;
  return by_float(dtype, CUDA_R_32F, CUDA_R_16BF);
}

// Of scales that are there.
cublasLtMatmulMatrixScale_t scale_mode(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::one:
      break;
    case ScaleKind::vec128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaleKind::block128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
  return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}

// cuBLASLt is column-major: it sees a row-major [r, c] matrix as its transpose [c, r]. It therefore computes
//   C^T = op(B)^T op(A)^T
// with our B as its A.
struct LtOperands {
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> description;
  Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> a, b, c;

  explicit LtOperands(const GemmProblem& p) {
    HAWSER_LT_CHECK(cublasLtMatmulDescCreate(description.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(cuda_type(p.bias_dtype)));
    }
    if (p.scales_blocks()) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, static_cast<std::int32_t>(scale_mode(p.scaling_b)));
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, static_cast<std::int32_t>(scale_mode(p.scaling_a)));
    }
    set_addresses(p);
    layout(a, p.in_b, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k, p.ldb);
    layout(b, p.in_a, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m, p.lda);
    layout(c, p.out, p.n, p.m, p.ldc);
  }

  // What a description has of one call, not of its key.
  void set_addresses(const GemmProblem& p) {
    if (p.bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (p.scale_b != nullptr) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.scale_b);
    if (p.scale_a != nullptr) set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.scale_a);
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    HAWSER_LT_CHECK(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof(value)));
  }
  // A matrix of one row may have any stride; cuBLASLt requires at least the row's length.
  template <class Layout>
  static void layout(Layout& out, DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
    HAWSER_LT_CHECK(cublasLtMatrixLayoutCreate(out.out(), cuda_type(dtype), static_cast<std::uint64_t>(rows),
                                               static_cast<std::uint64_t>(columns), std::max(stride, rows)));
  }
};

// In the per-device cache: the library handle, the descriptions of GEMMs that have run, and the algorithms chosen so
// far.
struct Lt {
  Handle<cublasLtHandle_t, cublasLtDestroy> handle;
  std::mutex mutex;
  std::map<GemmKey, LtOperands> operands;
  std::map<GemmKey, Choice> choices;

  Lt() { HAWSER_LT_CHECK(cublasLtCreate(handle.out())); }
};

// What depends on the key alone is described once; addresses of a bias and of scales are set for each call.
const LtOperands& operands_of(Lt& lt, const GemmKey& key, const GemmProblem& p) {
  const auto [entry, fresh] = lt.operands.try_emplace(key, p);
  if (!fresh) entry->second.set_addresses(p);
  return entry->second;
}

// Algorithms from cuBLASLt's heuristic, best first. If there are none, `rejection` is set to the reason.
std::vector<cublasLtMatmulHeuristicResult_t> candidates(Lt& lt, const LtOperands& operands, const GemmProblem& p,
                                                        int max_count, std::string* rejection = nullptr) {
  Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
  HAWSER_LT_CHECK(cublasLtMatmulPreferenceCreate(preference.out()));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    HAWSER_LT_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kGemmScratch));
  // A split sum over K goes through the workspace, in a fixed order; never by atomic additions to C.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.c));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.c));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(max_count));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      lt.handle.get(), operands.description.get(), operands.a.get(), operands.b.get(), operands.c.get(),
      operands.c.get(), preference.get(), max_count, results.data(), &found);
  if (status != CUBLAS_STATUS_SUCCESS) found = 0;
  results.resize(static_cast<std::size_t>(found));
  std::erase_if(results, [](const auto& r) {
    return r.state != CUBLAS_STATUS_SUCCESS || r.workspaceSize > static_cast<std::size_t>(kGemmScratch);
  });
  if (results.empty() && rejection != nullptr) {
    const auto bytes = [](const void* data, std::int64_t stride, DType dtype) {
      return alignment_of(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(data) |
                                                        static_cast<std::uintptr_t>(stride * size_of(dtype))));
    };
    *rejection =
        cat("cuBLASLt has no algorithm (", cublasLtGetStatusName(status), "; rows of a, b, c start at multiples of ",
            bytes(p.a, p.lda, p.in_a), ", ", bytes(p.b, p.ldb, p.in_b), ", ", bytes(p.c, p.ldc, p.out), " bytes)");
  }
  return results;
}

cublasStatus_t run(Lt& lt, const CudaNative& native, const LtOperands& operands, const GemmProblem& p,
                   const cublasLtMatmulAlgo_t& algorithm) {
  const float one = 1.0f, beta = p.accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status =
      cublasLtMatmul(lt.handle.get(), operands.description.get(), &one, p.b, operands.a.get(), p.a, operands.b.get(),
                     &beta, p.c, operands.c.get(), p.c, operands.c.get(), &algorithm, native.scratch(),
                     static_cast<std::size_t>(kGemmScratch), static_cast<cudaStream_t>(native.stream));
  if (status != CUBLAS_STATUS_SUCCESS) cudaGetLastError();  // a rejection by the library is not an error of the stream
  return status;
}

Choice& choice_for(Lt& lt, const GemmKey& key, const LtOperands& operands, const GemmProblem& p) {
  const auto [entry, fresh] = lt.choices.try_emplace(key);
  if (fresh) {
    std::string rejection;
    const auto found = candidates(lt, operands, p, 1, &rejection);
    entry->second.found = !found.empty();
    if (!found.empty()) entry->second.algorithm = found.front().algo;
    if (found.empty()) entry->second.instead = cat("fallback kernel (slow): ", rejection);
  }
  return entry->second;
}

bool known(const GemmProblem& p) {
  return p.in_a == p.out || p.out == DType::f32 || p.fp8();
}

// The other backends call multiply() without the checks of ops::gemm.
void check_supported(const GemmProblem& p) {
  HAWSER_CHECK(supports_dtypes_cuda(p) && supports_scales_cuda(p), "gemm: ", to_string(p.in_a), " times ",
               to_string(p.in_b), p.scaled() ? " with scales" : "", " has no backend for cuda");
}

std::string heading(const CudaNative& native) {
  cudaDeviceProp properties{};
  HAWSER_CUDA_CHECK(cudaGetDeviceProperties(&properties, native.ordinal));
  return cat("cublasLt ", cublasLtGetVersion(), " on ", properties.name);
}

}  // namespace

void multiply(const CudaNative& native, const GemmProblem& p) {
  check_supported(p);
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {
    if (p.bias != nullptr || !p.accumulate) set_rows(native, p);
    return;
  }
  Lt& lt = native.cache->get<Lt>();
  const std::lock_guard lock(lt.mutex);
  const GemmKey key = key_of(p);
  if (!known(p)) {
    lt.choices[key].instead = "fallback kernel (slow): cuBLASLt does not support float32 operands with a bf16 result";
    return multiply_simply(native, p);
  }
  const LtOperands& operands = operands_of(lt, key, p);
  Choice& choice = choice_for(lt, key, operands, p);
  if (choice.found) {
    const cublasStatus_t status = run(lt, native, operands, p, choice.algorithm);
    if (status == CUBLAS_STATUS_SUCCESS) return;
    // For example, the algorithm may need better aligned addresses. The library rejects before it writes.
    choice.found = false;
    choice.instead = "fallback kernel (slow): cuBLASLt rejected all of its algorithms";
    for (const auto& candidate : candidates(lt, operands, p, 8)) {
      if (run(lt, native, operands, p, candidate.algo) != CUBLAS_STATUS_SUCCESS) continue;
      choice = {.algorithm = candidate.algo, .found = true};
      return;
    }
  }
  if (p.bias != nullptr) {
    // No algorithm supports a bias of this type: it is added afterwards, with a second rounding.
    GemmProblem plain = p, bias = p;
    plain.bias = nullptr;
    bias.accumulate = true;
    const GemmKey plain_key = key_of(plain);
    const LtOperands& without = operands_of(lt, plain_key, plain);
    const Choice& other = choice_for(lt, plain_key, without, plain);
    if (other.found && run(lt, native, without, plain, other.algorithm) == CUBLAS_STATUS_SUCCESS) {
      choice.instead =
          "cuBLASLt without the bias, then a kernel that adds it: cuBLASLt has no algorithm with this bias";
      return set_rows(native, bias);
    }
  }
  HAWSER_CHECK(!p.fp8(), "gemm: FP8 [", p.m, ", ", p.k, "] times [", p.k, ", ", p.n, "]: ", choice.instead);
  multiply_simply(native, p);
}

void prepare(const CudaNative& native, const GemmProblem& p) {
  check_supported(p);
  if (p.m == 0 || p.n == 0 || p.k == 0 || !known(p)) return;
  HAWSER_CUDA_CHECK(cudaSetDevice(native.ordinal));
  Lt& lt = native.cache->get<Lt>();
  const std::lock_guard lock(lt.mutex);
  if (const auto entry = lt.choices.find(key_of(p)); entry != lt.choices.end() && entry->second.measured) return;
  const LtOperands operands(p);
  std::string rejection;
  const auto found = candidates(lt, operands, p, 16, &rejection);
  Choice& choice = lt.choices[key_of(p)];
  choice = {.found = !found.empty(), .measured = true};
  if (found.empty()) {
    choice.instead = cat("fallback kernel (slow): ", rejection);
    return;
  }
  choice.algorithm = found.front().algo;
  // Zeros run faster than random numbers.
  fill_random(native, const_cast<void*>(p.a), p.in_a, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda, 1);
  fill_random(native, const_cast<void*>(p.b), p.in_b, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb, 2);
  fill_random(native, p.c, p.out, p.m, p.n, p.ldc, 3);
  const auto stream = static_cast<cudaStream_t>(native.stream);
  Handle<cudaEvent_t, cudaEventDestroy> start, stop;
  HAWSER_CUDA_CHECK(cudaEventCreate(start.out()));
  HAWSER_CUDA_CHECK(cudaEventCreate(stop.out()));
  const auto elapsed = [&] {
    HAWSER_CUDA_CHECK(cudaEventRecord(stop.get(), stream));
    HAWSER_CUDA_CHECK(cudaEventSynchronize(stop.get()));
    float ms = 0;
    HAWSER_CUDA_CHECK(cudaEventElapsedTime(&ms, start.get(), stop.get()));
    return ms;
  };
  const auto runs = [&](std::size_t i, int count) {
    for (int k = 0; k < count; ++k) {
      if (run(lt, native, operands, p, found[i].algo) != CUBLAS_STATUS_SUCCESS) return false;
    }
    return true;
  };
  const GemmTimer timer{.once =
                            [&](std::size_t i) {
                              HAWSER_CUDA_CHECK(cudaMemsetAsync(native.scratch(), 0,
                                                                static_cast<std::size_t>(kCudaScratchBytes), stream));
                              HAWSER_CUDA_CHECK(cudaEventRecord(start.get(), stream));
                              return runs(i, 1) ? elapsed() : kRejectedGemm;
                            },
                        .sustained =
                            [&](std::size_t i, int settle, int count) {
                              if (!runs(i, settle)) return kRejectedGemm;
                              HAWSER_CUDA_CHECK(cudaEventRecord(start.get(), stream));
                              return runs(i, count) ? elapsed() / static_cast<float>(count) : kRejectedGemm;
                            }};
  choice.algorithm = found[choose_gemm(found.size(), timer)].algo;
}

std::string choices(const CudaNative& native) {
  HAWSER_CUDA_CHECK(cudaSetDevice(native.ordinal));  // a handle belongs to its device
  Lt& lt = native.cache->get<Lt>();
  const std::lock_guard lock(lt.mutex);
  std::ostringstream out;
  out << heading(native) << '\n';
  for (const auto& [key, choice] : lt.choices) {
    if (!choice.found) {
      const auto& f = key.fields;
      out << "# " << f[0] << " x " << f[1] << " x " << f[2] << ", strides " << f[3] << ' ' << f[4] << ' ' << f[5]
          << ", " << to_string(static_cast<DType>(f[6])) << " to " << to_string(static_cast<DType>(f[7])) << ": "
          << choice.instead << '\n';
      continue;
    }
    out << to_text(key) << ' ' << std::hex;
    for (const std::uint64_t word : choice.algorithm.data) out << word << ' ';
    out << std::dec << '\n';
  }
  return out.str();
}

namespace {

// Whether cuBLASLt runs the algorithm for the GEMM, in the scratch memory and without atomic additions: its words come
// from a file.
bool accepts(Lt& lt, const CudaNative& native, const GemmKey& key, const cublasLtMatmulAlgo_t& algorithm) {
  std::optional<GemmProblem> problem = problem_of(key);
  if (!problem || !supports_dtypes_cuda(*problem) || !known(*problem)) return false;
  if (key.fields[8] != 0) problem->bias = native.scratch();  // any address: nothing runs
  if (key.scale_a != 0) problem->scale_a = reinterpret_cast<const float*>(native.scratch());
  if (key.scale_b != 0) problem->scale_b = reinterpret_cast<const float*>(native.scratch());
  if (!supports_scales_cuda(*problem)) return false;
  const LtOperands operands(*problem);
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(lt.handle.get(), operands.description.get(), operands.a.get(), operands.b.get(),
                              operands.c.get(), operands.c.get(), &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > static_cast<std::size_t>(kGemmScratch)) return false;
  std::uint32_t reduction = 0;
  const cublasStatus_t read = cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                                   &reduction, sizeof(reduction), nullptr);
  return read == CUBLAS_STATUS_SUCCESS &&
         (reduction == CUBLASLT_REDUCTION_SCHEME_NONE || reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

}  // namespace

std::int64_t take_choices(const CudaNative& native, const std::string& text, bool keep) {
  HAWSER_CUDA_CHECK(cudaSetDevice(native.ordinal));
  Lt& lt = native.cache->get<Lt>();
  const std::lock_guard lock(lt.mutex);
  std::istringstream in(text);
  std::string line;
  if (!std::getline(in, line) || line != heading(native)) return 0;
  std::int64_t taken = 0;
  while (std::getline(in, line)) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    GemmKey key;
    Choice choice{.found = true, .measured = true};
    read_key(words, key) >> std::hex;
    for (auto& word : choice.algorithm.data) words >> word;
    if (!words) continue;
    const auto there = lt.choices.find(key);
    if (keep && there != lt.choices.end() && there->second.measured) continue;
    if (!accepts(lt, native, key, choice.algorithm)) continue;
    lt.choices[key] = choice;
    ++taken;
  }
  return taken;
}

}  // namespace hawser::ops::cuda
