// "Save and stop": what Ctrl-C asks of a run.
//
//   catch_stop_signals();
//   while (!stop_requested()) train_one_step();
//
// In a rank started by our launcher SIGUSR1 is the request (local.h turns the first Ctrl-C into it) and SIGTERM ends
// the rank. Anywhere else SIGINT, SIGTERM and SIGUSR1 all ask, and a second SIGINT or SIGTERM ends the process at once
// with ExitCode::interrupted.
#pragma once

namespace hawser {

void catch_stop_signals();
bool stop_requested();

}  // namespace hawser
