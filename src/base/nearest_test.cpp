#include "base/nearest.h"

#include <gtest/gtest.h>

namespace hawser {
namespace nearest_test {

TEST(Nearest, SuggestsWhatIsNear) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("stpes", "steps"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(nearest("fti", {"fit", "plan"}), "fit");
  EXPECT_EQ(nearest("seq", {"steps", "sequence_length"}), "sequence_length");
  EXPECT_EQ(nearest("no", {"auto", "none"}), "none");
  EXPECT_EQ(nearest("training", {"plan", "train"}), "train");
  EXPECT_EQ(nearest("xyzzy", {"fit", "plan"}), "");
  EXPECT_EQ(nearest("launch", {"bench", "plan"}), "");  // a wrong suggestion is worse than none
}

}  // namespace nearest_test
}  // namespace hawser
