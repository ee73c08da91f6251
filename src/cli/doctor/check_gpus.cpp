// GPUs: what the driver reports through nvidia-smi, and whether this build can use them.
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "base/build.h"
#include "base/cat.h"
#include "base/units.h"
#include "cli/doctor/findings.h"
#include "comm/nccl/nccl_version.h"
#include "device/cuda/links.h"
#include "device/device.h"
#include "launch/program_output.h"

namespace hawser::cli::checks {
namespace {

constexpr int kSeconds = 4;  // the first call after a while wakes the driver

// Fields of a line of nvidia-smi's CSV.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> out;
  std::istringstream in(line);
  for (std::string field; std::getline(in, field, ',');) {
    const auto begin = field.find_first_not_of(' ');
    const auto end = field.find_last_not_of(" \r");
    out.push_back(begin == std::string::npos ? "" : field.substr(begin, end - begin + 1));
  }
  return out;
}

std::vector<std::vector<std::string>> ask(const std::string& query) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream in(output_of({"nvidia-smi", query, "--format=csv,noheader,nounits"}, kSeconds).text);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) rows.push_back(fields_of(line));
  }
  return rows;
}

double number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end == text.c_str() ? -1 : value;
}

// Memory as nvidia-smi reports it, in MiB; other texts, such as "[N/A]", are not changed.
std::string memory_text(const std::string& mebibytes) {
  const double value = number(mebibytes);
  return value < 0 ? mebibytes : format_bytes(Bytes(static_cast<std::int64_t>(value) << 20));
}

// One GPU as nvidia-smi reports it; works in builds without CUDA.
void check_one(const std::vector<std::string>& gpu, Findings& out) {
  const std::string check = "GPU " + gpu[0];
  const double used = number(gpu[3]), total = number(gpu[4]);
  const std::string memory =
      cat(gpu[1], ", ", memory_text(gpu[3]), " of ", memory_text(gpu[4]), " used, driver ", gpu[2]);
  if (total > 0 && used > 0.05 * total) {
    out.warn(check, memory, "other processes use a part, and plans assume all of it",
             "end them (listed below), or set --memory to what is free");
  } else {
    out.ok(check, memory, "free for a run");
  }
  const double clock = number(gpu[5]), max = number(gpu[6]), limit = number(gpu[7]), highest = number(gpu[8]);
  const std::string power = cat("clock ", gpu[5], " of ", gpu[6], " MHz, power limit ", gpu[7], " of ", gpu[8], " W");
  if (limit > 0 && highest > 0 && limit < 0.95 * highest) {
    out.warn(check, power, "GEMMs will be slower than planned", cat("nvidia-smi -pl ", std::lround(highest)));
  } else if (clock > 0 && max > 0) {
    out.ok(check, power, "the clock is low when idle; the power limit is full");
  }
}

void check_links(const CudaInfo& info, const cuda::GpuLinks& links, Findings& out) {
  if (info.devices < 2) return;
  int apart = 0, slow = 0;
  std::string first;
  for (const cuda::GpuLink& link : links.pairs) {
    if (!link.access) ++apart;
    if (link.access && !link.native_atomics) ++slow;
    if (first.empty() && (!link.access || !link.native_atomics)) first = cat(link.from, "-", link.to);
  }
  const std::string value = cat(links.pairs.size(), " pairs of ", info.devices, " GPUs");
  if (apart > 0) {
    out.warn("GPU links", cat(value, ", ", apart, " without peer access (", first, ")"),
             "transfers go through the host and are many times slower",
             "in a VM or container, pass all GPUs of an NVLink group; BIOS: disable ACS");
  } else if (slow > 0) {
    out.warn("GPU links", cat(value, ", ", slow, " over PCIe (", first, ")"),
             "the h200 target assumes NVLink: communication will take longer than planned",
             "use small sharding and context parallel degrees, or a machine with NVLink");
  } else {
    out.ok("GPU links", value, "all pairs have peer access over NVLink");
  }
}

// What to do if no GPU can be used; `listed`: nvidia-smi lists some.
std::string advice(const CudaInfo& info, bool listed) {
  if (!build().cuda) return "pip install 'hawser-trainer[cuda]', or build with cmake --preset cuda";
  if (listed && info.unused.empty()) return "install a driver for CUDA 13 (580 or newer), or --device cpu";
  return "use another GPU, or --device cpu";
}

}  // namespace

void check_gpus(bool wanted, Findings& out) {
  const auto gpus =
      ask("--query-gpu=index,name,driver_version,memory.used,memory.total,clocks.sm,clocks.max.sm,power.limit,"
          "power.max_limit");
  for (const auto& gpu : gpus) {
    if (gpu.size() >= 9) check_one(gpu, out);
  }
  for (const auto& user : ask("--query-compute-apps=pid,process_name,used_memory")) {
    if (user.size() >= 3) {
      out.warn("GPU in use", cat("process ", user[0], " (", user[1], ") holds ", memory_text(user[2])),
               "another process uses this GPU", cat("if it is yours and no longer needed: kill ", user[0]));
    }
  }
  const CudaInfo info = cuda_info();
  if (info.devices > 0) {
    const cuda::GpuLinks links = cuda::gpu_links();
    out.ok("CUDA",
           cat(info.devices, " x ", info.name, ", runtime ", links.runtime_version, ", driver for ",
               links.driver_version, ", NCCL ", comm::nccl_version()),
           "supported by this build");
    if (!info.unused.empty()) out.warn("CUDA", info.unused, "runs do not use them", "nothing: they stay idle");
    return check_links(info, links, out);
  }
  const bool present = !gpus.empty() || !info.unused.empty();
  if (wanted) {
    out.problem("CUDA", info.problem, "a run with --device cuda cannot start", advice(info, !gpus.empty()));
  } else if (present) {
    out.warn("CUDA", info.problem, "runs use the CPU", advice(info, !gpus.empty()));
  } else {
    out.ok("CUDA", info.problem, "runs use the CPU");
  }
}

}  // namespace hawser::cli::checks
