// Error types: problems for users, internal errors for programmers.
//
// A user's mistake is a Problem, printed as one line: file, what is wrong, expected and actual value, place, hint.
// Readers collect Problems and throw all of them as one UserError before anything is allocated:
//
//   Problems problems;
//   if (heads % kv_heads != 0)
//     problems.add({.file = path, .what = "heads do not divide", .expected = cat("a multiple of ", kv_heads),
//                   .got = cat(heads), .at = "num_attention_heads"});
//   problems.throw_if_any();
//
// A violated invariant inside Hawser is an InternalError, raised by HAWSER_CHECK. Libraries throw and never exit; `cli`
// turns an exception into an exit code.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/cat.h"

namespace hawser {

// Exit code of the process; docs/troubleshooting.md documents them.
enum class ExitCode : int {
  done = 0,
  internal = 1,
  bad_input = 2,
  rank_failed = 3,
  does_not_fit = 4,
  no_progress = 5,
  diverged = 6,
  interrupted = 130,
};

// One mistake of the user. Prints as `FILE: WHAT (expected X, got Y) at AT; try HINT`; empty parts are left out.
struct Problem {
  std::string file;
  std::string what;
  std::string expected;
  std::string got;
  std::string at;     // a key, a line or a byte: "parallel.tensor_parallel_degree", "line 12", "byte 80"
  std::string hint;   // what to type instead
  std::string cause;  // problems with the same cause are printed as a group; default: `what`

  std::string line() const;
};

// Base of all errors that end a command; holds the exit code. what() is one or more complete lines.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

class UserError : public Error {
 public:
  explicit UserError(const Problem& problem) : Error(ExitCode::bad_input, problem.line()) {}
  explicit UserError(const std::string& lines) : Error(ExitCode::bad_input, lines) {}
};

// Collects problems; prints at most five per cause, then `and N more`.
class Problems {
 public:
  static constexpr int kLinesPerCause = 5;  // without a hint; a hint is help for its line alone
  static constexpr int kHintsPerCause = 64;

  void add(Problem problem) { problems_.push_back(std::move(problem)); }
  void add(const Problems& others) {
    problems_.insert(problems_.end(), others.problems_.begin(), others.problems_.end());
  }
  void add_lines(const std::string& lines);  // adds each line as one problem: the text of a UserError
  bool empty() const { return problems_.empty(); }
  std::size_t size() const { return problems_.size(); }
  const std::vector<Problem>& all() const { return problems_; }
  std::string lines() const;  // in order of first appearance, grouped by cause, joined by '\n'
  void throw_if_any() const;  // throws UserError(lines())

 private:
  std::vector<Problem> problems_;
};

// A violated invariant: a bug in Hawser, exit code 1.
class InternalError : public Error {
 public:
  InternalError(const std::string& message, std::source_location where);
};

}  // namespace hawser

// HAWSER_CHECK(condition, parts...): concatenates the parts with cat() only if the condition is false.
#define HAWSER_CHECK(condition, ...)                                                              \
  do {                                                                                            \
    if (!(condition))                                                                             \
      throw ::hawser::InternalError(::hawser::cat("check failed: " #condition ": ", __VA_ARGS__), \
                                    std::source_location::current());                             \
  } while (false)
