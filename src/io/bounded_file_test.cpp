#include "io/bounded_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/testing/temporary_folder.h"

namespace hawser::io {
namespace bounded_file_test {

std::string rejection(const std::string& path, std::int64_t limit) {
  try {
    read_bounded(path, limit, "cannot read it");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(BoundedFile, ReadsUpToTheLimit) {
  const TemporaryFolder folder;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{1} << 20, (std::size_t{1} << 20) + 7}) {
    const std::string text(size, 'x'), path = folder.write("a", text);
    EXPECT_EQ(read_bounded(path, static_cast<std::int64_t>(size)), text);
    if (size > 0) {
      EXPECT_NE(rejection(path, static_cast<std::int64_t>(size) - 1).find("file too large (expected at most "),
                std::string::npos);
    }
  }
  EXPECT_EQ(rejection(folder.path("none"), 5), folder.path("none") + ": cannot read it: No such file or directory");
}

TEST(BoundedFile, BoundsWhatHasNoSize) {
  EXPECT_EQ(rejection("/dev/zero", 1 << 22), "/dev/zero: file too large (expected at most 4.0 MiB)");
  const TemporaryFolder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << "train: {steps: 1}"; });
  EXPECT_EQ(read_bounded(pipe, 100), "train: {steps: 1}");
  writer.join();
}

}  // namespace bounded_file_test
}  // namespace hawser::io
