// What the ranks of a machine pin together, and its memory.
#include "engine/does_not_fit.h"

#include <gtest/gtest.h>

#include "base/host_name.h"

namespace hawser::engine {
namespace does_not_fit_test {

std::string message_of(std::int64_t has, std::int64_t needs) {
  try {
    expect_fits(nullptr, {.pinned = needs, .machine_has = Bytes(has)});
  } catch (const DoesNotFit& error) {
    return error.what();
  }
  return "fits";
}

// Rounded, 1 GiB and a byte more are the same.
TEST(DoesNotFit, NumbersOfHostMemoryDiffer) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  const auto message = [](const std::string& has, const std::string& needs) {
    return cat("does not fit in host memory (expected at most ", has, " for the 1 rank on ", host_name(), ", got ",
               needs, ")");
  };
  EXPECT_EQ(message_of(kGiB, kGiB), "fits");
  EXPECT_EQ(message_of(kGiB, kGiB + 1), message("1073741824 bytes", "1073741825 bytes"));
  EXPECT_EQ(message_of(kGiB, 2 * kGiB), message("1.00 GiB", "2.00 GiB"));
}

// One rank cannot be fewer.
TEST(DoesNotFit, SuggestsOnlyWhatCanHelp) {
  const RankNeed fits{.pinned = 1, .machine_has = Bytes(1), .hint = "a smaller batch"};
  EXPECT_EQ(reason_against(nullptr, fits), "");
  RankNeed need{.pinned = 2, .machine_has = Bytes(1), .hint = "a smaller batch"};
  EXPECT_TRUE(reason_against(nullptr, need).ends_with(", got 2 B); try a smaller batch"))
      << reason_against(nullptr, need);
  need.hint.clear();
  EXPECT_TRUE(reason_against(nullptr, need).ends_with(", got 2 B)")) << reason_against(nullptr, need);
}

}  // namespace does_not_fit_test
}  // namespace hawser::engine
