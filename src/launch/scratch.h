// A folder for the launcher's shared memory and session files, gone when the run is over however it ended. Ranks that
// are killed leave segments in /dev/shm; in a folder of our own they can be removed without touching anyone else's.
// Internal to launch/.
#pragma once

#include <string>

namespace hawser {

class ScratchFolder {
 public:
  ScratchFolder();  // also removes those of launchers that were killed
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;  // held for as long as the folder is in use
};

}  // namespace hawser
