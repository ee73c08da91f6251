#include "cli/exit.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <sstream>
#include <string>

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

int report_error(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  std::string message = error.what();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) message = "out of memory";
  if (known == nullptr) message = "internal error: " + message;
  say("", message);
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
