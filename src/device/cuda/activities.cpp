#include "device/cuda/activities.h"

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "device/cuda/cuda_check.h"

namespace hawser::cuda {

namespace {

// The functions of libcupti, by name.
struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityRegisterTimestampCallback) register_clock = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  decltype(&cuptiGetStreamIdEx) stream_id = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
  std::string problem;

  Cupti() {
    // The toolkit's CUPTI folder is not on the loader's path; its lib64 often is.
    void* library = nullptr;
    for (const char* name : {"libcupti.so.13", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
                             "/usr/local/cuda/lib64/libcupti.so.13"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
      problem = "no libcupti.so.13 (CUPTI of the CUDA toolkit) in LD_LIBRARY_PATH or /usr/local/cuda";
      return;
    }
    const auto take = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && problem.empty()) problem = cat("libcupti.so.13 has no ", name);
    };
    take(register_callbacks, "cuptiActivityRegisterCallbacks");
    take(register_clock, "cuptiActivityRegisterTimestampCallback");
    take(enable, "cuptiActivityEnable");
    take(disable, "cuptiActivityDisable");
    take(flush_all, "cuptiActivityFlushAll");
    take(next_record, "cuptiActivityGetNextRecord");
    take(dropped, "cuptiActivityGetNumDroppedRecords");
    take(stream_id, "cuptiGetStreamIdEx");
    take(result_string, "cuptiGetResultString");
  }
};

const Cupti& cupti() {
  static const Cupti library;
  return library;
}

void expect(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = "?";
  cupti().result_string(result, &text);
  throw UserError(Problem{.what = cat("the GPU cannot be traced: ", call, ": ", text),
                          .hint = "without --trace, or without another profiler attached"});
}

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMCPY2,           CUPTI_ACTIVITY_KIND_MEMSET,
                                         CUPTI_ACTIVITY_KIND_RUNTIME,           CUPTI_ACTIVITY_KIND_DRIVER};

struct Found {
  struct Record {
    Activity activity;
    std::uint32_t correlation = 0;
  };
  std::vector<Record> records;
  std::unordered_map<std::uint32_t, std::int64_t> calls;  // start of the host's calls, by correlation id
  std::size_t dropped = 0;
};

// Filled by CUPTI's callbacks. They take no user data, so there is one per process.
struct Store {
  std::mutex mutex;
  Found found;
};

Store& store() {
  static Store one;
  return one;
}

// The kernel's bare name: "void hawser::ops::cuda::(anonymous namespace)::rows<float, 4>(Args)" -> "rows".
std::string short_name(const char* symbol) {
  if (symbol == nullptr) return "?";
  int status = -1;
  char* demangled = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : symbol;
  std::free(demangled);
  if (status != 0) return name;
  for (std::size_t at = name.find("(anonymous namespace)::"); at != std::string::npos;
       at = name.find("(anonymous namespace)::"))
    name.erase(at, sizeof "(anonymous namespace)::" - 1);
  name = name.substr(0, name.find_first_of("<("));
  if (const std::size_t space = name.rfind(' '); space != std::string::npos) name.erase(0, space + 1);
  if (const std::size_t colon = name.rfind("::"); colon != std::string::npos) name.erase(0, colon + 2);
  return name.empty() ? symbol : name;
}

const char* copy_name(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "copy on device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "copy to another device";
    default:
      return "copy";
  }
}

template <class Record>
void take(Found& into, const Record& record, Activity::Kind kind, std::string name) {
  into.records.push_back({.activity = {.kind = kind,
                                       .name = std::move(name),
                                       .stream = record.streamId,
                                       .begin = static_cast<std::int64_t>(record.start),
                                       .end = static_cast<std::int64_t>(record.end)},
                          .correlation = record.correlationId});
}

void take(Found& into, const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      return take(into, kernel, Activity::Kind::kernel, short_name(kernel.name));
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      return take(into, copy, Activity::Kind::copy, copy_name(copy.copyKind));
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return take(into, *reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(record), Activity::Kind::copy,
                  copy_name(CUPTI_ACTIVITY_MEMCPY_KIND_PTOP));
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return take(into, *reinterpret_cast<const CUpti_ActivityMemset4*>(record), Activity::Kind::copy, "fill");
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      const auto& call = *reinterpret_cast<const CUpti_ActivityAPI*>(record);
      into.calls.emplace(call.correlationId, static_cast<std::int64_t>(call.start));
      return;
    }
    default:
      return;
  }
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer != nullptr ? kBufferBytes : 0;
  *records = 0;  // no limit
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                          std::size_t valid) {
  // Calls CUPTI without holding the lock: a CUPTI thread may hold a lock of its own and wait for this one.
  Found found;
  CUpti_Activity* record = nullptr;
  while (cupti().next_record(buffer, valid, &record) == CUPTI_SUCCESS) take(found, record);
  std::size_t lost = 0;
  if (cupti().dropped(context, stream, &lost) != CUPTI_SUCCESS) lost = 0;
  std::free(buffer);
  Store& into = store();
  const std::lock_guard lock(into.mutex);
  std::move(found.records.begin(), found.records.end(), std::back_inserter(into.found.records));
  into.found.calls.merge(found.calls);
  into.found.dropped += lost;
}

std::uint64_t CUPTIAPI real_time() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

std::string activities_problem() {
  return cupti().problem;
}

ActivityRecorder::ActivityRecorder() {
  if (const std::string problem = activities_problem(); !problem.empty()) {
    throw UserError(Problem{.what = "the GPU cannot be traced: " + problem, .at = "--trace"});
  }
  expect(cupti().register_clock(real_time), "cuptiActivityRegisterTimestampCallback");
  expect(cupti().register_callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
}

ActivityRecorder::~ActivityRecorder() {
  if (!running_) return;
  for (const CUpti_ActivityKind kind : kKinds) cupti().disable(kind);
}

std::uint32_t ActivityRecorder::stream_number(const CudaNative& native) const {
  HAWSER_CUDA_CHECK(cudaSetDevice(native.ordinal));
  std::uint32_t number = 0;
  expect(cupti().stream_id(nullptr, static_cast<CUstream>(native.stream), 0, &number), "cuptiGetStreamIdEx");
  return number;
}

void ActivityRecorder::start() {
  {
    Store& into = store();
    const std::lock_guard lock(into.mutex);
    into.found = {};
  }
  running_ = true;
  for (const CUpti_ActivityKind kind : kKinds) expect(cupti().enable(kind), "cuptiActivityEnable");
}

std::vector<Activity> ActivityRecorder::stop() {
  for (const CUpti_ActivityKind kind : kKinds) expect(cupti().disable(kind), "cuptiActivityDisable");
  running_ = false;
  expect(cupti().flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  const std::lock_guard lock(store().mutex);
  Found& from = store().found;
  if (from.dropped > 0) {
    throw UserError(Problem{.what = cat("the GPU trace is incomplete: CUPTI lost ", from.dropped, " records"),
                            .hint = "a smaller model or fewer micro-batches"});
  }
  std::vector<Activity> out;
  for (Found::Record& record : from.records) {
    if (record.activity.begin == 0 || record.activity.end < record.activity.begin) continue;  // still running
    if (const auto call = from.calls.find(record.correlation); call != from.calls.end())
      record.activity.launched = call->second;
    out.push_back(std::move(record.activity));
  }
  return out;
}

}  // namespace hawser::cuda
