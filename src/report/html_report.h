// The report of a run as one HTML page: nothing is fetched, all that came from a user is escaped. Light or dark as the
// reader's system is; it prints.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report/run_facts.h"
#include "report/sink.h"

namespace hawser::report {

struct HtmlInput {
  const RunFacts& facts;
  std::string metrics_file;  // read here: also the steps before a resume are in it
  Ending ending = Ending::done;
  bool rules = true;                                   // they were asked
  std::vector<std::pair<std::string, double>> phases;  // seconds of this process by kind, as PhaseClock has them
  std::string when;                                    // of the end, for people
};

std::string html_report(const HtmlInput& input);

}  // namespace hawser::report
