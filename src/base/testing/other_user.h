// For tests: code that runs as a user who may not read root's private files, for whom system calls fail with EACCES.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <exception>
#include <functional>
#include <optional>
#include <string>

namespace hawser {

// The text that `body` returns in a child process of another user, or the message of its exception. As another user than
// root already, calls it here. nullopt if this process may not change its user.
inline std::optional<std::string> as_other_user(const std::function<std::string()>& body) {
  const auto text_of = [&]() -> std::string {
    try {
      return body();
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  if (geteuid() != 0) return text_of();
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return std::nullopt;
  const pid_t child = fork();
  if (child == 0) {
    constexpr uid_t kUser = 54321;
    constexpr int kNotPermitted = 77;
    if (setresuid(kUser, kUser, kUser) != 0) _exit(kNotPermitted);
    const std::string text = text_of();
    _exit(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  std::array<char, 4096> bytes{};
  for (ssize_t size = 0; (size = read(ends[0], bytes.data(), bytes.size())) > 0;) {
    text.append(bytes.data(), static_cast<std::size_t>(size));
  }
  close(ends[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
  return text;
}

}  // namespace hawser
