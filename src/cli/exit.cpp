#include "cli/exit.h"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
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

namespace hawser::cli {

std::string undelivered(int reason) {
  return "standard output: cannot be written" + (reason != 0 ? std::string(": ") + std::strerror(reason) : "");
}

namespace {

constexpr int kDoesNotFit = static_cast<int>(ExitCode::does_not_fit);
constexpr char kOutOfMemory[] = "out of memory; try fewer ranks, a smaller model or a higher limit (ulimit -v)";
constexpr char kRefusedThread[] = "cannot create a thread (";
constexpr char kTerminated[] = "internal error: terminated";
constexpr char kUnknownKind[] = "internal error: of an unknown kind";

// Bytes to standard error that take no memory, as the line about having none must not; few writes, so that lines of
// several ranks do not mix.
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
    for (std::size_t done = 0; done < size_;) {
      const ssize_t written = write(STDERR_FILENO, bytes_.data() + done, size_ - done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) break;  // nobody reads it
      done += static_cast<std::size_t>(written);
    }
    size_ = 0;
  }

  std::array<char, 4096> bytes_{};
  std::size_t size_ = 0;
};

// `hawser: PREFIX LINE` for each line of the pieces joined.
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

std::atomic<bool> failure_printed = false;  // what else a rejection breaks on the way out needs no line
std::atomic<bool> ending = false;         // some thread says the last line, from where nothing can be caught, and ends
thread_local bool ending_myself = false;  // it is this one

// Says what the error is, and returns its code; `again`: a refusal too where one was told before. Takes no memory.
int print_error(const std::exception& error, bool again) {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (known != nullptr) {
    if (known->code() == ExitCode::does_not_fit) failure_printed = true;
    put_lines("", {error.what()});
    return static_cast<int>(known->code());
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    if (!failure_printed.exchange(true) || again) put_lines("", {kOutOfMemory});
    return kDoesNotFit;
  }
  // What threads get for want of memory, and of leave for more of them.
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
  put_lines(prefix, {lines});
}

int report_error(const std::exception& error) {
  while (ending && !ending_myself) pause();
  std::fflush(stdout);
  return print_error(error, /*again=*/true);
}

namespace {

// What commands print is checked here alone, at the end: the stream remembers a write that failed.
int deliver(int code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if (flushed && std::ferror(stdout) == 0) return code;
  print("", undelivered(flushed ? 0 : reason));
  return code == 0 ? static_cast<int>(ExitCode::internal) : code;
}

std::atomic<bool> returning = false;  // the command is done, and main returns

// One thread alone goes on from here, once.
void end_alone() {
  if (ending_myself) _exit(kDoesNotFit);
  while (ending.exchange(true)) pause();
  ending_myself = true;
}

// The system rejects this process little more; true is then taken for the reason of what went wrong.
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

// Libraries that were refused memory write to where it should be (oneDNN its code), or abort.
void on_fault(int signal) {
  if (memory_is_short()) end_out_of_memory();
  std::signal(signal, SIG_DFL);  // it happens again at once
}

// Others call exit after a line of their own (OpenMP's does).
void on_library_exit(int code, void*) {
  if (code != 0 && !returning && memory_is_short()) end_out_of_memory();
}

// No more than what failed is known here, and nothing may need memory: an exception out of this function aborts.
[[noreturn]] void on_terminate() {
  end_alone();
  int code = static_cast<int>(ExitCode::internal);
  if (!std::current_exception()) {
    if (memory_is_short()) print_out_of_memory_and_exit();
    put_lines("", {kTerminated});
    _exit(code);
  }
  try {
    throw;  // what is thrown already takes no memory to throw again
  } catch (const std::exception& error) {
    code = print_error(error, /*again=*/false);
  } catch (...) {
    put_lines("", {kUnknownKind});
  }
  _exit(code);
}

}  // namespace

void expect_to_run_out_of_memory() {
  // The C library loads its unwinder when it is first asked to unwind, and aborts when it cannot.
  void* frame = nullptr;
  backtrace(&frame, 1);
  for (const int signal : {SIGSEGV, SIGABRT}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_DFL) std::signal(signal, on_fault);  // a sanitizer has its own
  }
  on_exit(on_library_exit, nullptr);
  std::set_terminate(on_terminate);
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
