// Starts ranks as a run does: checks mpirun and measures all-reduces.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/doctor/findings.h"
#include "cli/exit.h"
#include "comm/mesh.h"
#include "comm/mpi/world.h"
#include "device/device.h"
#include "io/json.h"
#include "launch/launcher_environment.h"
#include "launch/local.h"
#include "launch/mpirun.h"
#include "launch/stop.h"

namespace hawser::cli::checks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTimeLimit = 8.0;        // seconds that an all-reduce may take before the ranks are ended
constexpr double kMeasuring = 1.0;        // seconds of each of the two measurements
constexpr std::int64_t kSmall = 1;        // elements
constexpr std::int64_t kLarge = 4 << 20;  // 16 MiB
constexpr double kSlowSum = 2e-3;         // of a few bytes, within a machine
constexpr double kSlowRate = 200e6;       // bytes per second

// Seconds of an all-reduce of `elements` float32 over all ranks: the median of several, the upper one of two.
// Collective. InternalError if the sum is wrong.
double time_sum(comm::Mesh& mesh, Device& device, std::int64_t elements) {
  const int ranks = mesh.world().size();
  const auto stream = device.make_stream("doctor");
  const std::int64_t scratch = comm::all_reduce_workspace(elements, DType::f32, ranks, DeviceKind::cpu);
  Arena data(device, elements * 4), space(device, std::max<std::int64_t>(scratch, 4));
  const TensorView view(data.data(), DType::f32, {elements}, DeviceKind::cpu);
  const TensorView workspace(space.data(), DType::f32, {space.bytes() / 4}, DeviceKind::cpu);
  auto* values = reinterpret_cast<float*>(data.data());
  std::vector<double> times;
  // All ranks run the same number of rounds, on which they agree by the time of the third round. The first is warmup.
  int rounds = 3;
  for (int i = 0; i < rounds; ++i) {
    std::fill(values, values + elements, 1.0f);
    mesh.world().barrier(*stream);
    stream->synchronize();
    const auto start = Clock::now();
    mesh.world().all_reduce(*stream, view, comm::Reduction::sum, workspace);
    stream->synchronize();
    const double seconds = seconds_since(start);
    if (i > 0) times.push_back(seconds);
    HAWSER_CHECK(values[0] == float(ranks) && values[elements - 1] == float(ranks), "an all-reduce over ", ranks,
                 " ranks is ", values[0]);
    if (i == 2) {
      // The mean of the ranks' proposals, by an all-reduce.
      std::fill(values, values + elements,
                static_cast<float>(std::clamp(kMeasuring / std::max(seconds, 1e-6), 0.0, 200.0)));
      mesh.world().all_reduce(*stream, view, comm::Reduction::sum, workspace);
      stream->synchronize();
      rounds = 3 + static_cast<int>(values[0] / static_cast<float>(ranks));
    }
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

std::string own_path() {
  std::array<char, 4096> self{};
  const ssize_t size = readlink("/proc/self/exe", self.data(), self.size() - 1);
  return size > 0 ? std::string(self.data(), static_cast<std::size_t>(size)) : "/proc/self/exe";
}

// Redirects standard output into memory while it lives.
class Caught {
 public:
  Caught() {
    std::fflush(stdout);
    out_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    memory_ = memfd_create("doctor", MFD_CLOEXEC);
    HAWSER_CHECK(memory_ >= 0, "memfd_create");
    dup2(memory_, STDOUT_FILENO);
  }
  ~Caught() {
    dup2(out_, STDOUT_FILENO);
    close(out_);
    close(memory_);
  }
  Caught(const Caught&) = delete;
  Caught& operator=(const Caught&) = delete;

  std::string text() const {
    std::string text(static_cast<std::size_t>(std::max<off_t>(0, lseek(memory_, 0, SEEK_END))), ' ');
    const ssize_t size = pread(memory_, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, size)));
    return text;
  }

 private:
  int out_ = -1, memory_ = -1;
};

}  // namespace

int measure_as_rank() {
  comm::World world(kTimeLimit, note_failed);
  note_started();
  try {
    const auto device = make_cpu_device();
    const auto mesh = comm::make_mpi_mesh(world, comm::mesh_sizes(world.size(), 0, 1), kTimeLimit);
    world.set_phase("measuring sums");
    const nlohmann::json out{{"ranks", world.size()},
                             {"small_s", time_sum(*mesh, *device, kSmall)},
                             {"large_s", time_sum(*mesh, *device, kLarge)},
                             {"large_bytes", kLarge * 4}};
    if (world.rank().value() == 0) std::puts(out.dump().c_str());
    note_ended();
    return 0;
  } catch (const std::exception& error) {
    world.abort(report_error(error));
  }
}

void check_ranks(const DoctorOptions& options, Findings& out) {
  if (under_launcher()) {
    return out.warn("MPI", "not checked", "a launcher started this process", "run hawser doctor without it");
  }
  Mpirun mpirun;
  try {
    mpirun = find_mpirun();
  } catch (const UserError& error) {
    return out.problem("MPI", error.what(), "runs of more than one rank cannot be started here",
                       "Open MPI 4.1 or 5, with its mpirun first in PATH");
  }
  out.ok("MPI", cat("Open MPI ", mpirun.version, ", ", mpirun.path), "starts the ranks of a run");

  const int ranks = options.common.ranks > 0 ? options.common.ranks : 2;
  const auto start = Clock::now();
  int code = 0;
  std::string output;
  {
    const Caught caught;
    code = launch_local({.ranks = ranks, .threads = 1, .command = {own_path(), "doctor", "--as-rank"}}).code;
    output = caught.text();
  }
  if (code == static_cast<int>(ExitCode::interrupted)) throw Error(ExitCode::interrupted, "");
  const double seconds = seconds_since(start);
  const auto json = io::json_or_null(output);
  if (code != 0 || !json.is_object()) {
    return out.problem("ranks", cat(ranks, " started, exit code ", code), "a run would fail in the same way",
                       "see the lines above; `mpirun -np 2 hostname` tests MPI alone");
  }
  const double small = json.value("small_s", 0.0), large = json.value("large_s", 0.0);
  const double rate = json.value("large_bytes", 0.0) / std::max(large, 1e-9);
  const std::string value = cat(ranks, " ranks all-reduce 4 bytes in ", format_seconds(small), ", 16 MiB at ",
                                format_bytes(Bytes(std::int64_t(rate))), "/s; total ", format_seconds(seconds));
  const int cores = usable_cores();
  if (ranks > cores) {
    out.warn("ranks", value, "more ranks than cores: they share " + plural(cores, "core"),
             "for speed, use at most one rank per core");
  } else if (small > kSlowSum || rate < kSlowRate) {
    out.warn("ranks", value, "slow for one machine: other processes compute here, or /dev/shm is not used",
             "try again when the machine is idle");
  } else {
    out.ok("ranks", value, "normal within one machine");
  }
}

}  // namespace hawser::cli::checks
