#include "launch/stop_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace hawser {
namespace {

StopPage* map(int file) {
  void* page = mmap(nullptr, sizeof(StopPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return page == MAP_FAILED ? nullptr : static_cast<StopPage*>(page);
}

}  // namespace

StopFile::StopFile(const std::string& folder) : path_(folder + "/stop") {
  const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const StopPage none;
  // Written now, so that its blocks are allocated before it is needed.
  if (file >= 0 && write(file, &none, sizeof none) == static_cast<ssize_t>(sizeof none)) page_ = map(file);
  const int error = errno;
  if (file >= 0) close(file);
  if (page_ == nullptr) throw UserError({.file = path_, .what = cat("cannot be written: ", std::strerror(error))});
}

StopFile::~StopFile() {
  munmap(page_, sizeof *page_);
}

StopPage* open_stop_page(const char* path) {
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  StopPage* page = map(file);
  close(file);
  return page;
}

}  // namespace hawser
