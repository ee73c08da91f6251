#include "ops/gemm/gemm_cuda.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <tuple>
#include <vector>

#include "device/cuda/check.h"

namespace hawser::ops::cuda {

namespace {

#define HAWSER_LT_CHECK(call)                                                                                \
  do {                                                                                                       \
    const cublasStatus_t hawser_status = (call);                                                             \
    HAWSER_CHECK(hawser_status == CUBLAS_STATUS_SUCCESS, #call, ": ", cublasLtGetStatusName(hawser_status)); \
  } while (false)

// Library objects that end with their owner.
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

// How far an address is aligned, at most 256.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

constexpr int kKeyFields = 13;
using Key = std::array<std::int64_t, kKeyFields>;

Key key_of(const Product& p) {
  const std::int64_t bias = p.bias == nullptr ? 0 : 1 + static_cast<std::int64_t>(p.bias_dtype);
  const bool aligned = alignment_of(p.a) >= 16 && alignment_of(p.b) >= 16 && alignment_of(p.c) >= 16;
  return {p.m,
          p.n,
          p.k,
          p.lda,
          p.ldb,
          p.ldc,
          static_cast<std::int64_t>(p.in),
          static_cast<std::int64_t>(p.out),
          bias,
          p.transpose_a,
          p.transpose_b,
          p.accumulate,
          aligned};
}

struct Choice {
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;     // else cuBLASLt has none, and multiply_simply() stands in
  bool measured = false;  // by prepare(), or taken from text
};

// Kept by the device: one handle, and what has been chosen so far.
struct Lt {
  Handle<cublasLtHandle_t, cublasLtDestroy> handle;
  std::mutex mutex;
  std::map<Key, Choice> choices;

  Lt() { HAWSER_LT_CHECK(cublasLtCreate(handle.out())); }
};

cudaDataType_t cuda_type(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

// cuBLASLt is column-major: what is stored row-major [r, c] it sees as the transpose [c, r]. So C^T = op(B)^T op(A)^T:
// our B is its A.
struct Problem {
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> description;
  Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> a, b, c;

  explicit Problem(const Product& p) {
    HAWSER_LT_CHECK(cublasLtMatmulDescCreate(description.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(cuda_type(p.bias_dtype)));
    }
    layout(a, p.in, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k, p.ldb);
    layout(b, p.in, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m, p.lda);
    layout(c, p.out, p.n, p.m, p.ldc);
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    HAWSER_LT_CHECK(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof(value)));
  }
  // A matrix of one row may have any stride; cuBLASLt wants at least a row's length.
  template <class Layout>
  static void layout(Layout& out, DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
    HAWSER_LT_CHECK(cublasLtMatrixLayoutCreate(out.out(), cuda_type(dtype), static_cast<std::uint64_t>(rows),
                                               static_cast<std::uint64_t>(columns), std::max(stride, rows)));
  }
};

std::vector<cublasLtMatmulHeuristicResult_t> candidates(Lt& lt, const Problem& problem, const Product& p, int most) {
  Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
  HAWSER_LT_CHECK(cublasLtMatmulPreferenceCreate(preference.out()));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    HAWSER_LT_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kProductScratch));
  // A sum over K that is cut goes through the workspace, in order; never by atomic additions to C.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.c));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.c));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(lt.handle.get(), problem.description.get(), problem.a.get(), problem.b.get(),
                                     problem.c.get(), problem.c.get(), preference.get(), most, results.data(), &found);
  if (status != CUBLAS_STATUS_SUCCESS) found = 0;
  results.resize(static_cast<std::size_t>(found));
  std::erase_if(results, [](const auto& r) {
    return r.state != CUBLAS_STATUS_SUCCESS || r.workspaceSize > static_cast<std::size_t>(kProductScratch);
  });
  return results;
}

cublasStatus_t run(Lt& lt, const CudaNative& native, const Problem& problem, const Product& p,
                   const cublasLtMatmulAlgo_t& algorithm) {
  const float one = 1.0f, beta = p.accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status =
      cublasLtMatmul(lt.handle.get(), problem.description.get(), &one, p.b, problem.a.get(), p.a, problem.b.get(),
                     &beta, p.c, problem.c.get(), p.c, problem.c.get(), &algorithm, native.scratch(),
                     static_cast<std::size_t>(kProductScratch), static_cast<cudaStream_t>(native.stream));
  if (status != CUBLAS_STATUS_SUCCESS) cudaGetLastError();  // a refusal of the library is no error of the stream
  return status;
}

Choice& choice_for(Lt& lt, const Problem& problem, const Product& p) {
  const auto [entry, fresh] = lt.choices.try_emplace(key_of(p));
  if (fresh) {
    const auto found = candidates(lt, problem, p, 1);
    entry->second.found = !found.empty();
    if (!found.empty()) entry->second.algorithm = found.front().algo;
  }
  return entry->second;
}

bool known(const Product& p) {
  return p.in == p.out || p.out == DType::f32;
}

std::string heading(const CudaNative& native) {
  cudaDeviceProp properties{};
  HAWSER_CUDA_CHECK(cudaGetDeviceProperties(&properties, native.ordinal));
  return cat("cublasLt ", cublasLtGetVersion(), " on ", properties.name);
}

}  // namespace

void multiply(const CudaNative& native, const Product& p) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {
    if (p.bias != nullptr || !p.accumulate) set_rows(native, p);
    return;
  }
  // float32 operands with a bf16 result do not occur in training, and cuBLASLt does not have them.
  if (!known(p)) return multiply_simply(native, p);
  Lt& lt = native.keep->get<Lt>();
  const std::lock_guard lock(lt.mutex);
  const Problem problem(p);
  Choice& choice = choice_for(lt, problem, p);
  if (choice.found) {
    const cublasStatus_t status = run(lt, native, problem, p, choice.algorithm);
    if (status == CUBLAS_STATUS_SUCCESS) return;
    // A choice for better aligned addresses than these, say; the library refuses before it writes.
    choice.found = false;
    for (const auto& candidate : candidates(lt, problem, p, 8)) {
      if (run(lt, native, problem, p, candidate.algo) != CUBLAS_STATUS_SUCCESS) continue;
      choice = {.algorithm = candidate.algo, .found = true};
      return;
    }
  }
  if (p.bias != nullptr) {
    // No algorithm with a bias of this type: it is added afterwards, rounded twice.
    Product plain = p, bias = p;
    plain.bias = nullptr;
    bias.accumulate = true;
    const Problem without(plain);
    const Choice& other = choice_for(lt, without, plain);
    if (other.found && run(lt, native, without, plain, other.algorithm) == CUBLAS_STATUS_SUCCESS) {
      return set_rows(native, bias);
    }
  }
  multiply_simply(native, p);
}

void prepare(const CudaNative& native, const Product& p) {
  if (p.m == 0 || p.n == 0 || p.k == 0 || !known(p)) return;
  HAWSER_CUDA_CHECK(cudaSetDevice(native.ordinal));
  Lt& lt = native.keep->get<Lt>();
  const std::lock_guard lock(lt.mutex);
  if (const auto entry = lt.choices.find(key_of(p)); entry != lt.choices.end() && entry->second.measured) return;
  const Problem problem(p);
  auto found = candidates(lt, problem, p, 32);
  Choice& choice = lt.choices[key_of(p)];
  choice = {.found = !found.empty(), .measured = true};
  if (found.empty()) return;
  choice.algorithm = found.front().algo;
  // Zeros run faster than numbers do.
  fill_random(native, const_cast<void*>(p.a), p.in, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda, 1);
  fill_random(native, const_cast<void*>(p.b), p.in, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb, 2);
  fill_random(native, p.c, p.out, p.m, p.n, p.ldc, 3);
  const auto stream = static_cast<cudaStream_t>(native.stream);
  Handle<cudaEvent_t, cudaEventDestroy> start, stop;
  HAWSER_CUDA_CHECK(cudaEventCreate(start.out()));
  HAWSER_CUDA_CHECK(cudaEventCreate(stop.out()));
  const auto seconds = [&](const cublasLtMatmulAlgo_t& algorithm, int times) {
    HAWSER_CUDA_CHECK(cudaEventRecord(start.get(), stream));
    for (int i = 0; i < times; ++i) {
      if (run(lt, native, problem, p, algorithm) != CUBLAS_STATUS_SUCCESS) return 1e30f;
    }
    HAWSER_CUDA_CHECK(cudaEventRecord(stop.get(), stream));
    HAWSER_CUDA_CHECK(cudaEventSynchronize(stop.get()));
    float ms = 0;
    HAWSER_CUDA_CHECK(cudaEventElapsedTime(&ms, start.get(), stop.get()));
    return ms / static_cast<float>(times);
  };
  // Two rounds: all once after a warm-up, then the best four again for longer, since clocks and caches drift.
  std::vector<std::pair<float, cublasLtMatmulAlgo_t>> timed;
  seconds(found.front().algo, 3);
  for (const auto& candidate : found) timed.emplace_back(seconds(candidate.algo, 2), candidate.algo);
  const auto faster = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::stable_sort(timed.begin(), timed.end(), faster);
  timed.resize(std::min<std::size_t>(timed.size(), 4));
  for (auto& [ms, algorithm] : timed) ms = seconds(algorithm, std::clamp(static_cast<int>(10.0f / ms), 3, 20));
  std::stable_sort(timed.begin(), timed.end(), faster);
  choice.algorithm = timed.front().second;
}

std::string choices(const CudaNative& native) {
  Lt& lt = native.keep->get<Lt>();
  const std::lock_guard lock(lt.mutex);
  std::ostringstream out;
  out << heading(native) << '\n';
  for (const auto& [key, choice] : lt.choices) {
    if (!choice.found) continue;
    for (const std::int64_t field : key) out << field << ' ';
    out << std::hex;
    for (const std::uint64_t word : choice.algorithm.data) out << word << ' ';
    out << std::dec << '\n';
  }
  return out.str();
}

std::int64_t take_choices(const CudaNative& native, const std::string& text) {
  Lt& lt = native.keep->get<Lt>();
  const std::lock_guard lock(lt.mutex);
  std::istringstream in(text);
  std::string line;
  if (!std::getline(in, line) || line != heading(native)) return 0;
  std::int64_t taken = 0;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    Key key;
    Choice choice{.found = true, .measured = true};
    for (std::int64_t& field : key) words >> field;
    words >> std::hex;
    for (auto& word : choice.algorithm.data) words >> word;
    if (!words) continue;
    lt.choices[key] = choice;
    ++taken;
  }
  return taken;
}

}  // namespace hawser::ops::cuda
