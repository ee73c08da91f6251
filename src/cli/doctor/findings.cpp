#include "cli/doctor/findings.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/printable.h"

namespace hawser::cli::checks {

const char* to_string(State state) {
  switch (state) {
    case State::ok:
      return "ok";
    case State::warning:
      return "warning";
    case State::problem:
      return "problem";
  }
  return "?";
}

int Findings::count(State state) const {
  return static_cast<int>(std::ranges::count(all_, state, &Finding::state));
}

std::string text_of(const Finding& finding) {
  std::string line = to_string(finding.state);
  line.resize(9, ' ');
  line += finding.check;
  line.resize(std::max<std::size_t>(line.size() + 2, 25), ' ');
  line += finding.value + (finding.meaning.empty() ? "" : ": " + finding.meaning) + "\n";
  if (!finding.advice.empty()) line += std::string(25, ' ') + "do: " + finding.advice + "\n";
  return printable(line, Newlines::keep);
}

nlohmann::ordered_json json_of(const Finding& finding) {
  return {{"check", finding.check},
          {"state", to_string(finding.state)},
          {"value", finding.value},
          {"meaning", finding.meaning},
          {"advice", finding.advice}};
}

}  // namespace hawser::cli::checks
