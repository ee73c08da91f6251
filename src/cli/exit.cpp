#include "cli/exit.h"

#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "base/addresses.h"
#include "base/error.h"
#include "base/printable.h"
#include "io/mapped_file.h"
#include "launch/stop.h"

namespace hawser::cli {

std::string undelivered(int reason) {
  return "standard output: cannot be written" + (reason != 0 ? std::string(": ") + std::strerror(reason) : "");
}

namespace {

constexpr int kDoesNotFit = static_cast<int>(ExitCode::does_not_fit);
constexpr char kOutOfMemory[] = "out of memory; try fewer ranks, a smaller model or a higher limit (ulimit -v)";
constexpr char kRefusedThread[] = "cannot create a thread (";
constexpr char kTerminated[] = "internal error: terminated";
constexpr char kUnknownKind[] = "internal error: unknown exception";

// Waits until standard error can be written. False if a stop was requested and nothing has read it for three seconds
// since, now or in an earlier call: what remains to be printed must not keep the process.
bool reader_awaited() {
  using Clock = std::chrono::steady_clock;
  constexpr int kLook = 50;  // ms
  constexpr std::chrono::seconds kReader{3};
  static std::atomic<bool> given_up = false;
  Clock::time_point end = Clock::time_point::max();
  pollfd file{STDERR_FILENO, POLLOUT, 0};
  while (!given_up) {
    const int ready = poll(&file, 1, kLook);
    if (ready > 0 || (ready < 0 && errno != EINTR)) break;
    const Clock::time_point now = Clock::now();
    if (end == Clock::time_point::max() && stop_requested()) end = now + kReader;
    if (now >= end) given_up = true;
  }
  return !given_up;
}

// Writes to standard error without allocating, for the out-of-memory line. Few writes, so that lines of several ranks
// do not mix.
class ErrorWriter {
 public:
  ErrorWriter() = default;
  ~ErrorWriter() { flush(); }
  ErrorWriter(const ErrorWriter&) = delete;
  ErrorWriter& operator=(const ErrorWriter&) = delete;

  void put(std::string_view text) {
    for (const char c : text) {
      if (size_ == bytes_.size()) flush();
      bytes_[size_++] = c;
    }
  }

 private:
  void flush() {
    for (std::size_t done = 0; done < size_ && reader_awaited();) {
      const ssize_t written = write(STDERR_FILENO, bytes_.data() + done, size_ - done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) break;  // the reader is gone
      done += static_cast<std::size_t>(written);
    }
    size_ = 0;
  }

  // At most PIPE_BUF: a pipe that is ready takes as many without waiting.
  std::array<char, 4096> bytes_{};
  std::size_t size_ = 0;
};

// `hawser: PREFIX LINE` for each line of the concatenated pieces.
void put_lines(std::string_view prefix, std::initializer_list<std::string_view> pieces) {
  ErrorWriter out;
  bool line_begins = true;
  for (const std::string_view piece : pieces) {
    for (std::size_t i = 0; i < piece.size(); ++i) {
      if (line_begins) {
        out.put("hawser: ");
        out.put(prefix);
      }
      line_begins = piece[i] == '\n';
      out.put(piece.substr(i, 1));
    }
  }
  if (!line_begins) out.put("\n");
}

std::atomic<bool> failure_printed = false;  // failures that follow from the first are not printed
std::atomic<bool> ending = false;         // a thread prints the last line, from where nothing can be caught, and exits
thread_local bool ending_myself = false;  // it is this thread

// Prints the error and returns its code; `again`: prints out of memory even if it was printed before. Does not
// allocate.
int print_error(const std::exception& error, bool again) {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (known != nullptr) {
    if (known->code() == ExitCode::does_not_fit) failure_printed = true;
    try {
      put_lines("", {printable(error.what(), Newlines::keep)});
    } catch (const std::bad_alloc&) {
      put_lines("", {error.what()});
    }
    return static_cast<int>(known->code());
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    if (!failure_printed.exchange(true) || again) put_lines("", {kOutOfMemory});
    return kDoesNotFit;
  }
  // Thread creation fails with these when memory or the thread limit is exhausted.
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr &&
      (system->code() == std::errc::resource_unavailable_try_again || system->code() == std::errc::not_enough_memory)) {
    if (!failure_printed.exchange(true) || again) {
      put_lines("", {kRefusedThread, system->what(),
                     "); try fewer ranks or threads, or higher limits (ulimit -v, ulimit -u)"});
    }
    return kDoesNotFit;
  }
  put_lines("", {"internal error: ", error.what()});
  return static_cast<int>(ExitCode::internal);
}

}  // namespace

void print(const std::string& prefix, const std::string& lines) {
  std::fflush(stdout);
  put_lines(prefix, {printable(lines, Newlines::keep)});
}

void print_plain(const std::string& line) {
  std::fflush(stdout);
  ErrorWriter().put(printable(line) + "\n");
}

int report_error(const std::exception& error) {
  while (ending && !ending_myself) pause();
  std::fflush(stdout);
  return print_error(error, /*again=*/true);
}

namespace {

// Output errors are checked only here, at the end: the stream remembers a failed write.
int deliver(int code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if (flushed && std::ferror(stdout) == 0) return code;
  print("", undelivered(flushed ? 0 : reason));
  return code == 0 ? static_cast<int>(ExitCode::internal) : code;
}

std::atomic<bool> returning = false;  // the command is done, and main returns

// Lets a single thread continue, once.
void end_alone() {
  if (ending_myself) _exit(kDoesNotFit);
  while (ending.exchange(true)) pause();
  ending_myself = true;
}

// Whether little address space is left; then it is taken as the cause of the failure.
bool memory_is_short() {
  return !addresses_left(std::int64_t{32} << 20);
}

[[noreturn]] void print_out_of_memory_and_exit() {
  if (!failure_printed.exchange(true)) put_lines("", {kOutOfMemory});
  _exit(kDoesNotFit);
}

[[noreturn]] void end_out_of_memory() {
  end_alone();
  print_out_of_memory_and_exit();
}

// When an allocation fails, some libraries write through the null pointer (oneDNN's code buffer), or abort.
void on_fault(int signal) {
  if (memory_is_short()) end_out_of_memory();
  std::signal(signal, SIG_DFL);  // the signal is raised again at once
}

// Others call exit after a line of their own (OpenMP).
void on_library_exit(int code, void*) {
  if (code != 0 && !returning && memory_is_short()) end_out_of_memory();
}

// Only the exception is known here, and nothing may allocate: an exception out of this function aborts.
[[noreturn]] void on_terminate() {
  end_alone();
  int code = static_cast<int>(ExitCode::internal);
  if (!std::current_exception()) {
    if (memory_is_short()) print_out_of_memory_and_exit();
    put_lines("", {kTerminated});
    _exit(code);
  }
  try {
    throw;  // rethrowing does not allocate
  } catch (const std::exception& error) {
    code = print_error(error, /*again=*/false);
  } catch (...) {
    put_lines("", {kUnknownKind});
  }
  _exit(code);
}

}  // namespace

void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    if (open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream) _exit(1);  // takes the lowest
  }
}

void expect_to_run_out_of_memory() {
  // The C library loads its unwinder on first use, and aborts if it cannot.
  void* frame = nullptr;
  backtrace(&frame, 1);
  for (const int signal : {SIGSEGV, SIGABRT}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_DFL) std::signal(signal, on_fault);  // a sanitizer has its own handler
  }
  on_exit(on_library_exit, nullptr);
  std::set_terminate(on_terminate);
}

namespace {

struct sigaction g_before_bus_error {};

void on_bus_error(int signal, siginfo_t* info, void*) {
  const char* const path = info->si_code == BUS_ADRERR ? io::mapped_path(info->si_addr) : nullptr;
  if (path == nullptr) {
    sigaction(signal, &g_before_bus_error, nullptr);
    raise(signal);  // delivered when this function returns
    return;
  }
  constexpr int kCode = static_cast<int>(ExitCode::bad_input);
  end_alone();
  put_lines("", {path, ": the file was cut short while it was read; try again with the complete file"});
  note_failed(kCode);
  _exit(kCode);
}

}  // namespace

void expect_files_cut_short() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, &g_before_bus_error);
}

int guarded(const std::function<int()>& body) {
  int code = 0;
  try {
    code = body();
  } catch (const std::exception& error) {
    code = report_error(error);
  }
  code = deliver(code);
  returning = true;
  return code;
}

}  // namespace hawser::cli
