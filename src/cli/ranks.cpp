#include "cli/ranks.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "cli/exit.h"
#include "launch/environment.h"

namespace hawser::cli {
namespace {

std::string checked(const RankedBody& body, const RankPlace& place) {
  Problems problems;
  try {
    body.check(place, problems);
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
  return problems.lines();
}

// Lines of all ranks, each once, in the order of the first rank that has them.
std::string joined(const std::vector<std::string>& texts) {
  std::set<std::string> seen;
  std::string out;
  for (const std::string& text : texts) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (seen.insert(line).second) out += (out.empty() ? "" : "\n") + line;
    }
  }
  return out;
}

}  // namespace

int run_on_ranks(int world, const Recipe& recipe, const RankedBody& body) {
  if (world == 1) {
    const std::string lines = checked(body, {});
    if (!lines.empty()) throw UserError(lines);
    return body.run(nullptr);
  }
  comm::World ranks(recipe.run.collective_timeout_s);
  try {
    const std::string lines = joined(ranks.all_gather_strings(checked(body, {ranks.rank().value(), ranks.size()})));
    if (lines.empty()) return body.run(&ranks);
    if (ranks.rank().value() == 0) report_error(UserError(lines));
    return static_cast<int>(ExitCode::bad_input);  // the World's end waits for rank 0's line
  } catch (const std::exception& error) {
    ranks.abort(report_error(error));
  }
}

int threads_of(const Recipe& recipe) {
  return recipe.run.threads > 0 ? recipe.run.threads : threads_per_rank(launched_as().local_ranks);
}

}  // namespace hawser::cli
