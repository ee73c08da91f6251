#include "base/calendar.h"

#include <gtest/gtest.h>

namespace hawser {
namespace calendar_test {

TEST(Calendar, ParsesDays) {
  const auto day = parse_day("2024-07-26");
  ASSERT_TRUE(day);
  EXPECT_EQ(day->tm_year, 124);
  EXPECT_EQ(day->tm_mon, 6);
  EXPECT_EQ(day->tm_mday, 26);
  EXPECT_EQ(day->tm_wday, 5);  // a Friday
  EXPECT_EQ(day->tm_yday, 207);
  EXPECT_EQ(parse_day("2024-02-29")->tm_yday, 59);
  for (const char* wrong : {"", "2023-02-29", "2024-13-01", "2024-00-10", "24-07-26", "2024/07/26", "2024-7-26",
                            "2024-07-26 ", "2024-+7-26", "2024--7-26", "yesterday."}) {
    EXPECT_FALSE(parse_day(wrong)) << wrong;
  }
}

}  // namespace calendar_test
}  // namespace hawser
