#include "cli/ranks.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "cli/exit.h"
#include "launch/environment.h"
#include "launch/stop.h"

namespace hawser::cli {
namespace {

// Result of a rank's check: exit code and lines. As the text of a message: "CODE\nLINES".
struct Verdict {
  int code = static_cast<int>(ExitCode::done);
  std::string lines;

  std::string text() const { return cat(code, "\n", lines); }
};

Verdict checked(const RankedBody& body, const RankPlace& place) {
  Problems problems;
  ExitCode code = ExitCode::bad_input;
  try {
    body.check(place, problems);
  } catch (const Error& error) {
    problems.add_lines(error.what());
    code = error.code();
  }
  if (problems.empty()) return {};
  return {static_cast<int>(code), problems.lines()};
}

// Lines of all ranks, each once, and the code, in the order of the first rank that has them.
Verdict joined(const std::vector<std::string>& texts) {
  std::set<std::string> seen;
  Verdict out;
  for (const std::string& text : texts) {
    std::istringstream lines(text);
    std::string line;
    std::getline(lines, line);
    if (out.code == 0) out.code = std::stoi(line);
    while (std::getline(lines, line)) {
      if (seen.insert(line).second) out.lines += (out.lines.empty() ? "" : "\n") + line;
    }
  }
  return out;
}

}  // namespace

int run_on_ranks(int world, const Recipe& recipe, const RankedBody& body) {
  if (world == 1) {
    const Verdict verdict = checked(body, {});
    if (verdict.code != 0) throw Error(ExitCode{verdict.code}, verdict.lines);
    return body.run(nullptr);
  }
  comm::World ranks(recipe.run.collective_timeout_s);
  note_started();
  try {
    const RankPlace place{ranks.rank().value(), ranks.size()};
    const Verdict verdict = joined(ranks.all_gather_strings(checked(body, place).text()));
    if (verdict.code == 0) return body.run(&ranks);
    if (place.rank == 0) report_error(Error(ExitCode{verdict.code}, verdict.lines));
    return verdict.code;  // the World's destructor waits until rank 0 has printed
  } catch (const std::exception& error) {
    ranks.abort(report_error(error));
  }
}

train::RankDevice device_of(const Recipe& recipe, int world) {
  const LaunchedAs place = launched_as();
  if (place.rank == 0 && !launched_locally()) {  // the local launcher has printed it
    const std::string unused = train::unused_gpus(recipe, cuda_info());
    if (!unused.empty()) print("warning: ", unused);
  }
  if (!under_launcher()) return train::choose_device(recipe, 0, world);
  return train::choose_device(recipe, place.local_rank, place.local_ranks);
}

int threads_of(const Recipe& recipe) {
  return recipe.run.threads > 0 ? recipe.run.threads : threads_per_rank(launched_as().local_ranks);
}

}  // namespace hawser::cli
