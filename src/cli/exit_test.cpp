// The last line of a process without any free memory.
#include "cli/exit.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/testing/address_limit.h"
#include "base/testing/temporary_folder.h"
#include "io/mapped_file.h"
#include "launch/stop.h"

namespace hawser::cli {
namespace exit_test {

constexpr const char* kLine =
    "^hawser: out of memory; try fewer ranks, a smaller model or a higher limit \\(ulimit -v\\)\n$";
constexpr int kDoesNotFit = static_cast<int>(ExitCode::does_not_fit);

// Exhausts the memory: takes all of the C library's, and lets the system give no more.
void take_all_memory() {
  new AddressLimit(0);  // to the end of the process
  for (std::size_t size = std::size_t{1} << 24; size >= 16; size /= 2) {
    while (void* volatile taken = std::malloc(size)) static_cast<void>(taken);
  }
}

class WithoutMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!AddressLimit::kPossible) GTEST_SKIP() << "needs a build without AddressSanitizer";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};
using WithoutMemoryDeathTest = WithoutMemory;

void expect_the_line(const std::function<void()>& work) {
  EXPECT_EXIT(
      {
        expect_to_run_out_of_memory();
        work();
      },
      ::testing::ExitedWithCode(kDoesNotFit), kLine);
}

// A copy of a container, say, made by a destructor.
struct Copied {
  ~Copied() { ::operator delete(::operator new (std::size_t{1} << 20)); }
};

TEST_F(WithoutMemoryDeathTest, AnErrorThatIsCaughtEndsInTheLine) {
  expect_the_line([] {
    std::_Exit(guarded([]() -> int {
      take_all_memory();
      throw std::bad_alloc();
    }));
  });
}

TEST_F(WithoutMemoryDeathTest, ADestructorThatNeedsMemoryEndsInTheLine) {
  expect_the_line([] {
    const Copied copied;
    take_all_memory();
  });
}

TEST_F(WithoutMemoryDeathTest, AThreadsOwnFunctionEndsInTheLine) {
  expect_the_line([] {
    std::thread([] {
      take_all_memory();
      throw std::bad_alloc();
    }).join();
  });
}

TEST_F(WithoutMemoryDeathTest, SeveralThreadsEndInOneLine) {
  expect_the_line([] {
    std::vector<std::thread> threads;
    std::atomic<bool> taken = false;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        taken.wait(false);
        throw std::bad_alloc();
      });
    }
    take_all_memory();
    taken = true;
    taken.notify_all();
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_F(WithoutMemoryDeathTest, LibrariesThatGiveUpEndInTheLine) {
  expect_the_line([] {
    take_all_memory();
    std::abort();
  });
  expect_the_line([] {
    take_all_memory();
    std::exit(1);
  });
}

TEST(ReportError, ReportsEveryLineAndTheCode) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(report_error(Error(ExitCode::bad_input, "one\ntwo\n\nfour")), 2);
  EXPECT_EQ(report_error(std::runtime_error(std::string(10000, 'x') + "\nnext")), 1);
  print("rank 1: ", "a\nb\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "hawser: one\nhawser: two\nhawser: \nhawser: four\nhawser: internal error: " + std::string(10000, 'x') +
                "\nhawser: next\nhawser: rank 1: a\nhawser: rank 1: b\n");
}

TEST(ReportError, WithMemoryAbortsAndExitsStayWhatTheyAre) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        expect_to_run_out_of_memory();
        std::abort();
      },
      ::testing::KilledBySignal(SIGABRT), "^$");
  EXPECT_EXIT(
      {
        expect_to_run_out_of_memory();
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "^$");
}

// A log collector that stands still: an error must not outlast the first signal.
TEST(PrintedErrors, AStopEndsTheWaitForAReader) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_NONBLOCK), 0);
  while (write(ends[1], "x", 1) == 1) continue;
  fcntl(ends[1], F_SETFL, 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    catch_stop_signals();
    _exit(guarded([]() -> int { throw UserError("nothing reads this"); }));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, WNOHANG), 0) << "it waits for the reader";
  kill(child, SIGTERM);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "still running after one SIGTERM";
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::bad_input));
  for (const int end_of_pipe : ends) close(end_of_pipe);
}

// Reads a byte of a page that the file no longer has.
int read_beyond_the_end(const std::string& path, const std::byte* at) {
  EXPECT_EQ(truncate(path.c_str(), 0), 0);
  return static_cast<int>(*static_cast<const volatile std::byte*>(at));
}

TEST(FilesCutShortDeathTest, EndWithALine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TemporaryFolder folder;
  folder.write("ids.bin", "abcd");
  const std::string path = folder.path("ids.bin");
  EXPECT_EXIT(
      {
        expect_files_cut_short();
        const io::MappedFile file(path);
        std::thread([&] { read_beyond_the_end(path, file.bytes().data()); }).join();
      },
      ::testing::ExitedWithCode(static_cast<int>(ExitCode::bad_input)),
      "^hawser: .*ids.bin: the file was cut short while it was read; try again with the complete file\n$");
}

TEST(FilesCutShortDeathTest, OtherBusErrorsKillAsBefore) {
  if (!AddressLimit::kPossible) GTEST_SKIP() << "AddressSanitizer has a handler of its own";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TemporaryFolder folder;
  folder.write("other", "abcd");
  const std::string path = folder.path("other");
  EXPECT_EXIT(
      {
        expect_files_cut_short();
        const int descriptor = open(path.c_str(), O_RDONLY);
        const void* const mapped = mmap(nullptr, 4, PROT_READ, MAP_SHARED, descriptor, 0);
        read_beyond_the_end(path, static_cast<const std::byte*>(mapped));
      },
      ::testing::KilledBySignal(SIGBUS), "^$");
  EXPECT_EXIT(
      {
        expect_files_cut_short();
        kill(getpid(), SIGBUS);
        pause();
      },
      ::testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace exit_test
}  // namespace hawser::cli
