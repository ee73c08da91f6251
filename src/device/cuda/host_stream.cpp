#include "device/cuda/host_stream.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <new>
#include <utility>

#include "device/cpu/cpu_stream.h"
#include "device/cuda/cuda_check.h"
#include "device/forwarding_device.h"

namespace hawser::cuda {

HostCounter::HostCounter(int ordinal) {
  HAWSER_CUDA_CHECK(cudaSetDevice(ordinal));
  void* word = nullptr;
  HAWSER_CUDA_CHECK(cudaHostAlloc(&word, sizeof(std::uint32_t), cudaHostAllocMapped | cudaHostAllocPortable));
  word_ = new (word) std::uint32_t(0);
  HAWSER_CUDA_CHECK(cudaHostGetDevicePointer(&on_device_, word, 0));
}

HostCounter::~HostCounter() {
  cudaFreeHost(word_);
}

void HostCounter::set(std::uint32_t count) {
  std::atomic_ref(*word_).store(count, std::memory_order_release);
}

namespace {

class HostStream : public ForwardingStream {
 public:
  HostStream(const std::string& name, int ordinal, int threads)
      : ForwardingStream(make_cpu_stream(name, {.threads = threads})),
        ordinal_(ordinal),
        counter_(std::make_shared<HostCounter>(ordinal)) {}

  void launch(OpRecord record, std::function<void()> work) override {
    inner_->launch(std::move(record), std::move(work));
  }
  Event record_event() override {
    auto state = std::make_shared<HostEvent>();
    state->of_cpu = inner_->record_event();
    state->counter = counter_;
    state->count = ++count_;
    call_always(*inner_, [counter = counter_, count = count_] { counter->set(count); });
    return Event(std::move(state));
  }
  void wait(const Event& event) override {
    if (event.state() == nullptr) return;
    if (const auto* own = dynamic_cast<const HostEvent*>(event.state().get())) return inner_->wait(own->of_cpu);
    call_always(*inner_, [event, ordinal = ordinal_] {
      cudaSetDevice(ordinal);  // otherwise the thread would use the first GPU
      hawser::host_wait(event);
    });
  }

 private:
  int ordinal_;
  std::shared_ptr<HostCounter> counter_;
  std::uint32_t count_ = 0;
};

}  // namespace

std::unique_ptr<Stream> make_host_stream(const std::string& name, int ordinal, int threads) {
  return std::make_unique<HostStream>(name, ordinal, threads);
}

}  // namespace hawser::cuda
