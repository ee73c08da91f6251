// What is on disk after each call, on file systems that lack a feature, and with reads and writes that end early.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/testing/system_calls.h"
#include "base/testing/temporary_folder.h"
#include "io/append_file.h"
#include "io/bounded_file.h"
#include "io/files.h"
#include "io/record_file.h"
#include "io/result_file.h"

namespace hawser::io {
namespace durable_test {

using Lines = SystemCalls::Lines;

std::string numbers(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += cat(i, " ");
  return text;
}

class Durable : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }
  std::string text(const std::string& name) const { return folder_.read(name); }
  TemporaryFolder folder_;
  SystemCalls calls_{folder_.path()};
};

TEST_F(Durable, EveryKindOfFileIsSyncedBeforeItsNameIs) {
  AppendFile appended(path("appended"));
  appended.write("abc", 3);
  appended.sync();
  EXPECT_EQ(calls_.not_durable(), Lines{"name not synced: appended"}) << "the caller's";
  sync_folder(folder_.path());
  {
    AtomicFile file(path("atomic"));
    file.write("abc", 3);
    file.commit();
  }
  EXPECT_EQ(calls_.not_durable(), Lines());
  write_result(path("result"), "abc");
  EXPECT_EQ(calls_.not_durable(), Lines());
  ResultFile part(path("unfinished"));
  part.write("abc");
  part.keep_part();
  EXPECT_EQ(calls_.not_durable(), Lines());
  for (const char* name : {"appended", "atomic", "result", "unfinished.part"}) EXPECT_EQ(text(name), "abc") << name;
  RecordFile record(path("records"));
  EXPECT_EQ(calls_.log().back(), "fsync .");
  record.append("{}\n");
  record.sync();
  EXPECT_EQ(calls_.log().back(), "fsync records");
  write_text_atomically(path("text"), "abc");
  const Lines log = calls_.log();
  ASSERT_GE(log.size(), 3u);
  EXPECT_TRUE(log[log.size() - 3].starts_with("write text.tmp-")) << log[log.size() - 3];
  EXPECT_TRUE(log[log.size() - 2].starts_with("fsync text.tmp-")) << log[log.size() - 2];
  EXPECT_TRUE(log.back().starts_with("rename text.tmp-")) << log.back();
}

TEST_F(Durable, ARecordFileThatIsCutIsSynced) {
  folder_.write("records", "one\ntwo\n");
  const RecordFile records(path("records"), 4);
  EXPECT_EQ(calls_.log(), (Lines{"write records", "fsync records", "fsync ."})) << "written by the test";
  EXPECT_EQ(text("records"), "one\n");
}

// In pieces of 4 MiB, the last one shorter.
TEST_F(Durable, WithoutHardLinksFilesAreCopiedAndSynced) {
  const std::string contents = numbers(1'400'000);
  ASSERT_GT(contents.size(), std::size_t{9} << 20);
  folder_.write("from", contents);
  link_or_copy(path("from"), path("linked"));
  EXPECT_EQ(calls_.log(), Lines{"link from linked"});
  for (const int error : {EXDEV, EPERM, EMLINK}) {
    const std::string to = cat("copied-", error);
    calls_.stop_failing();
    calls_.fail("link", error);
    link_or_copy(path("from"), path(to));
    EXPECT_TRUE(text(to) == contents);
    const Lines log = calls_.log();
    EXPECT_EQ(Lines(log.end() - 3, log.end()),
              (Lines{cat("link from ", to, " (error)"), "write " + to, "fsync " + to}));
  }
  folder_.write("empty", "");
  link_or_copy(path("empty"), path("copy-of-empty"));
  EXPECT_EQ(text("copy-of-empty"), "");
  EXPECT_THROW(link_or_copy(path("from"), path("empty")), UserError) << "a name that is taken";
}

TEST_F(Durable, AFolderThatCannotBeSyncedIsNoErrorWhereTheFileSystemCannot) {
  for (const int error : {EINVAL, ENOTSUP}) {
    calls_.fail("fsync", error, "", 1);
    sync_folder(folder_.path());
  }
  calls_.fail("fsync", EIO, "", 1);
  EXPECT_THROW(sync_folder(folder_.path()), IoError);
  calls_.fail("fsync", EINVAL, "result", 1);
  write_result(path("result"), "abc");
  EXPECT_EQ(text("result"), "abc");
  calls_.fail("fsync", EIO, "result", 1);
  EXPECT_THROW(write_result(path("result"), "def"), UserError);
  EXPECT_EQ(text("result"), "abc");
}

TEST_F(Durable, RenamesThatTheFileSystemCannotDoAreToldFromErrors) {
  folder_.write("a", "1");
  folder_.write("b", "2");
  for (const int error : {EINVAL, ENOSYS, ENOTSUP, EXDEV}) {
    calls_.fail("exchange", error, "", 1);
    EXPECT_FALSE(exchange_paths(path("a"), path("b"))) << error;
  }
  calls_.fail("exchange", EIO, "", 1);
  EXPECT_THROW(exchange_paths(path("a"), path("b")), IoError);
  EXPECT_TRUE(exchange_paths(path("a"), path("b")));
  EXPECT_EQ(text("a"), "2");
  calls_.fail("rename", EXDEV, "", 1);
  EXPECT_FALSE(try_rename_path(path("a"), path("c")));
  calls_.fail("rename", EIO, "", 1);
  EXPECT_THROW(try_rename_path(path("a"), path("c")), IoError);
  calls_.fail("rename", EXDEV, "", 1);
  EXPECT_THROW(rename_path(path("a"), path("c")), IoError);
  EXPECT_TRUE(try_rename_path(path("a"), path("c")));
}

TEST_F(Durable, ALockIsTakenHeldOrUnsupported) {
  File one = File::open_or_create(path("lock")), other = File::open_or_create(path("lock"));
  calls_.fail("flock", EINTR, "", 2);
  EXPECT_EQ(one.try_lock(), File::Lock::taken);
  EXPECT_EQ(other.try_lock(), File::Lock::held_elsewhere);
  EXPECT_EQ(other.try_lock_shared(), File::Lock::held_elsewhere);
  calls_.fail("flock", ENOLCK, "", 2);
  EXPECT_EQ(other.try_lock(), File::Lock::unsupported);
  EXPECT_EQ(other.try_lock_shared(), File::Lock::unsupported);
}

// The system transfers less than it is asked for: above 2 GiB, at a signal, on a full disk.
TEST_F(Durable, ReadsAndWritesThatEndEarlyContinueWhereTheyEnded) {
  const std::string contents = numbers(500);
  calls_.shorten(100);
  {
    File file = File::create(path("file"));
    calls_.fail("write", EINTR, "file", 1);
    file.write_at(0, reinterpret_cast<const std::byte*>(contents.data()), static_cast<std::int64_t>(contents.size()));
  }
  EXPECT_EQ(text("file"), contents);
  calls_.fail("read", EINTR, "file", 1);
  EXPECT_EQ(read_text(path("file"), 10000), contents);
  {
    AppendFile file(path("appended"));
    calls_.fail("write", EINTR, "appended", 1);
    file.write(contents.data(), contents.size());
    file.flush();
    EXPECT_EQ(file.size(), static_cast<std::int64_t>(contents.size()));
  }
  EXPECT_EQ(text("appended"), contents);
  {
    RecordFile records(path("records"));
    calls_.fail("write", EINTR, "records", 1);
    records.append(contents);
  }
  EXPECT_EQ(text("records"), contents);
  calls_.fail("write", EINTR, "result", 1);
  write_result(path("result"), contents);
  EXPECT_EQ(text("result"), contents);
}

TEST_F(Durable, ARecordIsWrittenCompletelyOrNotAtAll) {
  RecordFile records(path("records"));
  records.append("first\n");
  calls_.shorten(4);
  int writes = 0;
  calls_.observe([&](const std::string& line) {
    if (line == "write records" && ++writes == 2) calls_.fail("write", EIO, "records", 1);
  });
  EXPECT_THROW(records.append("second\n"), UserError);
  calls_.observe({});
  EXPECT_EQ(text("records"), "first\n");
  records.append("third\n");
  EXPECT_EQ(text("records"), "first\nthird\n");
}

// More than the buffers of AppendFile and read_bounded, 1 MiB.
TEST_F(Durable, LargeFilesPassThroughSmallBuffers) {
  const std::string contents = numbers(400'000);
  ASSERT_GT(contents.size(), std::size_t{2} << 20);
  {
    AppendFile file(path("large"));
    for (std::size_t at = 0; at < contents.size(); at += 700'001)
      file.write(contents.data() + at, std::min<std::size_t>(700'001, contents.size() - at));
    file.write(contents.data(), contents.size());
    file.sync();
  }
  EXPECT_TRUE(text("large") == contents + contents);
  EXPECT_TRUE(read_bounded(path("large"), std::int64_t{1} << 30) == contents + contents);
}

}  // namespace durable_test
}  // namespace hawser::io
