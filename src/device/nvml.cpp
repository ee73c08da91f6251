#include "device/nvml.h"

#include <dlfcn.h>

#include <utility>

namespace hawser {

namespace {

// From nvml.h, whose ABI does not change: functions with a new signature get a new name.
constexpr int kSuccess = 0;
constexpr int kClockSm = 1;              // nvmlClockType_t
constexpr unsigned kPowerInstant = 186;  // NVML_FI_DEV_POWER_INSTANT, in mW
constexpr int kUnsignedInt = 1;          // nvmlValueType_t

constexpr std::uint64_t kIdle = 0x1;
constexpr std::pair<std::uint64_t, const char*> kReasons[] = {{0x2, "applications_clocks_setting"},
                                                              {0x4, "sw_power_cap"},
                                                              {0x8, "hw_slowdown"},
                                                              {0x10, "sync_boost"},
                                                              {0x20, "sw_thermal_slowdown"},
                                                              {0x40, "hw_thermal_slowdown"},
                                                              {0x80, "hw_power_brake_slowdown"},
                                                              {0x100, "display_clock_setting"}};

}  // namespace

struct NvmlGpu::Library {
  struct FieldValue {  // nvmlFieldValue_t
    unsigned id = 0, scope = 0;
    long long timestamp = 0, latency_us = 0;
    int type = 0, status = 0;
    union {
      double d;
      unsigned u;
      unsigned long long ull;
    } value = {};
  };

  void* library = nullptr;
  bool initialised = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_bus_id)(const char*, void**) = nullptr;
  int (*energy)(void*, unsigned long long*) = nullptr;
  int (*power)(void*, unsigned*) = nullptr;
  int (*fields)(void*, int, FieldValue*) = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*reasons)(void*, unsigned long long*) = nullptr;

  explicit Library(const std::string& path) : library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library == nullptr) return;
    take(init, "nvmlInit_v2");
    take(shutdown, "nvmlShutdown");
    take(by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
    take(energy, "nvmlDeviceGetTotalEnergyConsumption");
    take(power, "nvmlDeviceGetPowerUsage");
    take(fields, "nvmlDeviceGetFieldValues");
    take(clock, "nvmlDeviceGetClockInfo");
    take(reasons, "nvmlDeviceGetCurrentClocksEventReasons");
    if (reasons == nullptr) take(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");  // its name before CUDA 12.2
    initialised = init != nullptr && shutdown != nullptr && by_bus_id != nullptr && init() == kSuccess;
  }
  ~Library() {
    if (initialised) shutdown();
    if (library != nullptr) dlclose(library);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

 private:
  template <class Function>
  void take(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
  }
};

NvmlGpu::NvmlGpu(std::unique_ptr<Library> library, void* handle) : library_(std::move(library)), handle_(handle) {}

NvmlGpu::~NvmlGpu() = default;

std::unique_ptr<NvmlGpu> NvmlGpu::open(const std::string& bus_id, const std::string& library) {
  if (bus_id.empty()) return nullptr;
  auto loaded = std::make_unique<Library>(library);
  void* handle = nullptr;
  if (!loaded->initialised || loaded->by_bus_id(bus_id.c_str(), &handle) != kSuccess) return nullptr;
  return std::unique_ptr<NvmlGpu>(new NvmlGpu(std::move(loaded), handle));
}

std::optional<std::uint64_t> NvmlGpu::energy_mj() const {
  unsigned long long value = 0;
  if (library_->energy == nullptr || library_->energy(handle_, &value) != kSuccess) return std::nullopt;
  return value;
}

std::optional<double> NvmlGpu::watts() const {
  Library::FieldValue field{.id = kPowerInstant};
  if (library_->fields != nullptr && library_->fields(handle_, 1, &field) == kSuccess && field.status == kSuccess &&
      field.type == kUnsignedInt) {
    return field.value.u / 1e3;
  }
  unsigned value = 0;
  if (library_->power == nullptr || library_->power(handle_, &value) != kSuccess) return std::nullopt;
  return value / 1e3;
}

std::optional<double> NvmlGpu::sm_clock_mhz() const {
  unsigned value = 0;
  if (library_->clock == nullptr || library_->clock(handle_, kClockSm, &value) != kSuccess) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> NvmlGpu::clock_reasons() const {
  unsigned long long value = 0;
  if (library_->reasons == nullptr || library_->reasons(handle_, &value) != kSuccess) return std::nullopt;
  return value;
}

std::vector<std::string> clock_reason_names(std::uint64_t reasons) {
  std::vector<std::string> names;
  reasons &= ~kIdle;
  for (const auto& [bit, name] : kReasons) {
    if ((reasons & bit) != 0) names.emplace_back(name);
    reasons &= ~bit;
  }
  if (reasons != 0) names.emplace_back("other");
  return names;
}

}  // namespace hawser
