// The report of a run as one HTML page. The page loads nothing, escapes all user input, follows the system's light or
// dark mode, and can be printed.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report/run_facts.h"
#include "report/sink.h"

namespace hawser::report {

struct HtmlInput {
  const RunFacts& facts;
  std::string metrics_file;  // read here; includes the steps before a resume
  Ending ending = Ending::done;
  bool rules = true;                                   // rules were enabled
  std::vector<std::pair<std::string, double>> phases;  // seconds of this process by kind, as in PhaseClock
  std::string when;                                    // end time, as text
};

std::string html_report(const HtmlInput& input);

}  // namespace hawser::report
