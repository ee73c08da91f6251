// `ScratchFolder`: folder for the launcher's shared memory and session files, removed when the run ends, however it
// ends. Killed ranks leave segments in /dev/shm; in a folder of their own they can be removed safely. Internal to
// launch/.
#pragma once

#include <string>

namespace hawser {

class ScratchFolder {
 public:
  ScratchFolder();  // also removes folders of launchers that were killed
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;  // file lock, held while the folder is in use
};

}  // namespace hawser
