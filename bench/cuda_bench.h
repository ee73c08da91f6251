// `CudaBench`: a GPU, a stream, random tensors and timing for the benchmarks of CUDA ops.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/cuda_check.h"
#include "ops/seed/init.h"

namespace hawser::ops {

class CudaBench {
 public:
  // `only`: part of the names of wanted lines.
  explicit CudaBench(std::string only)
      : only_(std::move(only)), device_(make_cuda_device()), stream_(device_->make_stream("bench")) {
    HAWSER_CUDA_CHECK(cudaEventCreate(&start_));
    HAWSER_CUDA_CHECK(cudaEventCreate(&stop_));
  }
  ~CudaBench() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  CudaBench(const CudaBench&) = delete;
  CudaBench& operator=(const CudaBench&) = delete;

  Stream& stream() { return *stream_; }
  Device& device() { return *device_; }
  bool wanted(const std::string& name) const { return name.find(only_) != std::string::npos; }

  // Tensors are valid until clear().
  TensorView empty(DType dtype, const Shape& shape) {
    kept_.emplace_back(*device_, dtype, shape);
    return kept_.back();
  }
  TensorView normal(DType dtype, const Shape& shape, double std = 1.0) {
    const TensorView view = empty(dtype, shape);
    random_normal(*stream_, {.y = view, .seed = 1, .name = kept_.size(), .std = std});
    return view;
  }
  TensorView numbers(const std::vector<std::int32_t>& values, const Shape& shape) {
    const TensorView view = empty(DType::i32, shape);
    transfer(*stream_, view.raw(), values.data(), view.bytes());
    stream_->synchronize();
    return view;
  }
  void clear() {
    stream_->synchronize();
    kept_.clear();
  }

 protected:
  static cudaStream_t handle(Stream& stream) { return static_cast<cudaStream_t>(stream.native()->stream); }
  static double median(std::vector<float> times) {
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
  }
  // Milliseconds of what `run` enqueues on the stream.
  float timed(Stream& stream, const std::function<void()>& run) {
    HAWSER_CUDA_CHECK(cudaEventRecord(start_, handle(stream)));
    run();
    HAWSER_CUDA_CHECK(cudaEventRecord(stop_, handle(stream)));
    stream.synchronize();
    float ms = 0;
    HAWSER_CUDA_CHECK(cudaEventElapsedTime(&ms, start_, stop_));
    return ms;
  }
  // The same with a cold cache.
  float cold(Stream& stream, const std::function<void()>& run) {
    const CudaNative& native = *stream.native();
    HAWSER_CUDA_CHECK(cudaMemsetAsync(native.scratch(), 0, kCudaScratchBytes, handle(stream)));
    return timed(stream, run);
  }

 private:
  std::string only_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Storage> kept_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

}  // namespace hawser::ops
