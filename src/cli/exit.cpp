#include "cli/exit.h"

#include <execinfo.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <system_error>

#include "base/error.h"

namespace hawser::cli {

std::string undelivered(int reason) {
  return "standard output: cannot be written" + (reason != 0 ? std::string(": ") + std::strerror(reason) : "");
}

void say(const std::string& prefix, const std::string& lines) {
  std::string out;  // one write, so that lines of several ranks do not mix
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) out += "hawser: " + prefix + line + "\n";
  std::fflush(stdout);
  std::fwrite(out.data(), 1, out.size(), stderr);
  std::fflush(stderr);
}

namespace {

constexpr char kOutOfMemory[] = "out of memory; try fewer ranks, a smaller model or a higher limit (ulimit -v)";

// oneDNN writes its code to where memory should be, also when it was refused. Where the system refuses this process
// little more, that is taken for the reason; any other fault is left to end the process as it does.
void on_fault(int signal) {
  constexpr std::size_t kLittle = std::size_t{32} << 20;
  if (mmap(nullptr, kLittle, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) {
    const char* const parts[] = {"hawser: ", kOutOfMemory, "\n"};
    for (const char* part : parts) {
      if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
    }
    _exit(static_cast<int>(ExitCode::does_not_fit));
  }
  std::signal(signal, SIG_DFL);  // it happens again at once
}

// "" where the error is not one of the system's refusals.
std::string refusal(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return kOutOfMemory;
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr) return "";
  // What threads get for want of memory, and of leave for more of them.
  if (system->code() == std::errc::resource_unavailable_try_again || system->code() == std::errc::not_enough_memory) {
    return std::string("the operating system refused a thread (") + system->what() +
           "); try fewer ranks or threads, or higher limits (ulimit -v, ulimit -u)";
  }
  return "";
}

}  // namespace

int report_error(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (const std::string refused = refusal(error); known == nullptr && !refused.empty()) {
    say("", refused);
    return static_cast<int>(ExitCode::does_not_fit);
  }
  say("", (known == nullptr ? "internal error: " : "") + std::string(error.what()));
  return static_cast<int>(known != nullptr ? known->code() : ExitCode::internal);
}

namespace {

// What commands print is checked here alone, at the end: the stream remembers a write that failed.
int deliver(int code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if (flushed && std::ferror(stdout) == 0) return code;
  say("", undelivered(flushed ? 0 : reason));
  return code == 0 ? static_cast<int>(ExitCode::internal) : code;
}

}  // namespace

void expect_to_run_out_of_memory() {
  // The C library loads its unwinder when it is first asked to unwind, and aborts when it cannot.
  void* frame = nullptr;
  backtrace(&frame, 1);
  struct sigaction before {};
  sigaction(SIGSEGV, nullptr, &before);
  if (before.sa_handler == SIG_DFL) std::signal(SIGSEGV, on_fault);  // a sanitizer has its own
  std::set_terminate([] {
    int code = static_cast<int>(ExitCode::internal);
    try {
      if (const auto error = std::current_exception()) std::rethrow_exception(error);
      say("", "internal error: terminated");
    } catch (const std::exception& error) {
      code = report_error(error);
    } catch (...) {
      say("", "internal error: of an unknown kind");
    }
    _exit(code);
  });
}

int guarded(const std::function<int()>& body) {
  int code = 0;
  try {
    code = body();
  } catch (const std::exception& error) {
    code = report_error(error);
  }
  return deliver(code);
}

}  // namespace hawser::cli
