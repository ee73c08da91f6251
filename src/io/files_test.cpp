#include "io/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/testing/temporary_folder.h"
#include "base/testing/without_privileges.h"

namespace hawser::io {
namespace {

class FilesTest : public testing::Test {
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

}  // namespace
}  // namespace hawser::io
