#include "launch/process_session.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "base/cat.h"

namespace hawser {
namespace {

// 0 if the process is gone.
pid_t session_of(pid_t pid) {
  std::ifstream in(cat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(in, text, '\0');
  const auto end = text.rfind(") ");  // the process name before it may contain anything
  if (end == std::string::npos) return 0;
  std::istringstream fields(text.substr(end + 2));
  char state = 0;
  pid_t parent = 0, group = 0, session = 0;
  fields >> state >> parent >> group >> session;
  return session;
}

// Includes zombies: a process whose threads are still exiting is one.
std::vector<pid_t> members(pid_t session) {
  std::vector<pid_t> found;
  DIR* folder = opendir("/proc");
  if (folder == nullptr) return found;
  while (const dirent* entry = readdir(folder)) {
    char* end = nullptr;
    const long pid = std::strtol(entry->d_name, &end, 10);
    if (pid > 1 && *end == '\0' && session_of(static_cast<pid_t>(pid)) == session) {
      found.push_back(static_cast<pid_t>(pid));
    }
  }
  closedir(folder);
  return found;
}

}  // namespace

Adoption::Adoption() {
  prctl(PR_GET_CHILD_SUBREAPER, &before_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Adoption::~Adoption() {
  prctl(PR_SET_CHILD_SUBREAPER, before_);
}

std::vector<pid_t> end_session(pid_t session, std::chrono::milliseconds patience, int* leader_status) {
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;;) {
    std::vector<pid_t> left;
    for (const pid_t pid : members(session)) {
      kill(pid, SIGKILL);
      int status = 0;
      const bool ended = waitpid(pid, &status, WNOHANG) == pid;
      if (ended && pid == session && leader_status != nullptr) *leader_status = status;
      if (!ended) left.push_back(pid);
    }
    // Check again after the last one is gone: it may have started another before.
    if (left.empty() && members(session).empty()) return {};
    if (std::chrono::steady_clock::now() > end) return left;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::string process_state(pid_t pid) {
  const std::string folder = cat("/proc/", pid);
  std::string state, place;
  std::ifstream status(folder + "/status"), wchan(folder + "/wchan");
  constexpr std::string_view kKey = "State:\t";
  for (std::string line; state.empty() && std::getline(status, line);) {
    if (line.starts_with(kKey)) state = line.substr(kKey.size());
  }
  std::getline(wchan, place);
  const bool known = !state.empty() && !place.empty() && place != "0";
  return state + (known ? " in " + place : "");
}

}  // namespace hawser
