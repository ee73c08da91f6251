// `GpuTest`: base of tests that need a GPU. Without one they are skipped with the reason.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "tensor/tensor.h"

namespace hawser::testing {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_info().devices == 0) GTEST_SKIP() << "NOT RUN: " << cuda_info().problem;
    device_ = make_cuda_device();
  }

  template <class T>
  void put(Stream& stream, const TensorView& view, const std::vector<T>& values) {
    transfer(stream, view.raw(), values.data(), view.bytes());
    stream.synchronize();
  }
  template <class T>
  std::vector<T> get(Stream& stream, const TensorView& view) {
    std::vector<T> out(static_cast<std::size_t>(view.elements()));
    transfer(stream, out.data(), view.raw(), view.bytes());
    stream.synchronize();
    return out;
  }

  std::unique_ptr<Device> device_;
};

}  // namespace hawser::testing
