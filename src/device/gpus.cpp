#include "device/gpus.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/cat.h"
#include "base/error.h"

namespace hawser {

namespace {

// One entry of HAWSER_CUDA_ARCHITECTURES: "86" or "90a".
struct Architecture {
  int capability = 0;
  bool alone = false;  // runs on this capability only; else on later ones of its generation, too
};

std::vector<Architecture> parse(const std::string& architectures) {
  std::vector<Architecture> out;
  std::istringstream in(architectures);
  for (std::string entry; in >> entry;) {
    out.push_back({.capability = std::atoi(entry.c_str()), .alone = entry.ends_with('a')});
  }
  return out;
}

bool runs_on(const Architecture& code, int capability) {
  if (code.alone) return code.capability == capability;
  return code.capability / 10 == capability / 10 && code.capability <= capability;
}

}  // namespace

std::string capability_text(int capability) {
  return cat(capability / 10, ".", capability % 10);
}

std::string architectures_text(const std::string& architectures) {
  const std::vector<Architecture> all = parse(architectures);
  std::string out = "compute capability ";
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) out += i + 1 == all.size() ? " and " : ", ";
    out += capability_text(all[i].capability);
  }
  return out;
}

CudaInfo supported_gpus(const std::vector<GpuProperties>& gpus, const std::string& architectures) {
  const std::vector<Architecture> code = parse(architectures);
  CudaInfo info;
  std::vector<std::string> too_old(gpus.size()), without_code(gpus.size());
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const GpuProperties& gpu = gpus[i];
    if (std::any_of(code.begin(), code.end(), [&](const auto& one) { return runs_on(one, gpu.capability); })) {
      if (info.ordinals.empty()) info.name = gpu.name;
      info.capability = info.ordinals.empty() ? gpu.capability : std::min(info.capability, gpu.capability);
      info.ordinals.push_back(static_cast<int>(i));
    } else {
      auto& listed = gpu.capability < kLowestCapability ? too_old : without_code;
      listed[i] = cat(gpu.name, ", compute capability ", capability_text(gpu.capability));
    }
  }
  info.devices = static_cast<int>(info.ordinals.size());
  if (const std::string listed = list_gpus(without_code); !listed.empty()) {
    info.unused = cat("this build has no kernels for ", listed, ", only for ", architectures_text(architectures),
                      "; build with -D HAWSER_CUDA_ARCHITECTURES=all");
  }
  if (const std::string listed = list_gpus(too_old); !listed.empty()) {
    const std::string unused = cat("GPUs without bf16 in tensor cores, which training needs: ", listed);
    info.unused += (info.unused.empty() ? "" : "; ") + unused;
  }
  if (info.devices == 0) info.problem = gpus.empty() ? "no GPU: the driver reports none" : info.unused;
  return info;
}

KernelLimits limits_as(const KernelLimits& gpu, const std::string& as) {
  if (as.empty()) return gpu;
  constexpr std::int64_t kKib = 1024;
  static constexpr KernelLimits kKnown[] = {{80, 163 * kKib, 164 * kKib},  {86, 99 * kKib, 100 * kKib},
                                            {89, 99 * kKib, 100 * kKib},   {90, 227 * kKib, 228 * kKib},
                                            {100, 227 * kKib, 228 * kKib}, {120, 99 * kKib, 100 * kKib}};
  std::string expected;
  for (const KernelLimits& known : kKnown) {
    if (known.capability > gpu.capability) continue;
    if (as == capability_text(known.capability)) {
      return {known.capability, std::min(known.block_shared_bytes, gpu.block_shared_bytes),
              std::min(known.sm_shared_bytes, gpu.sm_shared_bytes)};
    }
    expected += cat(expected.empty() ? "" : ", ", capability_text(known.capability));
  }
  throw UserError(Problem{.what = "not a compute capability whose kernels this GPU can run",
                          .expected = expected,
                          .got = as,
                          .at = kCapabilityVariable});
}

std::vector<std::string> driver_gpus(const std::string& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  std::filesystem::directory_iterator gpu(folder, error);
  for (const std::filesystem::directory_iterator end; !error && gpu != end; gpu.increment(error))
    files.push_back(gpu->path() / "information");
  std::sort(files.begin(), files.end());
  std::vector<std::string> names;
  for (const auto& file : files) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      if (!line.starts_with("Model:")) continue;
      const std::size_t begin = line.find_first_not_of(" \t", 6);
      if (begin != std::string::npos) names.push_back(line.substr(begin));
    }
  }
  return names;
}

std::string list_gpus(const std::vector<std::string>& labels) {
  std::vector<std::pair<std::string, std::vector<std::size_t>>> groups;  // label and GPUs
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i].empty()) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == labels[i]; });
    if (same != groups.end()) {
      same->second.push_back(i);
    } else {
      groups.push_back({labels[i], {i}});
    }
  }
  std::string out;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& [label, gpus] = groups[g];
    if (g > 0) out += g + 1 == groups.size() ? " and " : ", ";
    out += gpus.size() > 1 ? "GPUs " : "GPU ";
    for (std::size_t i = 0; i < gpus.size(); ++i) out += cat(i > 0 ? ", " : "", gpus[i]);
    out += cat(" (", label, ")");
  }
  return out;
}

}  // namespace hawser
