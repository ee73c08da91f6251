// Benchmark of comm/nccl's collectives, and of their cost to a GEMM that runs concurrently.
//
//   mpirun -np 4 bench_comm_nccl [--max-ctas N] [--min-ctas N] [--only all_gather]
//   mpirun -np 4 bench_comm_nccl --memory     GPU memory of communicators, one by one
//
// One GPU per rank. Bytes are those of the full buffer (size * n elements). Bus GB/s as in nccl-tests: the minimum that
// every link must carry. Each figure is the median of separately timed runs, on the slowest rank.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "comm/mpi/world.h"
#include "comm/nccl/nccl_group.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/native.h"
#include "ops/gemm/gemm.h"

namespace hawser::comm {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
const std::vector<std::int64_t> kSizes = {1 * kMiB, 8 * kMiB, 64 * kMiB, 436 * kMiB, 1024 * kMiB};
constexpr int kColumn = 11;

double slowest(World& world, double mine) {
  double out = 0;
  for (const std::string& one : world.all_gather_strings(std::to_string(mine))) out = std::max(out, std::stod(one));
  return out;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(World& world, Device& device, const NcclOptions& options)
      : world_(world),
        device_(device),
        stream_(device.make_stream("comm")),
        compute_(device.make_stream("compute")),
        mesh_(make_nccl_mesh(world, {.shard = world.size()}, 120.0, device, options)),
        ring_(make_nccl_mesh(world, {.shard = world.size()}, 120.0, device, without_copy_engines(options))),
        arena_(device, 2 * kSizes.back() + kWorkspace),
        plain_(device, 2 * kSizes.back() + kWorkspace) {
    HAWSER_CUDA_CHECK(cudaEventCreate(&start_));
    HAWSER_CUDA_CHECK(cudaEventCreate(&stop_));
    note_ = mesh_->register_memory(arena_.data(), arena_.bytes());
    HAWSER_CUDA_CHECK(cudaMemset(arena_.data(), 0, static_cast<std::size_t>(arena_.bytes())));
    HAWSER_CUDA_CHECK(cudaMemset(plain_.data(), 0, static_cast<std::size_t>(plain_.bytes())));
  }
  ~Bench() {
    mesh_->unregister_memory(arena_.data());
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const std::string& note() const { return note_; }

  // A collective over `bytes` bytes, in the registered arena or in the other.
  using Run = std::function<void(std::int64_t bytes)>;
  struct Line {
    const char* name;
    double bus;  // bytes on each link, as a fraction of the buffer's
    Run run;
  };
  std::vector<Line> lines() {
    const double part = static_cast<double>(world_.size() - 1) / world_.size();
    Group &gather = mesh_->shard_gather(), &reduce = mesh_->shard_reduce();
    Group &ring_gather = ring_->shard_gather(), &ring_reduce = ring_->shard_reduce();
    return {
        {"all_gather, registered", part, [&](auto b) { all_gather(gather, arena_, b); }},
        {"all_gather, ring", part, [&](auto b) { all_gather(ring_gather, plain_, b); }},
        {"reduce_scatter, ours, registered", part, [&](auto b) { reduce_scatter(reduce, arena_, b); }},
        {"reduce_scatter, ours", part, [&](auto b) { reduce_scatter(ring_reduce, plain_, b); }},
        {"reduce_scatter, NCCL", part, [&](auto b) { nccl_reduce_scatter(ring_reduce, plain_, b); }},
        {"reduce_scatter, NCCL, registered", part, [&](auto b) { nccl_reduce_scatter(reduce, arena_, b); }},
        {"all_reduce, ours, registered", 2 * part, [&](auto b) { all_reduce(reduce, arena_, b); }},
        {"all_reduce, NCCL", 2 * part, [&](auto b) { nccl_all_reduce(ring_reduce, plain_, b); }},
        {"all_to_all, registered", part, [&](auto b) { all_to_all(gather, arena_, b); }},
        {"all_to_all, kernels", part, [&](auto b) { all_to_all(ring_gather, plain_, b); }},
    };
  }

  // Seconds of one run.
  double seconds(const Run& run, std::int64_t bytes) {
    const int batch = bytes <= 8 * kMiB ? 10 : 1;
    for (int i = 0; i < 3; ++i) run(bytes);
    stream_->synchronize();
    world_.barrier();
    std::vector<double> times;
    for (int i = 0; i < 15; ++i) {
      HAWSER_CUDA_CHECK(cudaEventRecord(start_, native(*stream_)));
      for (int k = 0; k < batch; ++k) run(bytes);
      HAWSER_CUDA_CHECK(cudaEventRecord(stop_, native(*stream_)));
      stream_->synchronize();
      times.push_back(elapsed() / batch);
    }
    return slowest(world_, median(times));
  }

  // A GEMM with the shape of the gate and up projection at 16,384 tokens, run many times.
  void prepare_gemm() {
    const auto take = [&](std::int64_t rows, std::int64_t columns) {
      kept_.emplace_back(device_, DType::bf16, Shape{rows, columns});
      return kept_.back().view();
    };
    gemm_ = {.a = take(16384, 4096), .b = take(28672, 4096), .c = take(16384, 28672), .transpose_b = true};
    ops::gemm_prepare(*compute_, gemm_);
    compute_->synchronize();
  }
  // Time of kGemms GEMMs in s, with `overlapped` enqueued before them on the other stream.
  double gemms(const std::function<void()>& overlapped) {
    std::vector<double> times;
    for (int i = 0; i < 11; ++i) {
      world_.barrier();
      if (overlapped) overlapped();
      HAWSER_CUDA_CHECK(cudaEventRecord(start_, native(*compute_)));
      for (int k = 0; k < kGemms; ++k) ops::gemm(*compute_, gemm_);
      HAWSER_CUDA_CHECK(cudaEventRecord(stop_, native(*compute_)));
      compute_->synchronize();
      stream_->synchronize();
      if (i > 0) times.push_back(elapsed());
    }
    return slowest(world_, median(times));
  }
  static constexpr int kGemms = 8;

 private:
  static constexpr std::int64_t kWorkspace = 2 * kCudaReduceBytes;

  static NcclOptions without_copy_engines(NcclOptions options) {
    options.copy_engines = false;
    return options;
  }
  static cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()->stream); }
  double elapsed() {
    float ms = 0;
    HAWSER_CUDA_CHECK(cudaEventElapsedTime(&ms, start_, stop_));
    return ms * 1e-3;
  }
  static ncclComm_t comm(Group& group) { return dynamic_cast<NcclGroup&>(group).communicator(); }

  // An arena holds two buffers and a workspace.
  static TensorView first(const Arena& in, DType dtype, std::int64_t n) {
    return {in.data(), dtype, {n}, DeviceKind::cuda};
  }
  static TensorView second(const Arena& in, DType dtype, std::int64_t n) {
    return {in.data() + kSizes.back(), dtype, {n}, DeviceKind::cuda};
  }
  static TensorView workspace(const Arena& in) {
    return {in.data() + 2 * kSizes.back(), DType::u8, {kWorkspace}, DeviceKind::cuda};
  }
  // Elements of one member's part of a bf16 buffer of `bytes` bytes.
  std::int64_t part(std::int64_t bytes) const { return bytes / 2 / world_.size(); }

  void all_gather(Group& group, const Arena& in, std::int64_t bytes) {
    group.all_gather(*stream_, first(in, DType::bf16, part(bytes)),
                     second(in, DType::bf16, part(bytes) * world_.size()));
  }
  void reduce_scatter(Group& group, const Arena& in, std::int64_t bytes) {
    group.reduce_scatter(*stream_, first(in, DType::bf16, part(bytes) * world_.size()),
                         second(in, DType::f32, part(bytes)), /*accumulate=*/true, workspace(in));
  }
  void all_reduce(Group& group, const Arena& in, std::int64_t bytes) {
    group.all_reduce(*stream_, first(in, DType::bf16, bytes / 2), Reduction::sum, workspace(in));
  }
  void all_to_all(Group& group, const Arena& in, std::int64_t bytes) {
    const std::int64_t n = part(bytes) * world_.size();
    group.all_to_all(*stream_, first(in, DType::bf16, n), second(in, DType::bf16, n));
  }
  void nccl_reduce_scatter(Group& group, const Arena& in, std::int64_t bytes) {
    expect(ncclReduceScatter(in.data(), in.data() + kSizes.back(), static_cast<std::size_t>(part(bytes)), ncclBfloat16,
                             ncclSum, comm(group), native(*stream_)));
  }
  void nccl_all_reduce(Group& group, const Arena& in, std::int64_t bytes) {
    expect(ncclAllReduce(in.data(), in.data(), static_cast<std::size_t>(bytes / 2), ncclBfloat16, ncclSum, comm(group),
                         native(*stream_)));
  }
  static void expect(ncclResult_t result) { HAWSER_CHECK(result == ncclSuccess, "NCCL: ", ncclGetErrorString(result)); }

  World& world_;
  Device& device_;
  std::unique_ptr<Stream> stream_, compute_;
  std::unique_ptr<Mesh> mesh_, ring_;
  Arena arena_, plain_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  std::string note_;
  std::vector<Storage> kept_;
  ops::Gemm gemm_;
};

// GPU memory of a mesh's communicators, in MiB.
double memory_of_a_mesh(World& world, Device& device, const NcclOptions& options) {
  std::size_t before = 0, after = 0, all = 0;
  HAWSER_CUDA_CHECK(cudaMemGetInfo(&before, &all));
  const auto mesh = make_nccl_mesh(world, {.shard = world.size()}, 120.0, device, options);
  HAWSER_CUDA_CHECK(cudaMemGetInfo(&after, &all));
  return static_cast<double>(before - after) / static_cast<double>(kMiB);
}

// Reports the GPU memory that rank 0 allocates in each step of creating a mesh, and in its first collectives. The
// latter should be zero, since a step must not allocate.
void report_memory(World& world, Device& device, NcclOptions options) {
  const int n = world.size();
  const bool speaks = world.rank().value() == 0;
  std::int64_t before = device.memory().used, first = before;
  const auto log = [&](const std::string& what) {
    const std::int64_t now = device.memory().used;
    if (speaks) std::printf("  %-44s %9.1f MiB\n", what.c_str(), static_cast<double>(now - before) / kMiB);
    before = now;
  };
  options.made = log;
  const std::vector<std::pair<const char*, comm::MeshSizes>> meshes = {
      {"sharded", {.shard = n}}, {"replicated", {.replicate = n, .shard_context = false}}, {"context", {.context = n}}};
  for (const auto& [name, sizes] : meshes) {
    if (speaks) std::printf("%s over %d GPUs:\n", name, n);
    const auto stream = device.make_stream("memory");
    before = first = device.memory().used;
    const auto mesh = make_nccl_mesh(world, sizes, 120.0, device, options);
    const std::int64_t meshes_end = device.memory().used;
    {
      constexpr std::int64_t kPart = 64 * kMiB;
      const Arena arena(device, kPart * (n + 1) + 2 * kCudaReduceBytes);
      log("(arena to register)");
      const std::string note = mesh->register_memory(arena.data(), arena.bytes());
      if (speaks && !note.empty()) std::printf("  %s\n", note.c_str());
      log("registered");
      const TensorView part(arena.data(), DType::bf16, {kPart / 2}, DeviceKind::cuda);
      const TensorView whole(arena.data() + kPart, DType::bf16, {kPart / 2 * n}, DeviceKind::cuda);
      const TensorView workspace(arena.data() + kPart * (n + 1), DType::u8, {2 * kCudaReduceBytes}, DeviceKind::cuda);
      const auto done = [&](const char* what) {
        stream->synchronize();
        log(what);
      };
      if (mesh->shard().size() > 1) {
        mesh->shard_gather().all_gather(*stream, part, whole);
        done("first all_gather of shards");
        mesh->shard_reduce().reduce_scatter(*stream, whole, part, /*accumulate=*/false, workspace);
        done("first reduce_scatter of shards");
        mesh->shard().all_reduce(*stream, part.rows(0, 64), Reduction::sum, workspace);
        done("first all_reduce of scalars over shards");
      }
      if (mesh->context().size() > 1) {
        mesh->context().all_gather(*stream, part, whole);
        mesh->context().reduce_scatter(*stream, whole, part, /*accumulate=*/false, workspace);
        done("first all_gather and reduce_scatter of context");
      }
      if (mesh->replicate().size() > 1) {
        mesh->replicate().all_reduce(*stream, part, Reduction::sum, workspace);
        done("first all_reduce over replicas");
      }
      mesh->data().all_reduce(*stream, part.rows(0, 64), Reduction::sum, workspace);
      done("first all_reduce of scalars over all ranks");
      mesh->unregister_memory(arena.data());
    }
    if (speaks) {
      std::printf("  the mesh takes %.1f MiB, later allocations %.1f MiB\n",
                  static_cast<double>(meshes_end - first) / kMiB,
                  static_cast<double>(device.memory().used - meshes_end) / kMiB);
      std::fflush(stdout);
    }
    world.barrier();
  }
}

void run(World& world, Device& device, const NcclOptions& options, const std::string& only) {
  const double memory = memory_of_a_mesh(world, device, options);
  Bench bench(world, device, options);
  const bool speaks = world.rank().value() == 0;
  int version = 0;
  ncclGetVersion(&version);
  if (speaks) {
    std::printf("%d GPUs, NCCL %d, CTAs %d to %d, a mesh takes %.0f MiB; registered memory: %s\n", world.size(),
                version, options.min_ctas, options.max_ctas, memory,
                bench.note().empty() ? "mapped on all GPUs" : bench.note().c_str());
    std::printf("%-34s", "bus GB/s at MiB:");
    for (const std::int64_t bytes : kSizes) std::printf("%*lld", kColumn, static_cast<long long>(bytes / kMiB));
    std::printf("%*s\n", 2 * kColumn, "slowdown of GEMM");
  }
  bench.prepare_gemm();
  const double alone = bench.gemms(nullptr);
  for (const Bench::Line& line : bench.lines()) {
    if (std::string(line.name).find(only) == std::string::npos) continue;
    if (speaks) std::printf("%-34s", line.name);
    double large = 0;
    for (const std::int64_t bytes : kSizes) {
      const double seconds = bench.seconds(line.run, bytes);
      if (bytes == 436 * kMiB) large = seconds;
      if (speaks) std::printf("%*.0f", kColumn, static_cast<double>(bytes) * line.bus / seconds * 1e-9);
    }
    // Enough collectives to keep the links busy while the GEMMs run, including their slowdown.
    const int times = static_cast<int>(1.5 * alone / large) + 2;
    const double overlapped = bench.gemms([&] {
      for (int i = 0; i < times; ++i) line.run(436 * kMiB);
    });
    if (speaks) std::printf("%*s%+.1f%%\n", 2 * kColumn - 6, "", (overlapped / alone - 1) * 100), std::fflush(stdout);
  }
  if (speaks) std::printf("GEMM alone: %.3f ms\n", alone / Bench::kGemms * 1e3);
}

}  // namespace
}  // namespace hawser::comm

int main(int argc, char** argv) {
  using namespace hawser;  // NOLINT
  comm::NcclOptions options;
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--max-ctas") == 0) options.max_ctas = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--min-ctas") == 0) options.min_ctas = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
  }
  const bool memory = argc == 2 && std::strcmp(argv[1], "--memory") == 0;
  comm::World world(120.0);
  const CudaInfo info = cuda_info();
  const int gpu = world.local_rank();
  if (world.any(gpu >= info.devices)) {
    if (gpu == 0) std::printf("SKIPPED: one GPU per rank is required: %s\n", info.problem.c_str());
    return 77;
  }
  try {
    const auto device = make_cuda_device(gpu);
    if (memory) {
      comm::report_memory(world, *device, options);
    } else {
      comm::run(world, *device, options, only);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    world.abort(1);
  }
  return 0;
}
