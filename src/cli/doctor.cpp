// hawser doctor: checks that this machine is ready for runs, and advises what to change.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/doctor/findings.h"
#include "cli/doing.h"
#include "cli/line.h"

namespace hawser::cli {
namespace {

using checks::Findings;
using checks::State;

struct Check {
  std::string doing;  // shown while the check runs
  std::function<void(Findings&)> run;
};

}  // namespace

int doctor(const DoctorOptions& options) {
  if (options.as_rank) return checks::measure_as_rank();
  const bool cuda = options.common.device == DeviceChoice::cuda;
  const bool gpus = options.common.device != DeviceChoice::cpu;
  std::vector<Check> checks = {
      {"build and processor", checks::check_build},
      {"memory", checks::check_memory},
      {"limits", checks::check_limits},
      {"clock", checks::check_clock},
      {"network", checks::check_network},
      {"Hugging Face Hub", checks::check_hub},
      {"writing to " + options.output, [&](Findings& out) { checks::check_disk(options.output, out); }},
  };
  if (gpus) checks.push_back({"GPUs", [&](Findings& out) { checks::check_gpus(cuda, out); }});
  checks.push_back({"starting ranks", [&](Findings& out) { checks::check_ranks(options, out); }});

  Findings findings;
  std::size_t shown = 0;
  for (const Check& check : checks) {
    {
      const Doing doing(check.doing);
      check.run(findings);
    }
    for (; !options.common.json && shown < findings.all().size(); ++shown) {
      std::fputs(checks::text_of(findings.all()[shown]).c_str(), stdout);
    }
    std::fflush(stdout);
  }
  const int problems = findings.count(State::problem), warnings = findings.count(State::warning);
  if (options.common.json) {
    nlohmann::ordered_json out{{"problems", problems}, {"warnings", warnings}};
    for (const auto& finding : findings.all()) out["findings"].push_back(checks::json_of(finding));
    std::puts(out.dump().c_str());
  } else {
    std::printf("%s, %s\n", plural(problems, "problem").c_str(), plural(warnings, "warning").c_str());
  }
  return problems == 0 ? 0 : 1;
}

void add_doctor(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = add_command(
      app,
      {.name = "doctor",
       .what = "check that this machine is ready for runs\n"
               "Checks the build, the processor, memory, limits, the clock, the network, the settings of the Hub, the "
               "disk, GPUs and MPI, for "
               "which it starts two ranks (or --ranks N); takes a few seconds. Prints a line for each check: ok, "
               "warning or problem, the value, its meaning, and below it what to do. Exits with 1 if there is a "
               "problem, else with 0. "
               "--device cpu skips GPUs; with --device cuda having none is a problem.",
       .examples = {"hawser doctor --output runs", "hawser doctor --output /scratch/runs --ranks 4 --json"}},
      options->common);
  add_text(*command, "--output", "DIR", options->output,
           "output folder of runs; measures its disk with an unnamed file; default: the working directory");
  add_hidden_switch(*command, "--as-rank", options->as_rank);
  on_chosen(*command, [options, &commands, &chosen] {
    options->common.problems.throw_if_any();
    chosen = [options, &commands] { return commands.doctor(*options); };
  });
}

}  // namespace hawser::cli
