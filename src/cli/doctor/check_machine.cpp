// The build, memory, limits of the process, the clock.
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/build.h"
#include "base/cat.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/build_version.h"
#include "cli/doctor/findings.h"
#include "device/device.h"
#include "launch/launcher_environment.h"
#include "ops/cpu/levels.h"
#include "plan/target.h"

namespace hawser::cli::checks {
namespace {

namespace fs = std::filesystem;

std::string bytes_text(std::int64_t bytes) {
  return format_bytes(Bytes(bytes));
}

// "KEY : VALUE" of /proc/cpuinfo (the first processor's) or "KEY: VALUE kB" of /proc/meminfo.
std::map<std::string, std::string> fields_of(const char* file) {
  std::map<std::string, std::string> out;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto end = line.find_last_not_of(" \t", colon - 1);
    const auto value = line.find_first_not_of(" \t", colon + 1);
    out.try_emplace(line.substr(0, end + 1), value == std::string::npos ? "" : line.substr(value));
  }
  return out;
}

// CPU time limit of the cgroup, in cores; 0: unlimited.
double granted_cores() {
  std::ifstream in("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(in >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::stod(quota) / period;
}

void check_cpu(Findings& out) {
  const auto info = fields_of("/proc/cpuinfo");
  const auto get = [&](const char* key) {
    const auto found = info.find(key);
    return found == info.end() ? std::string() : found->second;
  };
  const bool bf16 = plan::this_machine().bf16_units;
  const std::string model = get("model name").empty() ? "unknown processor" : get("model name");
  switch (ops::best_vector_level()) {
    case ops::VectorLevel::avx512:
      out.ok("CPU", cat(model, ", AVX-512", bf16 ? " and bf16 units" : ""),
             bf16 ? "fastest kernels; precision.compute: bf16 is faster" : "fastest kernels");
      break;
    case ops::VectorLevel::avx2:
      out.ok("CPU", model + ", AVX2", "AVX2 kernels; AVX-512 is faster");
      break;
    case ops::VectorLevel::baseline:
      out.warn("CPU", model + ", without AVX2", "kernels run several times slower than with AVX2",
               "use another machine; in a VM, expose the host's CPU model (-cpu host)");
      break;
  }
  const int cores = usable_cores();
  const auto all = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const double granted = granted_cores();
  const std::string value = cores == all ? plural(cores, "core") : cat(cores, " of ", all, " cores");
  if (granted > 0 && granted < cores - 0.01) {
    out.warn("cores", value, cat("the cgroup limits CPU time to ", granted, "; more threads are throttled"),
             cat("--set run.threads=", std::max(1, static_cast<int>(granted))));
  } else {
    out.ok("cores", value, cores == all ? "shared by all ranks of a run" : "this process cannot use the others");
  }
  std::array<double, 3> load{};
  if (getloadavg(load.data(), 1) == 1 && load[0] > 1.5 * cores) {
    out.warn("load", cat(static_cast<int>(load[0]), " runnable on ", value),
             "other processes compute here; runs will be slower", "wait, or leave cores free: --set run.threads=N");
  }
}

}  // namespace

void check_build(Findings& out) {
  out.ok("build", cat("hawser ", build().version, " for ", devices_text()),
         cuda_info().problem.find("without CUDA") == std::string::npos
             ? "trains on CPU and GPU"
             : "for GPUs too: hawser-trainer[cuda], or cmake --preset cuda");
  check_cpu(out);
}

void check_memory(Findings& out) {
  const plan::Machine machine = plan::this_machine();
  const auto installed = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const std::int64_t free = plan::free_host_memory();
  const std::string limit =
      machine.memory < installed ? cat(" (cgroup limit; the machine has ", bytes_text(installed), ")") : "";
  const std::string value = cat(bytes_text(machine.memory), limit, ", ", bytes_text(free), " free");
  if (free < kGiB / 2) {
    out.problem("memory", value, "a run would be killed for lack of memory",
                "end processes that use memory (top, then M)");
  } else if (free < machine.memory / 4) {
    out.warn("memory", value, "most of it is in use; `hawser plan` assumes all of it",
             cat("--memory ", format_bytes_flag(Bytes(free / 10 * 9)),
                 ", divided by the ranks; or end processes that use memory"));
  } else {
    out.ok("memory", value, "shared by the ranks of a CPU run");
  }
  const auto info = fields_of("/proc/meminfo");
  const auto kib = [&](const char* key) {
    const auto found = info.find(key);
    return found == info.end() ? std::int64_t{0} : std::atoll(found->second.c_str()) << 10;
  };
  const std::int64_t swap = kib("SwapTotal"), used = swap - kib("SwapFree");
  if (swap > 0 && used > swap / 2) {
    out.warn("swap", cat(bytes_text(used), " of ", bytes_text(swap), " used"),
             "the machine ran out of memory; steps that swap are a hundred times slower",
             "end processes that use memory, or set --memory");
  } else {
    out.ok("swap", swap == 0 ? "none" : cat(bytes_text(swap), ", ", bytes_text(used), " used"), "plans do not use it");
  }
}

void check_limits(Findings& out) {
  rlimit limit{};
  const auto text = [](rlim_t value) { return value == RLIM_INFINITY ? std::string("unlimited") : cat(value); };
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    if (limit.rlim_cur < 256) {
      out.problem("open files", text(limit.rlim_cur), "too few for a launcher with its ranks and for many data files",
                  "ulimit -n 4096");
    } else if (limit.rlim_cur < 1024) {
      out.warn("open files", text(limit.rlim_cur), "enough for a few ranks; many ranks need more", "ulimit -n 4096");
    } else {
      out.ok("open files", text(limit.rlim_cur), "enough");
    }
  }
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    std::error_code ignored;
    const bool fabric = fs::exists("/sys/class/infiniband", ignored) && !fs::is_empty("/sys/class/infiniband", ignored);
    const std::string value =
        limit.rlim_cur == RLIM_INFINITY ? "unlimited" : bytes_text(static_cast<std::int64_t>(limit.rlim_cur));
    if (fabric && limit.rlim_cur != RLIM_INFINITY) {
      out.warn("locked memory", value, "this machine has InfiniBand, whose transfers need locked memory",
               "ulimit -l unlimited, in /etc/security/limits.conf; docker run --ulimit memlock=-1");
    } else {
      out.ok("locked memory", value,
             fabric ? "enough for InfiniBand" : "only needed for InfiniBand, which is not here");
    }
  }
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    out.warn("address space", bytes_text(static_cast<std::int64_t>(limit.rlim_cur)),
             "a rank reserves all its memory at once and fails above this limit", "ulimit -v unlimited");
  }
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) != 0 || access("/dev/shm", W_OK) != 0) {
    out.warn("/dev/shm", "cannot be written", "ranks of one machine communicate through the temporary folder instead",
             "mount a tmpfs there");
    return;
  }
  const auto size = static_cast<std::int64_t>(shm.f_blocks) * static_cast<std::int64_t>(shm.f_frsize);
  const auto free = static_cast<std::int64_t>(shm.f_bavail) * static_cast<std::int64_t>(shm.f_frsize);
  const std::string value = cat(bytes_text(size), ", ", bytes_text(free), " free");
  if (free < 32 * kMiB) {
    out.problem("/dev/shm", value, "too small for the communication between ranks",
                "remove files there; docker run --shm-size=1g");
  } else if (free < 256 * kMiB) {
    out.warn("/dev/shm", value, "enough for a few ranks; many ranks, or NCCL, need more", "docker run --shm-size=1g");
  } else {
    out.ok("/dev/shm", value, "enough for the communication between ranks");
  }
}

void check_clock(Findings& out) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  std::error_code error;
  const auto built = fs::last_write_time("/proc/self/exe", error);
  const bool behind = !error && fs::file_time_type::clock::now() + std::chrono::hours(24) < built;
  timex kept{};
  const int state = adjtimex(&kept);  // reads only
  if (behind) {
    out.problem(
        "clock", text.data(),
        "the clock is behind the build date of this program: changed data would seem older than its token files",
        "set the clock: timedatectl set-ntp true");
  } else if (state == TIME_ERROR || (state >= 0 && (kept.status & STA_UNSYNC) != 0)) {
    out.warn("clock", text.data(), "not synchronized by NTP: times of several hosts will differ",
             "timedatectl set-ntp true; not needed on a single host");
  } else {
    out.ok("clock", text.data(), "synchronized by NTP");
  }
}

}  // namespace hawser::cli::checks
