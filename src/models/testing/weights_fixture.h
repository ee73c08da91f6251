// Fixture of the tests of weights: buffers, tensors of a folder, states of pieces.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "models/testing/model_files.h"
#include "nn/granularity.h"

namespace hawser::models {

// The boxes of a value for each element.
inline std::vector<NamedState> states_of(const Model& model, int flat, std::int64_t begin, std::int64_t count,
                                         const TensorView& values, const std::string& prefix = "") {
  return nn::value_states(model.flat(flat), {}, begin, count, values, prefix, false);
}

class WeightsTest : public ::testing::Test {
 protected:
  Storage buffer(std::int64_t count, DType dtype = DType::f32) const { return Storage(*device_, dtype, {count}); }

  std::vector<float> tensor(checkpoint::SafetensorsFolder& folder, const std::string& name) const {
    const checkpoint::TensorInfo* info = folder.find(name);
    if (info == nullptr) return ADD_FAILURE() << name, std::vector<float>{};
    const Storage out = buffer(info->shape.elements());
    folder.read(name, checkpoint::full(info->shape), out);
    return values(out);
  }

  // The expected values of a flat, built tensor by tensor.
  std::vector<float> expected_flat(const nn::Flat& flat, std::int64_t total,
                                   checkpoint::SafetensorsFolder& folder) const {
    std::vector<float> all(static_cast<std::size_t>(total), 0.0f);
    for (std::size_t p = 0; p < flat.params().size(); ++p) {
      auto to = all.begin() + flat.offset(static_cast<int>(p));
      for (const nn::Segment& segment : flat.params()[p].segments) {
        const std::vector<float> part = tensor(folder, segment.name);
        to = std::copy(part.begin(), part.end(), to);
      }
    }
    return all;
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
  std::mt19937 random_{7};
};

}  // namespace hawser::models
