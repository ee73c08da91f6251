// `NvmlGpu`: energy, power, SM clock and clock-event reasons of one GPU, read from NVML, the library of the NVIDIA
// driver. It is loaded at the first use: nothing links it, and without it there is no NvmlGpu. Needs no CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hawser {

constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

class NvmlGpu {
 public:
  // The GPU at a PCI bus id (Device::bus_id()), because CUDA_VISIBLE_DEVICES changes CUDA's indices and not NVML's.
  // Null if `library` cannot be loaded, the driver does not answer, or there is no such GPU. Of a MIG instance: its
  // GPU.
  static std::unique_ptr<NvmlGpu> open(const std::string& bus_id, const std::string& library = kNvmlLibrary);
  ~NvmlGpu();
  NvmlGpu(const NvmlGpu&) = delete;
  NvmlGpu& operator=(const NvmlGpu&) = delete;

  // nullopt: this GPU or driver does not report it. Safe to call from several threads.
  std::optional<std::uint64_t> energy_mj() const;  // millijoules since the driver was loaded; updated every ~0.1 s
  std::optional<double> watts() const;             // now; on drivers without that figure the mean of the last second
  std::optional<double> sm_clock_mhz() const;
  std::optional<std::uint64_t> clock_reasons() const;  // bits, named by clock_reason_names()

 private:
  struct Library;
  NvmlGpu(std::unique_ptr<Library> library, void* handle);

  std::unique_ptr<Library> library_;
  void* handle_;  // an nvmlDevice_t
};

// What keeps the clock below its maximum, in nvidia-smi's names: "sw_power_cap", "hw_thermal_slowdown". Unknown bits
// are "other". `gpu_idle` is none: it is left out.
std::vector<std::string> clock_reason_names(std::uint64_t reasons);

}  // namespace hawser
