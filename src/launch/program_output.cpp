#include "launch/program_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>

namespace hawser {

ProgramOutput output_of(const std::vector<std::string>& words, int seconds) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return {.error = errno};
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid(), child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // it does not outlive an interrupted command
    if (getppid() != parent) _exit(1);
    const int nothing = open("/dev/null", O_RDWR);
    if (nothing < 0) _exit(1);
    dup2(nothing, STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    dup2(nothing, STDERR_FILENO);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  const int error = child < 0 ? errno : 0;
  close(ends[1]);
  ProgramOutput out{.error = error};
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  bool ended = error != 0;
  while (!ended) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    pollfd wait{.fd = ends[0], .events = POLLIN, .revents = 0};
    if (left <= 0 || (poll(&wait, 1, static_cast<int>(left)) < 0 && errno != EINTR)) break;
    if (wait.revents == 0) continue;
    std::array<char, 4096> bytes{};
    const ssize_t count = read(ends[0], bytes.data(), bytes.size());
    if (count > 0) out.text.append(bytes.data(), static_cast<std::size_t>(count));
    ended = count <= 0;
  }
  close(ends[0]);
  if (error != 0) return out;
  if (!ended) kill(child, SIGKILL);
  int status = 0;
  const pid_t waited = waitpid(child, &status, 0);  // fails in a process that ignores SIGCHLD
  if (!ended || (waited == child && status != 0)) out.text.clear();
  return out;
}

}  // namespace hawser
