#include "cli/doctor/findings.h"

#include <algorithm>
#include <array>
#include <cstdio>
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

std::string output_of(const std::string& command, int seconds) {
  FILE* pipe = popen(cat("timeout -k 1 ", seconds, " ", command, " 2>/dev/null </dev/null").c_str(), "r");
  if (pipe == nullptr) return "";
  std::string out;
  std::array<char, 4096> bytes{};
  for (std::size_t size = 0; (size = fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) out.append(bytes.data(), size);
  return pclose(pipe) == 0 ? out : "";
}

}  // namespace hawser::cli::checks
