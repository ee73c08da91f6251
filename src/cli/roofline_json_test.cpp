#include "cli/roofline_json.h"

#include <gtest/gtest.h>

namespace hawser::cli {
namespace roofline_json_test {

profile::Roofline two_terms() {
  profile::Roofline roofline;
  roofline.terms = {{.what = "GEMM up, y [2 x 3 x 4]", .count = 10, .work = 5e12, .burst = 0.0625, .alone = 0.078125},
                    {.what = "fused kernels", .count = 1, .work = 1e12, .bytes = true, .burst = 0.25, .alone = 0.25}};
  return roofline;
}

profile::StepMix measured() {
  return {.seconds = 1.125, .blocks = 8, .power = {.gpus = 1, .watts = 699.6, .sm_clock_mhz = 1545.2}};
}

TEST(RooflineJson, HasThreeCeilings) {
  EXPECT_EQ(roofline_json(two_terms(), measured(), 1.25).dump(),
            R"({"terms":[{"what":"GEMM up, y [2 x 3 x 4]","count":10.0,)"
            R"("burst":{"seconds_each":0.0625,"flops_per_second":80000000000000.0},)"
            R"("alone":{"seconds_each":0.078125,"flops_per_second":64000000000000.0}},)"
            R"({"what":"fused kernels","count":1.0,)"
            R"("burst":{"seconds_each":0.25,"bytes_per_second":4000000000000.0},)"
            R"("alone":{"seconds_each":0.25,"bytes_per_second":4000000000000.0}}],)"
            R"("burst":{"seconds":0.875,"ratio":0.7},"alone":{"seconds":1.03125,"ratio":0.825},)"
            R"("mix":{"seconds":1.125,"ratio":0.9,"blocks":8,"watts":699.6,"sm_clock_mhz":1545.2}})");
  EXPECT_EQ(roofline_json({.problem = "a"}, {.problem = "b"}, 1).dump(),
            R"({"burst":{"problem":"a"},"alone":{"problem":"a"},"mix":{"problem":"b"}})");
}

TEST(RooflineJson, PrintsThemTogether) {
  EXPECT_EQ(
      roofline_text(two_terms(), measured(), 1.25),
      "\nceilings of this rank's step\n"
      "                                                             count       burst        alone    burst   alone\n"
      "  GEMM up, y [2 x 3 x 4]                                        10 x    62.500    78.125 ms     80.0    64.0 "
      "TFLOP/s\n"
      "  fused kernels                                                  1 x   250.000   250.000 ms   4000.0  4000.0 "
      "GB/s\n"
      "  R_burst     875.0 ms  0.700 of the step  each term alone for 0.1 s, no recompute, communication hidden\n"
      "  R_alone    1031.2 ms  0.825 of the step  each term alone for 1 s\n"
      "  R_mix      1125.0 ms  0.900 of the step  its ops in their own mix, 8 blocks on one GPU without "
      "communication; 700 W, 1545 MHz\n"
      "  step       1250.0 ms\n");
  const std::string text = roofline_text({.problem = "measured on a GPU only"}, {.problem = "too large"}, 1);
  EXPECT_NE(text.find("  R_burst  unknown: measured on a GPU only\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  R_mix    unknown: too large\n"), std::string::npos) << text;
}

}  // namespace roofline_json_test
}  // namespace hawser::cli
