#include "engine/host_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace hawser::engine {
namespace host_copy_test {

// Tensors of several pieces, the last one shorter, and of less than one.
TEST(PinnedStagingBuffer, TransfersTensorsOfAnySizeInPieces) {
  const auto device = make_cpu_device({.random_delay_s = 0.001});
  const auto stream = device->make_stream("copies");
  PinnedStagingBuffer staging(*device, *stream, 100);
  for (const std::int64_t bytes : {0, 4, 100, 104, 200, 496}) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(bytes / 4)), got(values.size(), -1);
    std::iota(values.begin(), values.end(), 7);
    const Storage there(*device, DType::i32, {std::max<std::int64_t>(1, bytes / 4)});
    const TensorView view = there.view().rows(0, bytes / 4);
    staging.send(view, [&](std::byte* piece, std::int64_t begin, std::int64_t count) {
      std::memcpy(piece, reinterpret_cast<const std::byte*>(values.data()) + begin, static_cast<std::size_t>(count));
    });
    EXPECT_EQ(std::memcmp(view.raw(), values.data(), static_cast<std::size_t>(bytes)), 0) << bytes;
    staging.fetch(view, reinterpret_cast<std::byte*>(got.data()));
    EXPECT_EQ(got, values);
  }
}

}  // namespace host_copy_test
}  // namespace hawser::engine
