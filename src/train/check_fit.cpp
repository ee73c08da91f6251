#include "checkpoint/storage/posix.h"
#include "config/config.h"
#include "data/prepare.h"
#include "data/token_file.h"
#include "plan/forecast.h"
#include "train/fit.h"
#include "train/open_model.h"
#include "train/run_folder.h"

namespace hawser::train {
namespace {

// Checks the token files of an earlier `prepare`, the only data of a recipe without data.train.
void check_prepared(const Recipe& recipe, Problems& problems) {
  try {
    const data::TokenFile file(data::token_files(data::prepare_options(recipe)).train);
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
}

}  // namespace

void check_fit(const Recipe& recipe, const FitPlace& place, Problems& problems) {
  const OpenModel open = open_model(recipe.model, recipe.folder, problems);
  if (open.model) check_blocks(recipe, static_cast<std::int64_t>(open.model->description().blocks.size()), problems);
  if (place.first && recipe.data.train.empty()) {
    check_prepared(recipe, problems);
  } else if (place.first) {
    data::PrepareOptions options = data::prepare_options(recipe);
    if (open.model) options.vocab_size = open.model->vocabulary();
    data::check_sources(options, problems);
  }
  const std::string output = output_folder(recipe);
  checkpoint::check_may_write(output, problems);
  if (!problems.empty()) return;
  plan::Machine machine = plan::this_machine();
  machine.ranks = place.ranks_here;
  plan::check_capacity(recipe, *open.model, place.world, place.threads, machine, plan::target_of(place.device));
  // Create the folder only if the run may start.
  if (place.first) checkpoint::check_writable(output, problems);
}

}  // namespace hawser::train
