// --best of export, generate and eval: the checkpoint of a run with the lowest validation loss, in place of its last
// one.
//
//   Problems problems;
//   const std::string path = chosen_checkpoint("runs/novels", options.best, problems);    // runs/novels/best
//   const std::string note = better_than_last("runs/novels", options.best);
//   // "the checkpoint of step 30 was better than the last one: validation loss 2.1034, and 2.4871 at step 60; try --best"
//
// Internal to cli/.
#pragma once

#include <string>

#include "base/error.h"

namespace hawser::cli {

// `path` itself, or with `best` the folder `best` in it; a problem if it has none.
std::string chosen_checkpoint(const std::string& path, bool best, Problems& problems);

// "" if `best` asks for it, if `path` is no run's folder, or if nothing says that an earlier checkpoint was better.
std::string better_than_last(const std::string& path, bool best);

}  // namespace hawser::cli
