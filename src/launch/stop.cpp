#include "launch/stop.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/error.h"
#include "launch/environment.h"

namespace hawser {
namespace {

volatile std::sig_atomic_t g_requested = 0;

void on_signal(int signal) {
  if (signal != SIGUSR1 && g_requested != 0) _exit(static_cast<int>(ExitCode::interrupted));
  g_requested = 1;
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR1, &action, nullptr);
  if (std::getenv(kLauncherVariable) != nullptr) return;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() {
  return g_requested != 0;
}

}  // namespace hawser
