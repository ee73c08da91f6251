// `check_output`: rejects a path for what a command writes if its files would be lost there, or would replace what the
// command reads.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace hawser::engine {

// What a command reads: a file, or the folder of a model. A path that does not exist is none.
struct Input {
  std::string option;  // that names it: "--model"
  std::string path;
};

// Adds a problem if `output`, a file or a folder that need not exist, is a checkpoint of a run or in one, with links
// resolved: a checkpoint is removed or replaced with all files in it. Another if it is one of the inputs, or a file of
// a model's folder. `at`: the option or key that names the output.
void check_output(const std::string& output, const std::string& at, const std::vector<Input>& inputs,
                  Problems& problems);

}  // namespace hawser::engine
