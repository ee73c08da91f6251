#include "launch/scratch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace hawser {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "hawser-ranks-";

// Removes folders without a lock holder: their launchers are gone.
void sweep(const fs::path& parent) {
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().starts_with(kPrefix)) continue;
    const std::string lock = (it->path() / "lock").string();
    struct stat info {};
    if (lstat(lock.c_str(), &info) != 0 || info.st_uid != geteuid() || !S_ISREG(info.st_mode)) continue;
    const int file = open(lock.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) continue;
    std::error_code ignored;
    if (flock(file, LOCK_EX | LOCK_NB) == 0) fs::remove_all(it->path(), ignored);
    close(file);
  }
}

}  // namespace

ScratchFolder::ScratchFolder() {
  std::error_code error;
  const fs::path memory = "/dev/shm";
  const fs::path parent = access(memory.c_str(), W_OK | X_OK) == 0 ? memory : fs::temp_directory_path(error);
  sweep(parent);
  for (;;) {
    path_ = (parent / (std::string(kPrefix) + "XXXXXX")).string();
    if (mkdtemp(path_.data()) == nullptr) {
      throw UserError({.file = parent.string(),
                       .what = cat("cannot create a folder for the ranks: ", std::strerror(errno)),
                       .hint = "a writable TMPDIR"});
    }
    lock_ = open((path_ + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock_ < 0) return;
    // Another launcher may have locked the file first: then it has removed the folder.
    flock(lock_, LOCK_EX);
    struct stat info {};
    if (fstat(lock_, &info) != 0 || info.st_nlink > 0) return;
    close(lock_);
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) close(lock_);
}

}  // namespace hawser
