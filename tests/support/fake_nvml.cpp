// A fake NVML of two GPUs, for tests: the functions that device/nvml.cpp looks up, with values that a test sets. With
// FAKE_NVML_OLD, one of an old driver: reasons have their former name, and there is neither energy nor instant power.
#include <cstring>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kNotFound = 6;
constexpr const char* kBusIds[] = {"0000:1B:00.0", "0000:43:00.0"};

struct Gpu {
  unsigned long long energy_mj = 1'000'000, energy_of_a_call = 0, reasons = 0;
  unsigned power_mw = 0, clock_mhz = 0;
  bool has_clock = true;
} gpus[2];
int initialised = 0;

Gpu& gpu(void* handle) {
  return *static_cast<Gpu*>(handle);
}

}  // namespace

extern "C" {

// Sets a value of GPU `index`. energy_of_a_call: what each read of the counter adds to it.
void fake_nvml_set(int index, const char* what, unsigned long long value) {
  Gpu& to = gpus[index];
  if (std::strcmp(what, "energy_of_a_call") == 0) to.energy_of_a_call = value;
  if (std::strcmp(what, "power_mw") == 0) to.power_mw = static_cast<unsigned>(value);
  if (std::strcmp(what, "clock_mhz") == 0) to.clock_mhz = static_cast<unsigned>(value);
  if (std::strcmp(what, "has_clock") == 0) to.has_clock = value != 0;
  if (std::strcmp(what, "reasons") == 0) to.reasons = value;
}
int fake_nvml_initialised() {
  return initialised;
}

int nvmlInit_v2() {
  ++initialised;
  return kSuccess;
}
int nvmlShutdown() {
  --initialised;
  return kSuccess;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** handle) {
  for (int i = 0; i < 2; ++i) {
    if (std::strcmp(bus_id, kBusIds[i]) != 0) continue;
    *handle = &gpus[i];
    return kSuccess;
  }
  return kNotFound;
}
int nvmlDeviceGetPowerUsage(void* handle, unsigned* mw) {
  *mw = gpu(handle).power_mw / 2;  // the mean of the last second: another number than that of now
  return kSuccess;
}
int nvmlDeviceGetClockInfo(void* handle, int type, unsigned* mhz) {
  if (type != 1 || !gpu(handle).has_clock) return kNotSupported;
  *mhz = gpu(handle).clock_mhz;
  return kSuccess;
}

#ifdef FAKE_NVML_OLD
int nvmlDeviceGetCurrentClocksThrottleReasons(void* handle, unsigned long long* reasons) {
  *reasons = gpu(handle).reasons;
  return kSuccess;
}
#else
int nvmlDeviceGetCurrentClocksEventReasons(void* handle, unsigned long long* reasons) {
  *reasons = gpu(handle).reasons;
  return kSuccess;
}
int nvmlDeviceGetTotalEnergyConsumption(void* handle, unsigned long long* mj) {
  *mj = gpu(handle).energy_mj += gpu(handle).energy_of_a_call;
  return kSuccess;
}
struct FieldValue {
  unsigned id, scope;
  long long timestamp, latency_us;
  int type, status;
  union {
    double d;
    unsigned u;
  } value;
};
int nvmlDeviceGetFieldValues(void* handle, int count, FieldValue* fields) {
  for (int i = 0; i < count; ++i) {
    fields[i].status = fields[i].id == 186 ? kSuccess : kNotSupported;
    fields[i].type = 1;
    fields[i].value.u = gpu(handle).power_mw;
  }
  return kSuccess;
}
#endif

}  // extern "C"
