// The file of a timeline that a command writes: for Perfetto, or with the suffix .svg as a picture. Internal to cli/.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "profile/timeline.h"

namespace hawser::cli {

// Problems of a file that cannot be written. `at`: the option; `model`: of --model, whose files it must not replace.
void check_timeline_file(const std::string& path, const std::string& at, const std::string& model, Problems& problems);

void write_timeline(const std::string& path, const std::vector<profile::RankTimeline>& ranks);

}  // namespace hawser::cli
