#include "engine/gemm_algorithms.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/testing/test_paths.h"
#include "engine/open_model.h"

namespace hawser::engine {
namespace gemm_algorithms_test {

// A router's weight, rows and gradients are float32 in a model that computes and reduces in bf16.
TEST(GemmAlgorithms, OfRoutersAreThoseOfFloat32) {
  Problems problems;
  const OpenModel open =
      open_model(std::string(testing::kSourceFolder) + "/tests/golden/families/mixtral", false, problems);
  ASSERT_EQ(problems.lines(), "");
  plan::LayoutChoices layout;
  layout.compute = layout.reduce_dtype = DType::bf16;
  layout.mesh.shard = 2;
  layout.batch_sizes = {.sequences = 1, .sequence_length = 32, .max_documents = 1};
  int routers = 0;
  for (const GemmShape& gemm : gemms_of(*open.model, plan::derive(layout, *open.model), false)) {
    const bool router = gemm.name.starts_with("gate,");
    routers += router ? 1 : 0;
    EXPECT_EQ(gemm.in_a, router ? DType::f32 : DType::bf16) << gemm.name;
    EXPECT_EQ(gemm.in_b, gemm.in_a) << gemm.name;
    EXPECT_EQ(gemm.out, gemm.in_a) << gemm.name;
  }
  EXPECT_EQ(routers, 3);
}

}  // namespace gemm_algorithms_test
}  // namespace hawser::engine
