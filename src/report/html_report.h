// The report of a run as one HTML page. The page loads nothing, escapes all user input, follows the system's light or
// dark mode, and can be printed.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/rules.h"
#include "report/run_facts.h"
#include "report/run_history.h"
#include "report/sink.h"

namespace hawser::report {

// In the first kilobyte of the page of a run that is not finished, and in no other.
inline constexpr const char* kReloadTag = "<meta http-equiv=\"refresh\"";

struct HtmlInput {
  const RunFacts& facts;
  const RunHistory& history;                           // includes the steps before a resume
  std::optional<Ending> ending;                        // none: the run is not finished, and the page reloads itself
  std::optional<RulesOptions> rules;                   // nullopt: they are off
  std::vector<std::pair<std::string, double>> phases;  // seconds of this process by kind, as in PhaseClock
  double time = 0;                                     // of the page, Unix time in seconds
};

std::string html_report(const HtmlInput& input);

}  // namespace hawser::report
