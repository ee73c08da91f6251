#include <omp.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "device/device.h"

namespace hawser {

namespace {

struct CpuEvent : Event::State {
  std::mutex mutex;
  std::condition_variable reached_changed;
  bool reached = false;

  void set() {
    {
      const std::lock_guard lock(mutex);
      reached = true;
    }
    reached_changed.notify_all();
  }
  void host_wait() override {
    std::unique_lock lock(mutex);
    reached_changed.wait(lock, [this] { return reached; });
  }
  bool host_wait_for(double seconds) override {
    std::unique_lock lock(mutex);
    return reached_changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return reached; });
  }
};

CpuEvent& cpu_event(const Event& event) {
  auto* state = dynamic_cast<CpuEvent*>(event.state().get());
  HAWSER_CHECK(state != nullptr, "an event of another device");
  return *state;
}

// libgomp exits the process if it cannot create a thread. Creating a team of the same size first reports the failure as
// std::system_error; the C library reuses the stacks of the threads that have ended.
void try_team(int threads) {
  std::atomic<bool> over = false;
  std::vector<std::thread> team;
  const auto end = [&] {
    over = true;
    over.notify_all();
    for (std::thread& thread : team) thread.join();
  };
  try {
    for (int others = 1; others < threads; ++others) team.emplace_back([&] { over.wait(false); });
  } catch (...) {
    end();
    throw;
  }
  end();
}

class CpuStream : public Stream {
 public:
  CpuStream(std::string name, const CpuOptions& options)
      : name_(std::move(name)), options_(options), delays_(options.delay_seed, name_), worker_([this] { run(); }) {}

  ~CpuStream() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  DeviceKind kind() const override { return DeviceKind::cpu; }
  const std::string& name() const override { return name_; }

  void launch(OpRecord, std::function<void()> work) override { push({std::move(work), true}); }

  Event record_event() override {
    auto state = std::make_shared<CpuEvent>();
    push({[state] { state->set(); }, false});
    return Event(std::move(state));
  }

  void wait(const Event& event) override {
    if (event.state() == nullptr) return;
    push({[event] { cpu_event(event).host_wait(); }, false});
  }

  void synchronize() override {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return queue_.empty() && !busy_; });
    if (failure_) std::rethrow_exception(failure_);
  }

  void check() override {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  struct Task {
    std::function<void()> run;
    bool skippable;  // dropped after a failure; events and waits still run, so that no waiter hangs
  };

  void push(Task task) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

  void run() {
    omp_set_num_threads(options_.threads);
    if (options_.random_delay_s > 0) prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default lengthens sleeps by 50 us
    for (;;) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
        if (queue_.empty()) return;
        task = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
      }
      if (options_.random_delay_s > 0) {
        const double share = delays_.uniform(done_++) / options_.delayed_share;
        if (share < 1) std::this_thread::sleep_for(std::chrono::duration<double>(options_.random_delay_s * share));
      }
      if (!(task.skippable && failed_)) {
        try {
          if (task.skippable && !team_tried_) try_team(options_.threads);
          team_tried_ |= task.skippable;
          task.run();
        } catch (...) {
          const std::lock_guard lock(mutex_);
          if (!failure_) failure_ = std::current_exception();
          failed_ = true;
        }
      }
      task.run = nullptr;  // the closure's captures must not outlive the task
      {
        const std::lock_guard lock(mutex_);
        busy_ = false;
        if (queue_.empty()) idle_.notify_all();
      }
    }
  }

  std::string name_;
  CpuOptions options_;
  RandomStream delays_;
  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<Task> queue_;
  bool busy_ = false, closing_ = false;
  bool team_tried_ = false;  // used by the worker only
  bool failed_ = false;      // the worker's own copy of failure_ != nullptr
  std::exception_ptr failure_;
  std::uint64_t done_ = 0;
  std::thread worker_;  // last: starts after all other members are initialized
};

constexpr std::int64_t kLargePage = std::int64_t{2} << 20;

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuOptions& options) : options_(options) {}
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::unique_ptr<Stream> make_stream(const std::string& name) override {
    return std::make_unique<CpuStream>(name, options_);
  }
  std::byte* allocate(std::int64_t bytes) override {
    void* data = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      throw Error(ExitCode::does_not_fit, cat("memory: cannot allocate ", format_bytes(Bytes(bytes)), " (",
                                              std::strerror(errno), "); try fewer ranks or a smaller model"));
    }
    // Large pages: a step touches gigabytes, and misses of the page table's cache slow GEMMs with long rows down. A
    // refusal only costs speed.
    if (bytes >= kLargePage) madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
    return static_cast<std::byte*>(data);
  }
  void free(std::byte* data, std::int64_t bytes) noexcept override { munmap(data, static_cast<std::size_t>(bytes)); }

 private:
  CpuOptions options_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace hawser
