#include "cli/exit.h"

#include <cstdio>
#include <new>
#include <sstream>
#include <string>

#include "base/error.h"

namespace hawser::cli {

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

int guarded(const std::function<int()>& body) {
  try {
    const int code = body();
    std::fflush(stdout);
    return code;
  } catch (const std::exception& error) {
    return report_error(error);
  }
}

}  // namespace hawser::cli
