#include "launch/mpirun.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <regex>

#include "base/error.h"
#include "base/text.h"
#include "launch/program_output.h"

namespace hawser {
namespace {

constexpr const char* kHint = "apt-get install openmpi-bin, pip install 'hawser-trainer[mpi]', or --ranks 1";

// What it prints: "mpirun (Open MPI) 4.1.4", or under another name "mpirun.openmpi (OpenRTE) 4.1.4".
std::optional<std::string> version_in(const std::string& line) {
  static const std::regex kVersion(R"(\((?:Open MPI|OpenRTE)\) (\d+\S*))");
  std::smatch match;
  if (!std::regex_search(line, match, kVersion)) return std::nullopt;
  return match[1];
}

// The programs of that name in PATH. Debian's name first: plain mpirun may be another MPI's.
std::vector<std::string> in_path() {
  const char* path = std::getenv("PATH");
  const std::string folders = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    for (const char* const name : {"mpirun.openmpi", "mpirun"}) {
      const std::string file = folders.substr(begin, end - begin) + "/" + name;
      if (end > begin && access(file.c_str(), X_OK) == 0) out.push_back(file);
    }
    begin = end + 1;
  }
  return out;
}

}  // namespace

UserError cannot_start_mpirun(int error) {
  return UserError(Problem{.what = cat("cannot start mpirun: ", std::strerror(error)),
                           .hint = "a higher limit of processes (ulimit -u), or --ranks 1"});
}

Mpirun find_mpirun() {
  const char* chosen = std::getenv(kMpirunVariable);
  const bool set = chosen != nullptr && *chosen != '\0';
  const std::vector<std::string> files = set ? std::vector<std::string>{chosen} : in_path();
  std::string other;
  for (const std::string& file : files) {
    const ProgramOutput printed = output_of({file, "--version"}, 3);
    if (printed.error == EAGAIN || printed.error == ENOMEM) throw cannot_start_mpirun(printed.error);
    const std::string line = printed.text.substr(0, printed.text.find('\n'));
    if (const auto version = version_in(line)) return {.path = file, .version = *version};
    if (other.empty()) other = line.empty() ? cat(file, ", which prints no version") : cat(file, ": ", line);
  }
  if (files.empty()) throw UserError(Problem{.what = "mpirun is not installed; it starts the ranks", .hint = kHint});
  throw UserError(Problem{.what = "the ranks need Open MPI's mpirun",
                          .expected = "Open MPI 4 or 5",
                          .got = other,
                          .at = set ? kMpirunVariable : "PATH",
                          .hint = kHint});
}

}  // namespace hawser
