#include "io/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/testing/temporary_folder.h"
#include "base/testing/without_privileges.h"

namespace hawser::io {
namespace files_test {

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() {
    folder_.write("private/file", "text");
    chmod(folder_.path("private").c_str(), 0);
    folder_.write("locked", "text");
    chmod(folder_.path("locked").c_str(), 0);
  }
  ~FilesTest() override { chmod(folder_.path("private").c_str(), 0700); }
  TemporaryFolder folder_;
};

// "absent", "there", or the class and text of an error.
template <class Ask>
std::string outcome(Ask ask) {
  try {
    return ask() ? "there" : "absent";
  } catch (const IoError& error) {
    return std::string("IoError: ") + error.what();
  }
}

// A file that a network file system does not find for a moment, or that cannot be looked up, has not been replaced.
TEST_F(FilesTest, AnErrorOfTheSystemIsNoReplacement) {
  const std::string file = folder_.path("private/file"), other = folder_.write("other", "text");
  const int fd = ::open(file.c_str(), O_RDONLY);
  ASSERT_GE(fd, 0);
  EXPECT_TRUE(names_open_file(fd, file));
  EXPECT_EQ(without_privileges([&] { return std::string(names_open_file(fd, file) ? "yes" : "no"); }), "yes");
  EXPECT_FALSE(names_open_file(fd, other));
  EXPECT_FALSE(names_open_file(fd, folder_.path("nothing")));
  EXPECT_FALSE(names_open_file(fd, other + "/below"));
  ::close(fd);
}

TEST_F(FilesTest, AnErrorOfTheSystemIsNoAbsence) {
  const std::string file = folder_.path("private/file");
  const std::string expected = "IoError: " + file + ": cannot read: Permission denied";
  const auto asked = [&](bool (*ask)(const std::string&)) {
    return without_privileges([&] { return outcome([&] { return ask(file); }); });
  };
  EXPECT_EQ(asked(exists), expected);
  EXPECT_EQ(asked(is_file), expected);
  EXPECT_EQ(asked(is_folder), expected);
  EXPECT_EQ(outcome([&] { return exists(folder_.path("nothing/below")); }), "absent");
  EXPECT_EQ(outcome([&] { return exists(folder_.path("locked/below")); }), "absent");  // a file is no folder
  EXPECT_EQ(outcome([&] { return is_file(folder_.path()); }), "absent");
}

TEST_F(FilesTest, AFileThatCannotBeReadIsAnIoErrorAndAMissingOneIsNot) {
  const auto opened = [&](const std::string& name) {
    return without_privileges([&]() -> std::string {
      try {
        File::open(folder_.path(name));
        return "opened";
      } catch (const IoError&) {
        return "IoError";
      } catch (const UserError&) {
        return "UserError";
      }
    });
  };
  EXPECT_EQ(opened("locked"), "IoError");
  EXPECT_EQ(opened("private/file"), "IoError");
  EXPECT_EQ(opened("nothing"), "UserError");
}

}  // namespace files_test
}  // namespace hawser::io
