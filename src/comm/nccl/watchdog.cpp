#include "comm/nccl/watchdog.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_check.h"

namespace hawser::comm {

namespace {

constexpr auto kLook = std::chrono::milliseconds(20);       // interval of polling the operations in progress
constexpr auto kIdleLook = std::chrono::milliseconds(500);  // the same without one, for FrozenTime
constexpr auto kErrors = std::chrono::milliseconds(500);    // interval of asking NCCL for errors
// Ranks in a deadlock all time out at once: the delay by rank lets the lowest rank report and end the others.
constexpr double kTurn_s = 1.0;
constexpr int kLastTurn = 4;

double as_seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

struct Watchdog::Operation {
  const char* name = "";
  std::int64_t bytes = 0;
  std::shared_ptr<const std::string> phase;  // the host's phase when it requested the operation
  cudaEvent_t begin = nullptr, end = nullptr;
  bool running = false;
  Clock::time_point started;  // when the thread saw `begin` reached

  std::string text(const std::string& group) const {
    return cat(name, " on ", group, bytes > 0 ? cat(" (", bytes, " bytes)") : std::string());
  }
};

class Watchdog::Line {
 public:
  Line(std::string group, std::string members) : group_(std::move(group)), members_(std::move(members)) {}

 private:
  friend class Watchdog;
  std::string group_, members_;
  ncclComm_t comm_ = nullptr;
  std::deque<Operation> queue_;  // enqueued on streams
  Operation host_;               // the host's call, while in_call_
  bool in_call_ = false;
};

// Marks the time that the host is inside a call that may wait for other ranks.
class Watchdog::HostCall {
 public:
  HostCall(Watchdog& watchdog, Line& line, const char* name, std::int64_t bytes) : watchdog_(watchdog), line_(line) {
    auto phase = watchdog_.service_.phase();
    {
      const std::lock_guard lock(watchdog_.mutex_);
      line_.host_ = {.name = name, .bytes = bytes, .phase = std::move(phase), .running = true, .started = Clock::now()};
      line_.in_call_ = true;
      ++watchdog_.under_way_;
    }
    watchdog_.wake_.notify_one();
  }
  ~HostCall() {
    const std::lock_guard lock(watchdog_.mutex_);
    line_.in_call_ = false;
    --watchdog_.under_way_;
  }
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

 private:
  Watchdog& watchdog_;
  Line& line_;
};

Watchdog::Watchdog(Service& service, int ordinal, double timeout_s)
    : service_(service), ordinal_(ordinal), timeout_s_(timeout_s) {
  // Only the host's threads receive signals; this thread receives those of its own faults.
  sigset_t block, before;
  sigfillset(&block);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&block, signal);
  pthread_sigmask(SIG_BLOCK, &block, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  thread_.join();
  for (cudaEvent_t event : spare_) cudaEventDestroy(event);
}

std::shared_ptr<Watchdog::Line> Watchdog::add(std::string group, std::string members) {
  auto line = std::make_shared<Line>(std::move(group), std::move(members));
  const std::lock_guard lock(mutex_);
  lines_.push_back(line);
  return line;
}

void Watchdog::set_communicator(Line& line, ncclComm* comm) {
  const std::lock_guard lock(mutex_);
  line.comm_ = comm;
}

void Watchdog::remove(const std::shared_ptr<Line>& line) {
  const std::lock_guard lock(mutex_);
  for (const Operation& operation : line->queue_) {
    spare_.insert(spare_.end(), {operation.begin, operation.end});
    --under_way_;
  }
  line->queue_.clear();
  std::erase(lines_, line);
}

CUevent_st* Watchdog::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      cudaEvent_t event = spare_.back();
      spare_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  HAWSER_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void Watchdog::follow(Line& line, const char* name, std::int64_t bytes, CUstream_st* stream,
                      const std::function<void()>& enqueue) {
  Operation operation{.name = name, .bytes = bytes, .phase = service_.phase()};
  operation.begin = take_event();
  operation.end = take_event();
  HAWSER_CUDA_CHECK(cudaEventRecord(operation.begin, stream));
  {
    const HostCall here(*this, line, name, bytes);
    enqueue();
  }
  HAWSER_CUDA_CHECK(cudaEventRecord(operation.end, stream));
  {
    const std::lock_guard lock(mutex_);
    line.queue_.push_back(std::move(operation));
    ++under_way_;
  }
  wake_.notify_one();
}

void Watchdog::guard(Line& line, const char* name, const std::function<void()>& call) {
  const HostCall here(*this, line, name, 0);
  call();
}

void Watchdog::run() {
  cudaSetDevice(ordinal_);  // a setting of each thread
  // Event queries must not invalidate a graph that the host's thread is capturing.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  Clock::time_point asked = Clock::now();
  std::unique_lock lock(mutex_);
  while (!closing_) {
    wake_.wait_for(lock, kIdleLook, [this] { return closing_ || under_way_ > 0; });
    wake_.wait_for(lock, kLook, [this] { return closing_; });
    const auto now = Clock::now();
    const bool errors = now - asked > kErrors;
    if (errors) asked = now;
    look(now, errors);
  }
}

void Watchdog::look(Clock::time_point now, bool errors) {
  frozen_.look(now);
  for (const std::shared_ptr<Line>& line : lines_) {
    check_host(*line, now);
    check_front(*line, now);
    if (!errors || line->comm_ == nullptr) continue;
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(line->comm_, &state) != ncclSuccess || state == ncclSuccess || state == ncclInProgress) {
      continue;
    }
    const Operation idle{.name = "communication", .phase = service_.phase()};
    fail(*line, line->queue_.empty() ? idle : line->queue_.front(),
         cat("failed: NCCL: ", ncclGetErrorString(state), ": ", ncclGetLastError(line->comm_)));
  }
}

void Watchdog::check_host(Line& line, Clock::time_point now) {
  if (line.in_call_) expect_in_time(line, line.host_, now);
}

void Watchdog::check_front(Line& line, Clock::time_point now) {
  while (!line.queue_.empty()) {
    Operation& front = line.queue_.front();
    if (!front.running) {
      const cudaError_t begun = cudaEventQuery(front.begin);
      if (begun == cudaErrorNotReady) return;
      front.running = true;
      front.started = now;
    }
    // An error is reported by the stream; the operation counts as done here.
    if (cudaEventQuery(front.end) == cudaErrorNotReady) {
      expect_in_time(line, front, now);
      return;
    }
    last_done_ = front.text(line.group_);
    spare_.insert(spare_.end(), {front.begin, front.end});
    line.queue_.pop_front();
    --under_way_;
  }
}

void Watchdog::expect_in_time(const Line& line, const Operation& operation, Clock::time_point now) {
  const double waited = as_seconds(now - operation.started - frozen_.since(operation.started));
  if (waited < timeout_s_ + kTurn_s * std::min(service_.rank(), kLastTurn)) return;
  fail(line, operation, cat("waited ", std::llround(waited), " s for the other members (ranks ", line.members_, ")"));
}

void Watchdog::fail(const Line& line, const Operation& operation, const std::string& what) {
  service_.report(
      cat(operation.text(line.group_), ' ', what, "; phase: ", *operation.phase, "; last done: ", last_done_));
  // The communicators are not aborted: their streams would then continue, and the host might save incomplete results.
  // The driver stops the kernels with the process.
  service_.abort(static_cast<int>(ExitCode::rank_failed));
}

}  // namespace hawser::comm
