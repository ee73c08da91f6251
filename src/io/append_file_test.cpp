#include "io/append_file.h"

#include <gtest/gtest.h>

#include <string>

#include "base/testing/temporary_folder.h"

namespace hawser::io {
namespace append_file_test {

// What was written before the cut is in the file, whether the buffer had it or not.
TEST(AppendFileTest, TruncatesWhatItHasBuffered) {
  const TemporaryFolder folder;
  AppendFile file(folder.path("file"));
  const std::string kept = "kept ", dropped = "dropped ", next = "next";
  file.write(kept.data(), kept.size());
  file.write(dropped.data(), dropped.size());
  file.truncate(static_cast<std::int64_t>(kept.size()));
  EXPECT_EQ(file.size(), static_cast<std::int64_t>(kept.size()));
  file.write(next.data(), next.size());
  file.flush();
  EXPECT_EQ(folder.read("file"), kept + next);
  EXPECT_EQ(file.size(), static_cast<std::int64_t>((kept + next).size()));
}

}  // namespace append_file_test
}  // namespace hawser::io
