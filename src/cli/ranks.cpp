#include "cli/ranks.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "base/hub_name.h"
#include "cli/exit.h"
#include "launch/launcher_environment.h"
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

// The commit of a model in the Hugging Face cache of this host (model_name.h); "" for other models.
std::string commit_of(const Recipe& recipe) {
  const auto hub = hub_name_of(recipe.model.path.empty() ? recipe.model.config : recipe.model.path);
  return hub ? hub->revision : "";
}

// Rejects a model of which the ranks found different commits.
Verdict compared(const std::vector<std::string>& commits) {
  const auto other = std::ranges::find_if(commits, [&](const auto& commit) { return commit != commits.front(); });
  if (other == commits.end()) return {};
  const Problem problem{.what = "the hosts have different commits of the model in their Hugging Face caches",
                        .expected = commits.front(),
                        .got = *other,
                        .at = cat("rank ", other - commits.begin()),
                        .hint = cat("ORG/NAME@", commits.front())};
  return {static_cast<int>(ExitCode::bad_input), problem.line()};
}

// Lines of all ranks, each once, and the code, in the order of the first rank that has them.
Verdict joined_verdict(const std::vector<std::string>& texts) {
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

namespace {

// Of a run that a signal ended, only one side says so: this or the launcher, which may have been asked to stop at once.
int report_end(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (known == nullptr || known->code() != ExitCode::interrupted) return report_error(error);
  print_last_message([&] { report_error(error); });
  return static_cast<int>(ExitCode::interrupted);
}

}  // namespace

int run_on_ranks(int world, const Recipe& recipe, const RankedBody& body) {
  if (world == 1) {
    const Verdict verdict = checked(body, {});
    if (verdict.code != 0) throw Error(ExitCode{verdict.code}, verdict.lines);
    try {
      return body.run(nullptr);
    } catch (const Error& error) {
      if (error.code() != ExitCode::interrupted) throw;
      return report_end(error);
    }
  }
  comm::World ranks(recipe.run.collective_timeout_s, note_failed);
  note_started();
  try {
    if (ranks.size() != world) {
      throw UserError(Problem{.what = "MPI has another number of ranks than the launcher's variables say",
                              .expected = cat(world),
                              .got = cat(ranks.size()),
                              .hint = "Open MPI's mpirun, or unset OMPI_COMM_WORLD_SIZE"});
    }
    const RankPlace place{ranks.rank().value(), ranks.size()};
    Verdict verdict = joined_verdict(ranks.all_gather_strings(checked(body, place).text()));
    if (verdict.code == 0) verdict = compared(ranks.all_gather_strings(commit_of(recipe)));
    if (verdict.code == 0) {
      const int code = body.run(&ranks);
      note_ended();
      return code;
    }
    if (place.rank == 0) report_error(Error(ExitCode{verdict.code}, verdict.lines));
    keep_quiet_when_stopped();  // mpirun ends the ranks that are left when the first one ends with a code
    return verdict.code;        // the World's destructor waits until rank 0 has printed
  } catch (const std::exception& error) {
    ranks.abort(report_end(error));
  }
}

engine::RankDevice device_of(const Recipe& recipe, int world) {
  const LaunchedAs place = launched_as();
  if (place.rank == 0 && !launched_locally()) {  // the local launcher has printed it
    const std::string unused = engine::unused_gpus(recipe, cuda_info());
    if (!unused.empty()) print("warning: ", unused);
  }
  if (!under_launcher()) return engine::choose_device(recipe, 0, world);
  return engine::choose_device(recipe, place.local_rank, place.local_ranks);
}

int threads_of(const Recipe& recipe) {
  return recipe.run.threads > 0 ? recipe.run.threads : threads_per_rank(launched_as().local_ranks);
}

}  // namespace hawser::cli
