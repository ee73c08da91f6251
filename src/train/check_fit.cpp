#include "config/config.h"
#include "engine/open_model.h"
#include "io/files.h"
#include "plan/forecast.h"
#include "prepare/prepare.h"
#include "prepare/token_file.h"
#include "train/fit.h"
#include "train/run_folder.h"

namespace hawser::train {
namespace {

// Checks the token files of an earlier `prepare`, the only data of a recipe without data.train.
void check_prepared(const Recipe& recipe, Problems& problems) {
  try {
    const prepare::TokenFile file(prepare::token_files(prepare::prepare_options(recipe)).train);
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
}

}  // namespace

void check_fit(const Recipe& recipe, const FitPlace& place, Problems& problems) {
  const engine::OpenModel open = engine::open_model(recipe.model, recipe.folder, problems);
  if (open.model) check_blocks(recipe, static_cast<std::int64_t>(open.model->description().blocks.size()), problems);
  if (place.first && recipe.data.train.empty()) {
    check_prepared(recipe, problems);
  } else if (place.first) {
    prepare::PrepareOptions options = prepare::prepare_options(recipe);
    if (open.model) options.vocab_size = open.model->vocabulary();
    prepare::check_sources(options, problems);
  }
  const std::string output = output_folder(recipe);
  io::check_may_write(output, problems);
  if (!problems.empty()) return;
  plan::Machine machine = plan::this_machine();
  machine.ranks = place.ranks_here;
  plan::check_capacity(recipe, *open.model, place.world, place.threads, machine, plan::target_of(place.device));
  // Create the folder only if the run may start.
  if (place.first) io::check_writable(output, problems);
}

}  // namespace hawser::train
