#include "base/error.h"

#include <map>
#include <sstream>

#include "base/printable.h"

namespace hawser {

std::string Problem::line() const {
  std::string out;
  if (!file.empty()) out += file + ": ";
  out += what;
  if (!expected.empty() && !got.empty()) {
    out += " (expected " + expected + ", got " + got + ")";
  } else if (!expected.empty()) {
    out += " (expected " + expected + ")";
  } else if (!got.empty()) {
    out += " (got " + got + ")";
  }
  if (!at.empty()) out += " at " + at;
  if (!hint.empty()) out += "; try " + hint;
  return printable(out);  // it may quote file names and contents
}

std::string Problems::lines() const {
  std::vector<std::string> causes;
  std::map<std::string, std::vector<const Problem*>> groups;
  for (const Problem& problem : problems_) {
    const std::string& cause = problem.cause.empty() ? problem.what : problem.cause;
    auto& group = groups[cause];
    if (group.empty()) causes.push_back(cause);
    group.push_back(&problem);
  }
  std::string out;
  for (const std::string& cause : causes) {
    const auto& group = groups[cause];
    int hints = 0, others = 0, left = 0;
    for (const Problem* problem : group) {
      const bool shown = problem->hint.empty() ? others++ < kLinesPerCause : hints++ < kHintsPerCause;
      if (!shown) ++left;
      if (shown) out += cat(out.empty() ? "" : "\n", problem->line());
    }
    if (left > 0) out += cat("\nand ", left, " more: ", cause);
  }
  return out;
}

void Problems::add_lines(const std::string& lines) {
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) add({.what = line});
}

void Problems::throw_if_any() const {
  if (!problems_.empty()) throw UserError(lines());
}

namespace {

std::string located(const std::string& message, std::source_location where) {
  std::string file = where.file_name();
  const auto src = file.rfind("/src/");
  if (src != std::string::npos) file = file.substr(src + 1);
  return cat("internal error: ", message, " [", file, ":", where.line(), "]");
}

}  // namespace

InternalError::InternalError(const std::string& message, std::source_location where)
    : Error(ExitCode::internal, located(message, where)) {}

}  // namespace hawser
