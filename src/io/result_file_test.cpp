#include "io/result_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/error.h"
#include "base/testing/temporary_folder.h"

namespace hawser::io {
namespace result_file_test {

namespace fs = std::filesystem;

class ResultFileTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }
  std::string text(const std::string& name) const { return folder_.read(name); }
  void write(const std::string& name, const std::string& content) const { folder_.write(name, content); }
  std::size_t names() const { return folder_.count(); }
  static int rights(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status.st_mode & 07777;
  }

  TemporaryFolder folder_;
};

std::string rejection(const std::function<void()>& body) {
  try {
    body();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST_F(ResultFileTest, ReplacesOnCommitAndKeepsPermissions) {
  write("old", "old");
  ::chmod(path("old").c_str(), 0600);
  {
    ResultFile file(path("old"));
    file.write("new ");
    EXPECT_EQ(text("old"), "old");
    file.write("text");
    file.commit();
  }
  EXPECT_EQ(text("old"), "new text");
  EXPECT_EQ(rights(path("old")), 0600);
  write("shared", "old");
  ::chmod(path("shared").c_str(), 0664);
  write_result(path("shared"), "new");
  EXPECT_EQ(rights(path("shared")), 0664) << "others read it as before";
  const mode_t mask = ::umask(027);
  write_result(path("fresh"), "x");
  ::umask(mask);
  EXPECT_EQ(rights(path("fresh")), 0640);
  { ResultFile never(path("old")); }
  { ResultFile never(path("none")); }
  EXPECT_EQ(text("old"), "new text");
  EXPECT_EQ(names(), 3u);
  // The longest name that the system accepts.
  const std::string longest(255, 'n');
  write_result(path(longest), "y");
  EXPECT_EQ(text(longest), "y");
}

TEST_F(ResultFileTest, FollowsLinks) {
  fs::create_directory(folder_ / "far");
  write("far/target", "old");
  fs::create_symlink("far/target", folder_ / "near");
  fs::create_symlink("near", folder_ / "nearer");
  write_result(path("nearer"), "new");
  EXPECT_EQ(text("far/target"), "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "near"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "nearer"));
  fs::create_symlink("far/later", folder_ / "dangling");
  write_result(path("dangling"), "there");
  EXPECT_EQ(text("far/later"), "there");
  EXPECT_TRUE(fs::is_symlink(folder_ / "dangling"));
  fs::create_symlink("round", folder_ / "round");
  EXPECT_EQ(rejection([&] { write_result(path("round"), "x"); }),
            path("round") + ": cannot write: Too many levels of symbolic links");
}

TEST_F(ResultFileTest, WritesDirectlyToPipesDescriptorsAndDevices) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = text("pipe"); });
  {
    ResultFile file(path("pipe"));
    EXPECT_TRUE(file.straight());
    file.write("a\n");
    file.write("b\n");
    file.commit();
  }
  reader.join();
  EXPECT_EQ(got, "a\nb\n");
  EXPECT_TRUE(fs::is_fifo(folder_ / "pipe"));
  // A file that is open elsewhere is written, not replaced.
  write("log", "before\n");
  const int descriptor = ::open(path("log").c_str(), O_WRONLY | O_APPEND);
  ASSERT_GE(descriptor, 0);
  write_result(cat("/dev/fd/", descriptor), "after\n");
  EXPECT_EQ(::write(descriptor, "last\n", 5), 5);
  ::close(descriptor);
  EXPECT_EQ(text("log"), "before\nafter\nlast\n");
  // A device node like /dev/null, where mknod and opening it are allowed.
  if (::mknod(path("null").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) {
    if (const int there = ::open(path("null").c_str(), O_WRONLY); there >= 0) {
      ::close(there);
      write_result(path("null"), "gone");
      EXPECT_TRUE(fs::is_character_file(folder_ / "null"));
    }
  }
}

TEST_F(ResultFileTest, TheLastToCommitWins) {
  ResultFile first(path("both")), second(path("both"));
  first.write("1");
  second.write("2");
  first.write("1");
  second.commit();
  EXPECT_EQ(text("both"), "2");
  first.commit();
  EXPECT_EQ(text("both"), "11");
  EXPECT_EQ(names(), 1u);
}

TEST_F(ResultFileTest, AFailedWriteLeavesTheOldFile) {
  EXPECT_EQ(rejection([&] { write_result(path("nowhere/x"), "x"); }),
            path("nowhere/x") + ": cannot write: No such file or directory");
  EXPECT_EQ(rejection([&] { write_result(folder_.path(), "x"); }), folder_.path() + ": cannot write: Is a directory");
  write("full", "old");
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit little{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &little);
  const std::string line = rejection([&] { write_result(path("full"), std::string(5000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(line, path("full") + ": cannot write: File too large");
  EXPECT_EQ(text("full"), "old");
  EXPECT_EQ(names(), 1u);
  if (::geteuid() != 0) {
    ::chmod(path("full").c_str(), 0400);
    EXPECT_EQ(rejection([&] { write_result(path("full"), "x"); }), path("full") + ": cannot write: Permission denied");
  }
}

TEST_F(ResultFileTest, WhatWasWrittenBeforeAFailureIsKeptAsAPart) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{12, 12};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string error;
    {
      ResultFile file(path("x"), ResultFile::Unfinished::kept_as_part);
      file.write("complete\n");
      error = rejection([&] { file.write("incomplete\n"); });
    }
    ::_exit(error == path("x") + ": cannot write: File too large; " + path("x.part") + " has what was written before"
                ? 0
                : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text("x.part"), "complete\n");
  EXPECT_EQ(names(), 1u);
  // An exception of the caller.
  { ResultFile(path("y"), ResultFile::Unfinished::kept_as_part).write("some\n"); }
  EXPECT_EQ(text("y.part"), "some\n");
  { ResultFile(path("z"), ResultFile::Unfinished::kept_as_part); }
  EXPECT_EQ(names(), 2u);
}

TEST_F(ResultFileTest, AnUnfinishedFileIsKeptAsAPartOrRemoved) {
  {
    ResultFile file(path("x"), ResultFile::Unfinished::kept_as_part);
    file.write("some\n");
    EXPECT_EQ(file.keep_part(), path("x.part"));
  }
  EXPECT_EQ(text("x.part"), "some\n");
  EXPECT_EQ(names(), 1u);
  fs::remove(folder_ / "x.part");
  // As a signal handler does before the process exits.
  for (const bool kept : {false, true}) {
    for (const bool written : {false, true}) {
      const pid_t child = ::fork();
      if (child == 0) {
        ResultFile file(path("y"), kept ? ResultFile::Unfinished::kept_as_part : ResultFile::Unfinished::removed);
        if (written) file.write("some\n");
        drop_unfinished_result();
        ::_exit(0);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_EQ(status, 0);
      EXPECT_EQ(names(), kept && written ? 1u : 0u) << kept << written;
    }
  }
  EXPECT_EQ(text("y.part"), "some\n");
}

// Of processes that are interrupted together, and of files of one process.
TEST_F(ResultFileTest, EachUnfinishedFileIsKeptAsAPartOfItsOwn) {
  ResultFile a(path("x"), ResultFile::Unfinished::kept_as_part), b(path("x"), ResultFile::Unfinished::kept_as_part);
  a.write("a\n");
  b.write("b\n");
  const pid_t child = ::fork();
  if (child == 0) {
    ResultFile c(path("y"), ResultFile::Unfinished::kept_as_part);
    ResultFile d(path("x"), ResultFile::Unfinished::kept_as_part);
    d.write("d\n");
    std::ofstream(path("x.part")) << "of another process";
    drop_unfinished_result();  // of the file that was opened first: `a`
    ::_exit(d.keep_part() == path("x.part-3") ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text("x.part"), "of another process");
  EXPECT_EQ(text("x.part-2"), "a\n");
  EXPECT_EQ(text("x.part-3"), "d\n");
  EXPECT_EQ(b.keep_part(), path("x.part-4"));
  for (int number = 5; number <= 11; ++number) {
    ResultFile more(path("x"));
    more.write("more\n");
    EXPECT_EQ(more.keep_part(), path("x.part-" + std::to_string(number)));
  }
}

}  // namespace result_file_test
}  // namespace hawser::io
