#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "base/for_each_index.h"
#include "base/paths.h"
#include "base/philox.h"
#include "base/testing/temporary_folder.h"
#include "base/text.h"
#include "base/units.h"

namespace hawser {
namespace base_test {

TEST(Philox, AgreesWithThePublishedKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, NormalHasTheRightMoments) {
  const RandomStream stream(7, "weights");
  double sum = 0, squares = 0;
  constexpr int kCount = 20000;
  for (int i = 0; i < kCount; ++i) {
    const double x = stream.normal(i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.03);
  EXPECT_NEAR(squares / kCount, 1.0, 0.05);
  EXPECT_NE(stream.bits(3), RandomStream(8, "weights").bits(3));
  EXPECT_NE(stream.bits(3), RandomStream(7, "bias").bits(3));
  EXPECT_NE(stream.bits(3), stream.bits(3, 1));
}

class Paths : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* home = std::getenv("HOME")) home_ = home;
  }
  void TearDown() override { ::setenv("HOME", home_.c_str(), 1); }
  std::string home_;
};

TEST_F(Paths, ExpandsTilde) {
  ::setenv("HOME", "/home/user", 1);
  EXPECT_EQ(expand_home("~"), "/home/user");
  EXPECT_EQ(expand_home("~/"), "/home/user/");
  EXPECT_EQ(expand_home("~/x/~y"), "/home/user/x/~y");
  for (const char* path : {"", "x/~", "./~/x", "/~", "http://a/~b"}) EXPECT_EQ(expand_home(path), path);
  // Other users' folders, and the user's own without HOME, are in the password database.
  const std::string known = ::getpwuid(0)->pw_dir, name = ::getpwuid(0)->pw_name;
  EXPECT_EQ(expand_home("~" + name + "/x"), known + "/x");
  const std::string mine = ::getpwuid(::getuid()) == nullptr ? "" : ::getpwuid(::getuid())->pw_dir;
  for (const bool empty : {true, false}) {
    ::setenv("HOME", "", 1);
    if (!empty) ::unsetenv("HOME");
    if (!mine.empty()) {
      EXPECT_EQ(expand_home("~/x"), mine + "/x");
    }
  }
  EXPECT_EQ(expand_home("~no-such-user-here/x"), std::nullopt);
  try {
    with_home("~no-such-user-here/x");
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "no home folder (expected ~ or ~NAME of an existing user, got ~no-such-user-here); try "
                 "./~no-such-user-here/x for a file of that name");
  }
}

TEST_F(Paths, AbsolutePathsNeedNoWorkingDirectory) {
  namespace fs = std::filesystem;
  const fs::path before = fs::current_path();
  EXPECT_EQ(absolute_path("a/../b"), (before / "b").string());
  const TemporaryFolder gone;
  fs::current_path(gone.path());
  fs::remove(gone.path());
  EXPECT_EQ(absolute_path("/a/./b"), "/a/b");
  EXPECT_EQ(without_dots("../../a/../b"), "../../b");
  EXPECT_EQ(without_dots("a/.."), ".");
  EXPECT_EQ(without_dots("/../a"), "/a");
  // As the system follows it.
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path("far/inner"));
  std::filesystem::create_directory_symlink(folder.path("far/inner"), folder.path("link"));
  EXPECT_EQ(without_dots(folder.path("link/../b")), folder.path("far/b"));
  try {
    absolute_path("a");
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "a: the working directory does not exist any more");
  }
  fs::current_path(before);
}

TEST(Cat, PrintsWhatAStreamPrints) {
  const auto check = [](auto part) {
    std::ostringstream stream;
    stream << part;
    EXPECT_EQ(cat(part), stream.str());
    EXPECT_EQ(cat("<", part, ">"), "<" + stream.str() + ">");
  };
  for (const double real : {0.0, -0.0, 1.0, 0.1, 1e5, 1e6, 123456.0, 1234567.0, 0.0001, 0.00001, 2.5e-310,
                            -1.234567e-308, 1.7976931348623157e308, std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    check(real);
    check(static_cast<float>(real));
  }
  for (const std::int64_t integer : {std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}, std::int64_t{0},
                                     std::numeric_limits<std::int64_t>::max()}) {
    check(integer);
    check(static_cast<std::uint64_t>(integer));
    check(static_cast<std::int32_t>(integer));
    check(static_cast<std::uint16_t>(integer));
  }
  for (const bool flag : {false, true}) check(flag);
  for (const char character : {'a', '\0', '\xff'}) check(character);
  const std::string text("with a \0 inside", 15);
  check(text);
  check(std::string_view(text).substr(2));
  check(text.c_str());
  EXPECT_EQ(cat(Bytes(7), " ", Rank(-1), ""), "7 -1");
}

TEST(Text, LinesListsAndPlurals) {
  EXPECT_EQ(first_line("a\nb\n"), "a");
  EXPECT_EQ(first_line("a"), "a");
  EXPECT_EQ(joined(std::vector<std::string>{"a", "", "b"}, ", "), "a, , b");
  EXPECT_EQ(joined(std::vector<std::string>{}, ", "), "");
  EXPECT_EQ(plural(1, "document"), "1 document");
  EXPECT_EQ(plural(0, "document"), "0 documents");
}

TEST_F(Paths, FolderOfAFile) {
  EXPECT_EQ(folder_of("a"), ".");
  EXPECT_EQ(folder_of("b/a"), "b");
  EXPECT_EQ(folder_of("/a"), "/");
  EXPECT_EQ(folder_of("b/"), "b");
}

TEST(Problem, PrintsOneLineWithoutEmptyParts) {
  EXPECT_EQ((Problem{.file = "a.yaml", .what = "unknown key", .at = "modle", .hint = "model"}.line()),
            "a.yaml: unknown key at modle; try model");
  EXPECT_EQ((Problem{.what = "bad degree", .expected = "a divisor of 8", .got = "3"}.line()),
            "bad degree (expected a divisor of 8, got 3)");
  EXPECT_EQ((Problem{.what = "two\nlines"}.line()), "two lines");
}

TEST(Problems, GroupsByCauseAndCountsTheRest) {
  Problems problems;
  for (int i = 0; i < 8; ++i) problems.add({.what = "missing tensor", .at = cat("t", i)});
  problems.add({.what = "other"});
  EXPECT_EQ(problems.lines(),
            "missing tensor at t0\nmissing tensor at t1\nmissing tensor at t2\nmissing tensor at t3\n"
            "missing tensor at t4\nand 3 more: missing tensor\nother");
  // A hint helps with its line alone: lines with hints are all shown.
  Problems hints;
  for (int i = 0; i < 8; ++i) hints.add({.what = "unknown key", .at = cat("k", i), .hint = cat("K", i)});
  EXPECT_NE(hints.lines().find("unknown key at k7; try K7"), std::string::npos) << hints.lines();
  EXPECT_THROW(problems.throw_if_any(), UserError);
  EXPECT_NO_THROW(Problems{}.throw_if_any());
}

TEST(Units, ReadsAndPrintsBytes) {
  EXPECT_EQ(parse_bytes("24GB")->value(), 24'000'000'000);
  EXPECT_EQ(parse_bytes("1.5 GiB")->value(), 1610612736);
  EXPECT_EQ(parse_bytes("77")->value(), 77);
  EXPECT_FALSE(parse_bytes("GB"));
  EXPECT_FALSE(parse_bytes("1.2.3GB"));
  EXPECT_FALSE(parse_bytes("12 parsecs"));
  EXPECT_FALSE(parse_bytes("-5GB"));
  EXPECT_EQ(format_bytes(Bytes(1536)), "1.5 KiB");
  EXPECT_EQ(format_bytes(Bytes(std::int64_t{3} << 39)), "1.50 TiB");
  EXPECT_EQ(format_bytes(Bytes(std::int64_t{5} << 49)), "2.50 PiB");
  EXPECT_EQ(format_bytes(Bytes(-(std::int64_t{3} << 39))), "-1.50 TiB");
  EXPECT_EQ(parse_bytes("2.5 PiB")->value(), std::int64_t{5} << 49);
  for (const auto& [bytes, flag] :
       std::vector<std::pair<std::int64_t, std::string>>{{1, "1MiB"},
                                                         {300 << 20, "300MiB"},
                                                         {(300 << 20) + 1, "301MiB"},
                                                         {(std::int64_t{3} << 30) + 1, "3.01GiB"},
                                                         {1076611LL << 20, "1.03TiB"}}) {
    EXPECT_EQ(format_bytes_flag(Bytes(bytes)), flag);
    EXPECT_GE(parse_bytes(flag)->value(), bytes);
  }
}

TEST(Units, PrintsTimesCountsAndFlops) {
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_seconds(0.0008), "0.8 ms");
  EXPECT_EQ(format_seconds(85e-6), "85 us");
  EXPECT_EQ(format_seconds(0.42), "420 ms");
  EXPECT_EQ(format_seconds(0.9996), "1.00 s");
  EXPECT_EQ(format_seconds(-0.42), "-420 ms");
  EXPECT_EQ(format_seconds(5.164), "5.16 s");
  EXPECT_EQ(format_seconds(185), "3m 05s");
  EXPECT_EQ(format_seconds(99.5 * 3600), "99h 30m");
  EXPECT_EQ(format_seconds(1000.0 * 3600), "41d 16h");
  EXPECT_EQ(format_seconds(1489998601.0 * 3600), "170K years");
  EXPECT_EQ(format_seconds(1e300).find("inf"), std::string::npos);
  for (const auto& [seconds, text] : std::vector<std::pair<double, std::string>>{{0.0008, "0.8 ms"},
                                                                                 {0.42, "420 ms"},
                                                                                 {0.9996, "1 s"},
                                                                                 {1.574, "1.6 s"},
                                                                                 {18.9, "19 s"},
                                                                                 {380, "6.3 min"},
                                                                                 {357, "6 min"},
                                                                                 {1570, "26 min"},
                                                                                 {9000, "2.5 h"},
                                                                                 {40 * 3600, "40 h"},
                                                                                 {48 * 3600, "2 days"},
                                                                                 {6e6, "69 days"},
                                                                                 {1e8, "3.169 years"}}) {
    EXPECT_EQ(format_estimate(seconds), text);
  }
  EXPECT_EQ(format_count(134.5e6), "134M");
  EXPECT_EQ(format_count(198.42), "198.4");
  EXPECT_EQ(format_count(999900), "1M") << "not 1e+03K";
  EXPECT_EQ(format_count(5e15), "5000T");
  EXPECT_EQ(format_flops(1.218e18), "1.22 EFLOP");
  EXPECT_EQ(format_flops(427e9), "427 GFLOP");
  EXPECT_EQ(format_flops(0), "0 FLOP");
}

TEST(Check, ThrowsAnInternalErrorWithFileAndLine) {
  try {
    HAWSER_CHECK(1 == 2, "numbers ", 1, " and ", 2);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    EXPECT_NE(std::string(error.what()).find("numbers 1 and 2"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("base_test.cpp"), std::string::npos);
  }
}

TEST(ForEachIndex, CallsEachOnceAndRethrowsTheFirst) {
  std::vector<int> calls(100, 0);
  for_each_index(calls.size(), [&](std::size_t i) { ++calls[i]; });
  EXPECT_EQ(calls, std::vector<int>(100, 1));
  for_each_index(0, [](std::size_t) { FAIL(); });
  std::atomic<int> ended = 0;
  try {
    for_each_index(10, [&](std::size_t i) {
      ++ended;
      if (i % 3 == 2) throw std::runtime_error(std::to_string(i));
    });
    FAIL() << "no exception";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "2");
  }
  EXPECT_EQ(ended, 10);
}

}  // namespace base_test
}  // namespace hawser
