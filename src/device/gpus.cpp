#include "device/gpus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/cat.h"

namespace hawser {

CudaInfo supported_gpus(const std::vector<GpuProperties>& gpus) {
  CudaInfo info;
  std::vector<std::string> unsupported(gpus.size());
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const GpuProperties& gpu = gpus[i];
    if (gpu.major == 9 && gpu.minor == 0) {
      if (info.ordinals.empty()) info.name = gpu.name;
      info.ordinals.push_back(static_cast<int>(i));
    } else {
      unsupported[i] = cat(gpu.name, ", compute capability ", gpu.major, ".", gpu.minor);
    }
  }
  info.devices = static_cast<int>(info.ordinals.size());
  const std::string listed = list_gpus(unsupported);
  if (!listed.empty())
    info.unused = cat("this build does not support ", listed, "; it supports compute capability 9.0 (H100, H200)");
  if (info.devices == 0) info.problem = gpus.empty() ? "no GPU: the driver reports none" : info.unused;
  return info;
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
