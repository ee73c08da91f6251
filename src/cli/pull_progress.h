// `pull_and_show`: a pull (hub/pull.h) with its progress on standard error: one updated line on a terminal, elsewhere a
// line for each transferred file. Internal to cli/.
//
//   org/model: 1.20 GiB of 3.40 GiB, 3 of 7 files, 85.0 MiB/s, 26 s left
#pragma once

#include "hub/pull.h"

namespace hawser::cli {

hub::Pulled pull_and_show(hub::PullRequest request);

}  // namespace hawser::cli
