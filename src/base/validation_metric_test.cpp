#include "base/validation_metric.h"

#include <gtest/gtest.h>

namespace hawser {
namespace validation_metric_test {

TEST(ValidationMetric, NamesAllSetsOrOne) {
  const ValidationLosses losses(2.25, {{"novels", 2.5}, {"support", 1.96875}}), one(3);
  EXPECT_EQ(loss_of(losses, kAllSets), 2.25);
  EXPECT_EQ(loss_of(losses, "support"), 1.96875);
  EXPECT_EQ(loss_of(losses, "poems"), std::nullopt);
  EXPECT_EQ(loss_of(one, kAllSets), 3);
  EXPECT_EQ(set_losses_text(losses), "novels 2.5000, support 1.9688");
  EXPECT_EQ(set_losses_text(one), "");
  EXPECT_EQ(metric_words(kAllSets), "validation loss");
  EXPECT_EQ(metric_words("support"), "validation loss of support");
}

}  // namespace validation_metric_test
}  // namespace hawser
